"""A plan's entries with their formulas written out: symbols, numbers, result, source,
assumption.
"""

from __future__ import annotations

from typing import Any, get_args

from zerocalc.answers.document import plain
from zerocalc.ledger import ACTIVATION_KINDS, GATHERED, STATE_KINDS, Kind, Term, Tier, record
from zerocalc.memory.activations import layers_suffix
from zerocalc.results import Estimate, Figure, Plan, TensorShare, TimePart
from zerocalc.schedule import CPU_TRAFFIC, NETWORK_FABRICS, NVME_TRAFFIC, Collective
from zerocalc.sharding.rank import Share
from zerocalc.spec.job import Job

PEAK_ROWS: tuple[tuple[str, frozenset[str]], ...] = (
    ("activations", ACTIVATION_KINDS - {"logits"}),
    ("logits", frozenset({"logits"})),
    ("16-bit weight copies", frozenset({"copies"})),
    ("buffers and buckets (C_B)", frozenset({"buffers"})),
    (GATHERED, frozenset({"gathered"})),
    ("CUDA context", frozenset({"runtime"})),
)
"""Rows of a plan's table at the peak, apart from the states, and the kinds of entries that each
row sums.
"""

EVERYTHING = frozenset(get_args(Kind))
ROWS: dict[str, frozenset[str]] = {
    "optimizer states": frozenset({"optimizer"}),
    "model states": STATE_KINDS,
    **{label.partition(" (")[0]: kinds for label, kinds in PEAK_ROWS},
}
"""Rows of a plan's table by the kinds of entries that they sum."""
ROWS_AT_PEAK: dict[str, frozenset[str]] = {
    "model states at the peak": STATE_KINDS,
    "total": EVERYTHING - {"fragmentation"},
    "with fragmentation": EVERYTHING,
}
"""Rows that sum what is alive at the peak."""
ROWS_OF_TRAFFIC: dict[str, frozenset[str]] = dict.fromkeys(
    ("traffic per step", "sent per GPU"), NETWORK_FABRICS
)
ROWS_OF_TRAFFIC[CPU_TRAFFIC] = frozenset({"pcie"})
ROWS_OF_TRAFFIC[NVME_TRAFFIC] = frozenset({"nvme"})
ROWS_OF_NODES: dict[str, tuple[Tier, bool]] = {
    "CPU memory per node": ("cpu", False),
    "pinned": ("cpu", True),
    "NVMe per node": ("nvme", False),
}
"""Rows of what a node holds apart from its GPUs: the tier, and whether the rounding of pinned
allocations counts too.
"""
ALIASES = {
    **{"peak": "total", "headroom": "with fragmentation", "fits": "with fragmentation"},
    **{"of ddp": "model states", "traffic": "traffic per step"},
    **dict.fromkeys(("buffers", "c_b"), "buffers and buckets"),
    **dict.fromkeys(("of which inter-node", "per nic"), "sent per GPU"),
}
"""Rows that say of a sum what it comes to, and other names of rows."""
TIME_ROW = "time per step"
TIME_ALIASES = dict.fromkeys(("time", "step_seconds"), TIME_ROW)
"""Other names of the step time."""
ROW_OF = {
    name.lower(): name for name in (*ROWS, *ROWS_AT_PEAK, *ROWS_OF_TRAFFIC, *ROWS_OF_NODES)
} | ALIASES
"""Rows by all their names in lower case."""


@record
class Explanation:
    """One candidate's entries that were asked for; ``row`` is the row of a plan's table that they
    are the sum of, if they are.
    """

    name: str
    stage: int
    terms: tuple[Term, ...]
    collectives: tuple[Collective, ...]
    candidate: Estimate
    row: str = ""
    times: tuple[TimePart | Figure, ...] = ()


def explain(plan: Plan, term: str | None = None) -> list[Explanation]:
    """The entries of each candidate; with ``term``, those whose name, kind or operation holds that
    text, or that a row of that name sums.
    """
    out = []
    for candidate in plan.candidates:
        memory = candidate.memory
        beside = [
            entry for tier in (memory.cpu, memory.nvme) if tier is not None for entry in tier.terms
        ]
        terms = (*memory.gpu.terms, *beside)
        collectives = candidate.communication.collectives
        times: tuple[TimePart | Figure, ...] = (
            (*candidate.time.parts, *candidate.time.figures) if candidate.time is not None else ()
        )
        row = ""
        if term is not None:
            wanted = " ".join(term.lower().split())
            bare = wanted.partition(",")[0]
            part = TIME_ALIASES.get(bare, bare)
            if times and part == TIME_ROW:
                out.append(
                    Explanation(candidate.name, candidate.stage, (), (), candidate, times=times)
                )
                continue
            times = tuple(t for t in times if part in t.name.lower())
            row = row_name(wanted)
            if row == "with fragmentation" and not any(t.kind == "fragmentation" for t in terms):
                row = "total"
            named = tuple(t for t in terms if wanted in t.name.lower() or wanted == t.kind)
            summed = tuple(t for t in terms if _sums(row, t, candidate)) or tuple(
                t for t in terms if t.kind in ROWS.get(row, ())
            )  # elsewhere
            row = row if len(summed) >= len(named) else ""
            terms = tuple(t for t in terms if t in named or t in summed)
            collectives = tuple(
                c
                for c in collectives
                if wanted in c.what.lower()
                or wanted in c.op
                or wanted == c.group
                or c.fabric in ROWS_OF_TRAFFIC.get(row, ())
            )
        out.append(
            Explanation(candidate.name, candidate.stage, terms, collectives, candidate, row, times)
        )
    return out


