"""Our figures beside another tool's, stage by stage, with the terms that make the difference."""

from __future__ import annotations

from zerocalc.formulas.estimators import ESTIMATORS, evaluate
from zerocalc.formulas.formula import Formula
from zerocalc.ledger import STATE_KINDS, Kind, Moment, record
from zerocalc.results import Estimate, Plan, display_name
from zerocalc.spec.base import FieldError

TOOLS = {
    "deepspeed-estimator": (
        "DeepSpeed 0.19.8, estimate_zero2_model_states_mem_needs and "
        "estimate_zero3_model_states_mem_needs"
    )
}
"""Tools that we compare with, and where their figures come from."""
STATES = "model states"


@record
class Difference:
    """What our figure has beyond the other one [bytes]: of all states together, then of each other
    term alive at our peak.
    """

    name: str
    kind: Kind | None
    bytes: int


@record
class Compared:
    """One stage: the tool's figure for a GPU [bytes], ``None`` where it has none, and our peak; the
    differences sum to what lies between them.
    """

    name: str
    stage: int
    tool_bytes: int | None
    formula: Formula[...] | None
    inputs: dict[str, int]
    peak_bytes: int
    peak_moment: Moment
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]


@record
class ToolComparison:
    """A plan beside a tool."""

    tool: str
    source: str
    candidates: tuple[Compared, ...]
    notes: tuple[str, ...]


def compare(plan: Plan, tool: str) -> ToolComparison:
    """A plan's candidates beside what a tool says of the same stages. Raises `FieldError` for a
    tool that is not known.
    """
    if tool not in TOOLS:
        raise FieldError("tool", f"{tool!r} is not one of {', '.join(TOOLS)}")
    inputs = _inputs(plan)
    notes = [
        "the tool counts model states and, at stage 3, one all-gathered leaf module; no "
        "activations, buckets or prefetched parameters"
    ]
    if "largest_layer" not in inputs and any(
        c.stage == max(stage for stage, _, _ in ESTIMATORS) for c in plan.candidates
    ):
        notes.append(
            "its figure for stage 3 needs the largest leaf module: pass --model, or "
            "--layers --hidden --heads"
        )
    stages = {stage for stage, _, _ in ESTIMATORS}
    lacking = [display_name(c.name) for c in plan.candidates if c.stage not in stages]
    if lacking:
        notes.append(
            f"it has no figure for {', '.join(lacking)}: it estimates stages "
            f"{' and '.join(map(str, sorted(stages)))}"
        )
    if plan.job.model_parallel > 1:
        notes.append(
            "it has no tensor, pipeline or context parallelism: all GPUs count as one "
            "data-parallel group"
        )
    return ToolComparison(
        tool, TOOLS[tool], tuple([_compared(c, inputs) for c in plan.candidates]), tuple(notes)
    )


def _inputs(plan: Plan) -> dict[str, int]:
    inputs = {"parameters": plan.parameters.total, "gpus": plan.job.cluster.gpus}
    leaf = plan.details.largest_leaf
    return inputs if leaf is None else {**inputs, "largest_layer": leaf}


def _compared(candidate: Estimate, inputs: dict[str, int]) -> Compared:
    gpu = candidate.memory.gpu
    known = ESTIMATORS.get((candidate.stage, "none", False))
    formula = (
        known.gpu
        if known is not None and set(known.gpu.symbols.values()) <= inputs.keys()
        else None
    )
    theirs, used, differences = None, dict[str, int](), []
    if formula is not None:
        used = {name: inputs[name] for name in formula.symbols.values()}
        theirs = evaluate(
            formula,
            parameters=inputs["parameters"],
            largest_layer=inputs.get("largest_layer", 0),
            gpus_per_node=inputs["gpus"],
            nodes=1,
        )
        alive = [t for t in gpu.terms if gpu.peak_moment in t.moments and t.kind != "fragmentation"]
        states = gpu.bytes_of(STATE_KINDS, at=gpu.peak_moment)
        others = sorted(
            [
                Difference(t.name, t.kind, t.bytes)
                for t in alive
                if t.kind not in STATE_KINDS and t.bytes
            ],
            key=lambda d: -d.bytes,
        )
        differences = [Difference(STATES, None, states - theirs), *others]
    return Compared(
        candidate.name,
        candidate.stage,
        theirs,
        formula,
        used,
        gpu.peak_bytes,
        gpu.peak_moment,
        tuple(differences),
        gpu.unknown,
    )
