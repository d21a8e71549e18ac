"""From a job to an answer: its candidates, which of them fit, which to take and why, and what would
change that.
"""

from __future__ import annotations

from zerocalc import answers, model
from zerocalc.answers.assumptions import assumed
from zerocalc.answers.notes import notes_on
from zerocalc.estimator import estimate_with_assumptions
from zerocalc.ledger import Kind
from zerocalc.quantities import format_gib
from zerocalc.results import (
    SCHEMA_VERSION,
    Details,
    Estimate,
    Parameters,
    Plan,
    Recommendation,
    Verdict,
    cheapest,
    display_name,
)
from zerocalc.sharding.rank import Share, shares
from zerocalc.spec.base import require
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES


def plan(job: Job) -> Plan:
    """All stages asked for, side by side, with a verdict and a recommendation where the GPU's
    memory is known.
    """
    require(job, Job, "plan")
    candidates: list[Estimate] = []
    assumptions: list[str] = []
    held = shares(job)
    for stage in job.stages:
        candidate, rests = estimate_with_assumptions(job, stage, held)
        candidates.append(candidate)
        assumptions += rests
    verdict = _verdict(candidates)
    notes = notes_on(job, held, candidates)
    if verdict == "does_not_fit":
        notes += answers.offloading.would_fit(job)
    timed = any(candidate.time is not None for candidate in candidates)
    assumptions = [*job.model.assumed, *assumed(job, held, timed), *assumptions]
    answer = Plan(
        schema_version=SCHEMA_VERSION,
        job=job,
        candidates=tuple(candidates),
        verdict=verdict,
        recommended=recommend(job, candidates),
        assumptions=tuple(dict.fromkeys(assumptions)),
        notes=(*notes, *job.config_notes),
        suggestions=_suggestions(job, candidates) if verdict == "does_not_fit" else (),
        parameters=_parameters(job, held),
        state_bytes_per_parameter=_state_bytes(job),
    )
    answer.details = _details(job, held)
    return answer


def _parameters(job: Job, held: list[Share]) -> Parameters:
    """Counts of the whole model, which each rank knows."""
    rank = held[0][1]
    active = None if rank.whole is None else rank.whole.active_elements
    if active is not None and rank.adapters is not None:
        active += rank.adapters.active
    return Parameters(rank.total, rank.total_trainable, active, job.shards)


def _state_bytes(job: Job) -> dict[Kind, float]:
    """Bytes per parameter by kind of state, where the rows do not depend on shapes or on what is
    frozen.
    """
    rows = job.recipe.rows
    if (
        job.model.trainable
        or job.model.lora
        or any(row.of not in ("all", "trainable") for row in rows if row.kind != "copies")
    ):
        return {}
    sums: dict[Kind, float] = {}
    for row in rows:
        sums[row.kind] = sums.get(row.kind, 0) + DTYPE_BYTES[row.dtype] / row.per
    return sums


def _details(job: Job, held: list[Share]) -> Details:
    """What few views show, made of the same ranks when it is asked for."""
    whole = held[0][1].whole
    return Details(
        lambda: answers.explain.tensors_of_layers(job, held),
        lambda: answers.pipeline_stages.pipeline_stages(job, held),
        lambda: None if whole is None else model.counting.largest_leaf(whole),
    )


def _suggestions(job: Job, candidates: list[Estimate]) -> tuple[str, ...]:
    known = candidates[-1].memory.gpu.activations_known
    return tuple(answers.suggestions.suggestions(job, known))


def _verdict(candidates: list[Estimate]) -> Verdict:
    fits = [candidate.fits for candidate in candidates]
    return "fits" if True in fits else "unknown" if None in fits else "does_not_fit"