def row_name(text: str) -> str:
    """The row of a plan's table that a text means, its unit and remarks aside; empty where it is
    none.

    >>> (row_name("Buffers (C_B)"), row_name("peak (known part), at"),
    ...     row_name("sent per GPU, GB"), row_name("colour"))
    ('buffers and buckets', 'total', 'sent per GPU', '')
    """
    bare = text.lower().partition("(")[0].partition(",")[0].strip()
    return ROW_OF.get(bare, "")


def _sums(row: str, term: Term, candidate: Estimate) -> bool:
    """Whether a row sums an entry."""
    if term.tier != "gpu":
        tier, rounded = ROWS_OF_NODES.get(row, ("gpu", False))
        return term.tier == tier and (rounded or term.kind != "fragmentation")
    alive = term.kind == "fragmentation" or candidate.memory.gpu.peak_moment in term.moments
    return term.kind in ROWS.get(row, ()) or (alive and term.kind in ROWS_AT_PEAK.get(row, ()))


def names(plan: Plan) -> list[str]:
    """All that an explanation can be asked for: the entries of a plan, then the rows of its
    table.
    """
    terms = [t.name for c in plan.candidates for t in c.memory.gpu.terms]
    moved = [c.what for candidate in plan.candidates for c in candidate.communication.collectives]
    times = [c.time for c in plan.candidates if c.time is not None]
    timed = [part.name for time in times for part in time.parts] + [
        figure.name for time in times for figure in time.figures
    ]
    return list(dict.fromkeys([*terms, *moved, *timed, *ROW_OF]))


def saved_tensors(plan: Plan, terms: tuple[Term, ...]) -> list[TensorShare]:
    """The tensors behind activation terms, those of one layer of each group of layers that are
    alike, in the order in which they are saved.
    """
    wanted = {t.name for t in terms if t.kind == "activations"}
    if not wanted:
        return []
    whole = plan.job.training.recompute == "full"
    return [t for t in plan.details.saved_tensors if whole or t.term in wanted]


def tensors_of_layers(job: Job, held: list[Share]) -> tuple[TensorShare, ...]:
    """What one layer of each group of layers that are alike saves: of all of the model, or of the
    one pipeline stage that was asked for. ``held``: the job's `shares`.
    """
    holds = held[0][1]
    arch = holds.whole if job.parallel.pipeline_stage is None else holds.arch
    if arch is None or not arch.saves:
        return ()
    out: list[TensorShare] = []
    for number, (count, modules) in enumerate(arch.groups, 1):
        suffix = layers_suffix(arch, count)
        total = sum(t.bytes for m in modules for t in m.saved)
        out += [
            TensorShare(
                m.name,
                t.name,
                t.shape,
                t.dtype,
                t.divisor,
                t.bytes,
                t.bytes / total,
                t.rebuilt,
                count,
                number,
                m.component + suffix,
            )
            for m in modules
            for t in m.saved
        ]
    return tuple(out)


def document(plan: Plan, explanations: list[Explanation]) -> dict[str, Any]:
    """The JSON of an explanation: each entry with its formula's text, and that text with the
    numbers put in.
    """

    def written(entry: Term | Collective | TimePart | Figure) -> dict[str, Any]:
        return {
            **plain(entry),
            "symbols": entry.formula.symbols,
            "numbers": entry.formula.substituted(entry.inputs),
        }

    return {
        "schema_version": plan.schema_version,
        "job": plain(plan.job),
        "stages": [
            {
                "name": e.name,
                "stage": e.stage,
                "terms": [written(t) for t in e.terms],
                "collectives": [written(c) for c in e.collectives],
                "times": [written(t) for t in e.times if isinstance(t, TimePart)],
                "figures": [written(t) for t in e.times if isinstance(t, Figure)],
                "states_bytes": e.candidate.memory.gpu.states_bytes,
                "peak_moment": e.candidate.memory.gpu.peak_moment,
                "peak_bytes": e.candidate.memory.gpu.peak_bytes,
                "sent_bytes_per_gpu": e.candidate.communication.sent_bytes_per_gpu,
                "unknown_traffic": list(e.candidate.communication.unknown),
                "tensors": [plain(t) for t in saved_tensors(plan, e.terms)],
            }
            for e in explanations
        ],
        "assumptions": list(plan.assumptions),
        "notes": list(plan.notes),
    }
