"""A job at one stage: its ledger and schedule, joined from blocks."""

from __future__ import annotations

from typing import Literal

from zerocalc import memory, sharding
from zerocalc.frameworks import program_of
from zerocalc.frameworks.program import Program
from zerocalc.frameworks.step import Step
from zerocalc.ledger import (
    ACTIVATION_KINDS,
    EMPTY,
    MOMENTS,
    STATE_KINDS,
    Block,
    Ledger,
    Term,
    block,
    join,
    replaced,
)
from zerocalc.memory.buffers import DEFRAGMENTED, fragmentation, runtime, workspaces
from zerocalc.memory.saved import Saved
from zerocalc.results import AtPeak, Communication, Estimate, GpuMemory, HostMemory, Memory
from zerocalc.schedule import NETWORK_FABRICS, OPERATIONS, Collective, Schedule, merge
from zerocalc.sharding.rank import Rank, Share, shares
from zerocalc.sharding.rounding import rounded
from zerocalc.spec.base import FieldError, require
from zerocalc.spec.framework import FrameworkStage
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.timing import timing
from zerocalc.traffic.model_parallel import model_parallel, unknown_traffic
from zerocalc.traffic.placement import placed

OF_EXPERTS = " of experts"
"""Behind the names of what is held and sent of routed experts on ranks of their own."""
LARGEST = 3
"""Terms that are named as what a peak consists of."""
DEQUANTISED = block(
    (), (), ("quantised weights cannot be trained: all parameters are trained, unquantised",)
)
UNKNOWN_ACTIVATIONS = block((), ("activations", "logits"))
HOST_FABRICS = frozenset({"pcie"})
DRIVE_FABRICS = frozenset({"nvme"})


def estimate(job: Job, stage: int | None = None) -> Estimate:
    """Memory and traffic of ``job`` at one ZeRO stage: the one given, or the only one that the job
    names.

    Raises `ValueError` where the stage is not one of the framework's, or not named at all.
    """
    require(job, Job, "estimate")
    return estimate_with_assumptions(job, stage)[0]


def estimate_with_assumptions(
    job: Job, stage: int | None = None, held: list[Share] | None = None
) -> tuple[Estimate, tuple[str, ...]]:
    """As `estimate`, with the assumptions that its terms rest on, in words. ``held``: the job's
    `shares`, for those who ask about several stages.

    Of a pipeline it is the answer of the stage whose memory is largest, the first of those that
    need as much, with the time of the slowest stage.
    """
    if stage is None:
        if len(job.stages) != 1:
            raise FieldError(
                "zero.stage",
                f"name one of the stages {', '.join(map(str, job.stages))} to estimate",
            )
        stage = job.stages[0]
    ranks = held or shares(job)
    if len(ranks) == 1:
        return _on_rank(*ranks[0], stage)
    answers = [_on_rank(own, holds, stage) for own, holds in ranks]
    worst, rests_on = max(answers, key=lambda answer: answer[0].memory.gpu.reserved_bytes)
    times = [answer.time for answer, _ in answers if answer.time is not None]
    return (
        replaced(worst, time=max(times, key=lambda time: time.step_seconds)) if times else worst
    ), rests_on


def _on_rank(job: Job, holds: Rank, stage: int) -> tuple[Estimate, tuple[str, ...]]:
    behaviour = job.framework.stage(stage)
    if job.zero.offloads and not job.can_offload(behaviour):
        raise FieldError(
            "zero.stage", f"{stage} of {job.framework.name} cannot offload what is asked for"
        )
    plan = program_of(job.framework.like)
    holds = rounded(holds, job, plan.pads(stage))
    ledger, sent = _run(job, holds, behaviour, plan)
    schedule = merge([sent, model_parallel(job, holds)])
    used = _memory(job, ledger)
    time = None
    if job.cluster.gpu is not None:
        work = sharding.work.work(job, holds)
        time = timing(job, work, holds, plan.sharded_as(job, stage), schedule)
    answer = Estimate(
        behaviour.name,
        stage,
        used,
        _communication(job, holds, schedule, stage),
        time,
        _fits(job, used),
        job.parallel.pipeline_stage if job.parallel.pp > 1 else None,
        holds.parameters,
    )
    return answer, ledger.assumptions


def _run(
    job: Job, holds: Rank, behaviour: FrameworkStage, plan: Program
) -> tuple[Ledger, list[Collective]]:
    """The framework's step on one rank: its ledger, and what data-parallel ranks send. Routed
    experts on ranks of their own run in a step beside that of the rest.
    """
    blocks: list[Block] = []
    sent: list[Collective] = []
    saved = _saved(job, holds)
    for part in holds.parts or (holds,):
        step = Step(job, part, behaviour, Saved(EMPTY) if blocks else saved)
        plan.run(step)
        blocks.append(_named(part, step.block()))
        sent += [
            each if part.group == "dp" else replaced(each, what=f"{each.what}{OF_EXPERTS}")
            for each in step.collectives
        ]
    blocks.append(runtime(job.cluster.gpu))
    blocks.append(workspaces(job.cluster, job.implementation, job.model))
    if job.framework.note:
        blocks.append(block((), (), (job.framework.note,)))
    if job.model.quantised is not None and holds.stored is None:
        blocks.append(DEQUANTISED)
    fraction = job.zero.fragmentation_fraction
    blocks.append(fragmentation(fraction, join(blocks)) if fraction else DEFRAGMENTED)
    return join(blocks), sent