def recommend(job: Job, candidates: list[Estimate]) -> Recommendation | None:
    """What to take among candidates, and why; ``None`` where the capacity is unknown or nothing
    fits.
    """
    usable = job.cluster.usable_bytes
    if usable is None:
        return None
    why: list[str] = []
    fitting = [c for c in candidates if c.fits]
    if not fitting:
        fitting = [c for c in candidates if c.fits is None]
        if not fitting:
            return None
        unknown = fitting[0].memory.gpu.unknown
        why.append(
            f"judged on model states and buffers only: {', '.join(unknown)} unknown"
            if unknown
            else f"if {' and '.join(unsure(fitting[0]))}"
        )
    chosen = cheapest(fitting)
    for other in candidates:
        if other.fits is False:
            why.append(_lacks(other, usable))
    for other in fitting:
        if other is not chosen:
            why.append(_compared(other, chosen))
    if len(why) == 0:
        why.append(
            "it fits, and no other stage was asked for" if len(candidates) == 1 else "it fits"
        )
    return Recommendation(chosen.name, tuple(why))


NOTABLE = 0.005
"""Smaller differences of estimated times are not reported."""
TIER_NAMES = {"cpu": "CPU memory", "nvme": "NVMe"}


def short_of(candidate: Estimate) -> list[str]:
    """What a node is short by, in words: ``12.0 GiB of CPU memory per node``."""
    memory = candidate.memory
    tiers = {"cpu": memory.cpu, "nvme": memory.nvme}
    return [
        f"{format_gib(tier.lacking_bytes)} of {TIER_NAMES[name]} per node"
        for name, tier in tiers.items()
        if tier is not None and tier.lacking_bytes
    ]


def unsure(candidate: Estimate) -> list[str]:
    """The condition under which a node's CPU memory suffices, in words."""
    host = candidate.memory.cpu
    if (
        host is None
        or host.capacity_bytes is None
        or not host.bytes_per_node <= host.capacity_bytes < host.high_bytes_per_node
    ):
        return []
    most, capacity = format_gib(host.high_bytes_per_node), format_gib(host.capacity_bytes)
    return [f"pinned buffers fit in {capacity} of CPU memory per node (they may need {most})"]


def _lacks(other: Estimate, usable: int) -> str:
    gpu = other.memory.gpu
    needed = max(gpu.reserved_bytes, gpu.states_bytes)
    if needed <= usable:
        return f"{display_name(other.name)} is short by {' and '.join(short_of(other))}"
    at = gpu.at_peak
    activations = "unknown" if "activations" in gpu.unknown else format_gib(at.activations_bytes)
    parts = (
        f"model states {format_gib(at.states_bytes)}, activations and logits {activations}, other "
        f"{format_gib(at.other_bytes)}"
    )
    least = "at least " if gpu.unknown else ""
    return (
        f"{display_name(other.name)} is short by {least}{format_gib(needed - usable)} (at its "
        f"peak: {parts})"
    )


def _compared(other: Estimate, chosen: Estimate) -> str:
    """Another candidate that would do, in memory and traffic relative to the chosen one."""
    saved = chosen.memory.gpu.reserved_bytes - other.memory.gpu.reserved_bytes
    sent, base = other.communication.sent_bytes_per_gpu, chosen.communication.sent_bytes_per_gpu
    theirs, ours = format_gib(sent), format_gib(base)
    known = " (known part)" if other.memory.gpu.unknown else ""
    known_traffic = " (known part)" if other.communication.unknown else ""
    if not saved:
        memory = f"the same memory{known}"
    else:
        memory = f"{format_gib(abs(saved))} {'less' if saved > 0 else 'more'} memory{known}"
    if theirs == ours:
        traffic = f" and {'' if not saved else 'the same '}traffic{known_traffic}"
    else:
        traffic = f" and sends {theirs} per step instead of {ours}{known_traffic}"
    time = ""
    if other.time is not None and chosen.time is not None:
        more = other.time.step_seconds / chosen.time.step_seconds - 1
        if abs(more) >= NOTABLE:
            time = f"; estimated step time {abs(more):.0%} {'longer' if more > 0 else 'shorter'}"
    return f"{display_name(other.name)} needs {memory}{traffic}{time}"
