"""A job at one stage: its ledger and schedule, joined from blocks."""

from __future__ import annotations

from typing import Literal

from zerocalc.ledger import (
    ACTIVATION_KINDS,
    MOMENTS,
    STATE_KINDS,
    Block,
    Ledger,
    Term,
    block,
    join,
    replaced,
)
from zerocalc.memory.buffers import (
    DEFRAGMENTED,
    buffers,
    fragmentation,
    gathered,
    runtime,
    secondary,
    workspaces,
)
from zerocalc.memory.states import states
from zerocalc.results import AtPeak, Communication, Estimate, GpuMemory, HostMemory, Memory, Timing
from zerocalc.schedule import NETWORK_FABRICS, Collective, Schedule, merge
from zerocalc.sharding.rank import Rank, Share, rounded, shares
from zerocalc.spec.base import FieldError, require
from zerocalc.spec.framework import FrameworkStage
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.dp import data_parallel
from zerocalc.traffic.model_parallel import model_parallel, unknown_traffic
from zerocalc.traffic.placement import placed

OF_EXPERTS = " of experts"
"""Behind the names of what is held and sent of routed experts on ranks of their own."""
LARGEST = 3
"""Terms that are named as what a peak consists of."""
DEQUANTISED = block(
    (), (), ("quantised weights cannot be trained: all is trained, as before quantisation",)
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
                f"name one stage of {', '.join(map(str, job.stages))}: an estimate is of one",
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
    holds = rounded(holds, job, behaviour.pads)
    ledger = build_ledger(job, holds, behaviour)
    across = (
        _across(job, holds, behaviour)
        if not holds.parts
        else [each for part in holds.parts for each in _across(job, part, behaviour)]
    )
    groups = [across, model_parallel(job, holds)]
    if job.zero.offloads:
        from zerocalc.traffic.offload import offload_traffic  # most jobs keep all on the GPU

        groups.append(offload_traffic(job, holds, behaviour, across, ledger.terms))
    schedule = merge(groups)
    memory = _memory(job, ledger)
    took = _took(job, holds, behaviour, schedule) if job.cluster.gpu is not None else None
    sent = _communication(job, holds, schedule, stage)
    answer = Estimate(
        behaviour.name,
        stage,
        memory,
        sent,
        took,
        _fits(job, memory),
        job.parallel.pipeline_stage if job.parallel.pp > 1 else None,
        holds.parameters,
    )
    return answer, ledger.assumptions


def _across(job: Job, part: Rank, behaviour: FrameworkStage) -> list[Collective]:
    """What data-parallel ranks send each other of a part of the parameters."""
    if behaviour.published:
        sent = data_parallel(
            job, part, behaviour.stage, behaviour.sync, job.overlaps(behaviour.stage)
        )
    else:
        from zerocalc.traffic.framework import (
            framework_traffic,  # what runs as published does without
        )

        sent = framework_traffic(job, part, behaviour)
    return (
        sent
        if part.group == "dp"
        else [replaced(entry, what=f"{entry.what}{OF_EXPERTS}") for entry in sent]
    )


def _took(job: Job, holds: Rank, behaviour: FrameworkStage, schedule: Schedule) -> Timing | None:
    """The step's time; what computes it is read only where a GPU is named."""
    from zerocalc.sharding.work import work
    from zerocalc.timing import timing

    return timing(job, work(job, holds), holds, _stage_of_rows(job, behaviour), schedule)


def _stage_of_rows(job: Job, behaviour: FrameworkStage) -> int:
    """The stage as which the recipe's rows are sharded."""
    return behaviour.sharded_as(
        overlapped=job.overlaps(behaviour.stage) and job.training.accumulation == 1
    )


def build_ledger(job: Job, holds: Rank, behaviour: FrameworkStage) -> Ledger:
    """The ledger of one rank: the union of its blocks."""
    stage = _stage_of_rows(job, behaviour)
    kept = _kept(job, holds)
    alike = holds.parts or (holds,)
    parts: list[Block] = []
    for part in alike:
        parts += _sharded(job, part, behaviour, stage)
    parts += (
        kept,
        runtime(job.cluster.gpu),
        workspaces(job.cluster, job.implementation, job.model),
    )
    if not behaviour.published:
        from zerocalc.memory.framework import held  # what runs as published does without

        parts += [_named(part, held(job, part, behaviour, kept)) for part in alike]
    if job.model.quantised is not None and holds.stored is None:
        parts.append(DEQUANTISED)
    if job.zero.offloads:
        from zerocalc.memory.offload import rounding  # most jobs keep all on the GPU

        parts.append(
            rounding(
                job, holds, behaviour, tuple([entry for part in parts for entry in part.terms])
            )
        )
    fraction = job.zero.fragmentation_fraction
    parts.append(fragmentation(fraction, join(parts)) if fraction else DEFRAGMENTED)
    return join(parts)


def _kept(job: Job, holds: Rank) -> Block:
    """Activations and logits; what counts them is read only where layers and their sequences are
    known.
    """
    arch = holds.arch
    if arch is None or not arch.saves:
        return UNKNOWN_ACTIVATIONS
    from zerocalc.memory.activations import activations

    return activations(job, holds, arch)


def _named(part: Rank, made: Block) -> Block:
    if part.group == "dp":
        return made
    return block(
        [replaced(entry, name=f"{entry.name}{OF_EXPERTS}") for entry in made.terms],
        made.unknown,
        made.assumptions,
    )


def _sharded(job: Job, holds: Rank, behaviour: FrameworkStage, stage: int) -> list[Block]:
    """States, and what a stage as published holds beside them, of parameters that are sharded
    alike.
    """
    zero, recipe, accumulates = job.zero, job.trained_recipe, job.training.accumulation > 1
    rows = states(
        recipe,
        holds,
        stage,
        accumulates=accumulates,
        whole_gradients=accumulates and job.defers,
        waiting_dtype=job.dtype_of(behaviour.waiting_dtype) if behaviour.waiting_dtype else None,
        owner_blocks=job.model.blocks if zero.gather == "broadcast" else None,
        since=behaviour.gradients_from,
        until=behaviour.gradients_until,
        late=_reduced_last(holds, behaviour),
        gradients=zero.chosen(None, behaviour.gradients_unless),
    )
    if zero.offloads:
        from zerocalc.memory.offload import relocated  # as above

        rows = relocated(job, rows, stage, behaviour)
    out = [rows]
    if behaviour.published:
        out += [
            buffers(
                zero,
                holds,
                stage,
                overlaps=job.overlaps(stage),
                reduce_dtype=job.reduce_dtype,
                gather_dtype=recipe.gather,
                reduce_buffers=behaviour.reduce_buffers,
            ),
            secondary(holds, zero.secondary_group, stage, job.gather_dtype),
            gathered(
                holds,
                stage,
                gather_dtype=job.gather_dtype,
                adapter_dtype=recipe.gather,
                units_in_flight=job.framework.units_in_flight,
                brought=zero.offload_params != "none",
            ),
        ]
    return out if holds.group == "dp" else [_named(holds, made) for made in out]


def _reduced_last(holds: Rank, behaviour: FrameworkStage) -> int:
    """Elements outside the layers whose gradients are reduced after the last layer's, where a
    framework's rows say so.
    """
    parts = {row.of for row in behaviour.holds if row.after_layers}
    return sum([holds.part(part, trained=True) for part in parts]) if holds.placed else 0


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
        {**DTYPE_BYTES, "int8": DTYPE_BYTES[job.gather_dtype]} if job.quantises else DTYPE_BYTES
    )
    baseline = elements
    if stage:
        baseline = sum(
            [
                Schedule(tuple(data_parallel(job, part, 0, "step"))).volume_elements(DTYPE_BYTES)
                for part in holds.parts or (holds,)
            ]
        )
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