def _saved(job: Job, holds: Rank) -> Saved:
    """What is saved for backward; it is unknown where layers or their sequences are."""
    arch = holds.arch
    if arch is None or not arch.saves:
        return Saved(UNKNOWN_ACTIVATIONS)
    return memory.activations.saved(job, holds, arch)


def _named(part: Rank, made: Block) -> Block:
    if part.group == "dp":
        return made
    return block(
        [replaced(entry, name=f"{entry.name}{OF_EXPERTS}") for entry in made.terms],
        made.unknown,
        made.assumptions,
    )


def _memory(job: Job, ledger: Ledger) -> Memory:
    peak, moment = ledger.peak_bytes, ledger.peak_moment
    elsewhere = [t for t in ledger.terms if t.tier != "gpu"]
    on_gpu = tuple([t for t in ledger.terms if t.tier == "gpu"]) if elsewhere else ledger.terms
    states_total = states_then = activations_then = lost = 0
    for entry in on_gpu:
        kind = entry.kind
        if kind in STATE_KINDS:
            states_total += entry.bytes
            if moment in entry.moments:
                states_then += entry.bytes
        elif kind in ACTIVATION_KINDS:
            if moment in entry.moments:
                activations_then += entry.bytes
        elif kind == "fragmentation":
            lost += entry.bytes
    gpu = GpuMemory(
        states_bytes=states_total,
        peak_bytes=peak,
        peak_moment=moment,
        moments=dict(zip(MOMENTS, ledger.sums, strict=True)),
        at_peak=AtPeak(states_then, activations_then, peak - states_then - activations_then),
        largest_at_peak={
            t.name: t.bytes
            for t in sorted(ledger.alive(moment), key=lambda t: -t.bytes)[:LARGEST]
            if t.bytes
        },
        activations_known="activations" not in ledger.unknown,
        reserved_bytes=peak + lost,
        unknown=ledger.unknown,
        terms=on_gpu,
    )
    return Memory(gpu, _of_node(job, "cpu", elsewhere), _of_node(job, "nvme", elsewhere))


def _of_node(job: Job, tier: Literal["cpu", "nvme"], elsewhere: list[Term]) -> HostMemory | None:
    """What a node holds beside its GPUs on one tier."""
    terms = tuple([t for t in elsewhere if t.tier == tier])
    if not terms:
        return None
    least = sum([t.bytes for t in terms if t.kind != "fragmentation"])
    return HostMemory(least, sum([t.bytes for t in terms]), job.cluster.capacity(tier), terms)


def _communication(job: Job, holds: Rank, schedule: Schedule, stage: int) -> Communication:
    elements = schedule.volume_elements(
        {**DTYPE_BYTES, "int8": DTYPE_BYTES[job.gather_dtype]}
        if job.zero.quantises
        else DTYPE_BYTES
    )
    baseline = elements if not stage else _all_reduced(job, holds)
    placements = tuple([placed(job, entry) for entry in schedule.collectives])
    across = sum([where.inter_node_bytes for where in placements])
    return Communication(
        volume_params=elements / holds.parameters,
        ratio_to_dp=elements / baseline if baseline else None,
        sent_bytes_per_gpu=schedule.sent(NETWORK_FABRICS),
        inter_node_bytes_per_gpu=across,
        inter_node_bytes_per_card=job.cluster.bytes_per_card(across),
        host_bytes_per_gpu=schedule.sent(HOST_FABRICS),
        nvme_bytes_per_gpu=schedule.sent(DRIVE_FABRICS),
        unknown=unknown_traffic(job, holds),
        collectives=schedule.collectives,
        placements=placements,
    )


def _all_reduced(job: Job, holds: Rank) -> int:
    """Elements per rank and step that stage 0 sends: all gradients, all-reduced ([ZeRO] §7.1)."""
    return sum(
        [
            OPERATIONS["all_reduce"].volume * part.trainable
            for part in holds.parts or (holds,)
            if (job.gradient_group if part.group == "dp" else part.shards) > 1
        ]
    )


def _fits(job: Job, memory: Memory) -> bool | None:
    usable, gpu = job.cluster.usable_bytes, memory.gpu
    beside = [
        tier
        for tier in (memory.cpu, memory.nvme)
        if tier is not None and tier.capacity_bytes is not None
    ]
    if any(tier.lacking_bytes > 0 for tier in beside):
        return False
    if usable is None:
        return None
    if gpu.states_bytes > usable or gpu.reserved_bytes > usable:
        return False  # what is unknown can only add to it
    if gpu.unknown or any(tier.high_bytes_per_node > (tier.capacity_bytes or 0) for tier in beside):
        return None
    return True
