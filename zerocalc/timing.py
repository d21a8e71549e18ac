"""How long a step takes: computing, communication that nothing hides, the pipeline's bubble, the
optimizer's update.
"""

from __future__ import annotations

from typing import Any

from zerocalc.formulas.compute import (
    bubble_seconds,
    compute_seconds,
    exposed_seconds,
    gpu_hours,
    hiding_bytes_per_second,
    step_flops,
    step_seconds,
    tokens_per_second,
    training_days,
    transfer_seconds,
    update_seconds,
    utilisation,
)
from zerocalc.formulas.formula import Formula, Ratio, ceil_div
from zerocalc.ledger import STATE_KINDS, record
from zerocalc.results import Figure, TimePart, Timing
from zerocalc.schedule import OPERATIONS, Collective, Phase, Placement, Schedule
from zerocalc.sharding.rank import Rank
from zerocalc.sharding.work import Work
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.placement import NETWORK_LATENCY_SECONDS, NODE_LATENCY_SECONDS, hops, placed

STEP, MFU, HFU, TOKENS, DAYS, GPU_HOURS = (
    "time per step",
    "MFU",
    "HFU",
    "tokens per second",
    "days",
    "GPU-hours",
)
"""The rows of a plan's table that follow from a step's time."""
SECONDS = ("compute_seconds", "exposed_seconds", "bubble_seconds", "update_seconds")
"""What a step consists of, in the order of `Timing.parts`."""
UPDATE_PASSES = 2
"""The optimizer's step reads and writes each state once."""
UNSHARDED = frozenset({"tp", "cp", "pp", "ep", "etp"})
"""Groups whose traffic belongs to each micro-batch: a pipeline's bubble is longer by it."""


@record
class Transfer:
    """All calls of a collective, and the time that they take."""

    entry: Collective
    part: TimePart
    alone: float
    """Seconds of them that nothing runs beside."""
    crossing_bytes: int
    """What one GPU sends to other nodes."""
    inside_seconds: float
    """Seconds that the bytes inside nodes, or to the host, take by themselves."""
    hops_seconds: float


def timing(
    job: Job, work: Work | None, holds: Rank, stage: int, schedule: Schedule
) -> Timing | None:
    """The time of one optimizer step; ``None`` where the work, the GPU's speed or the links that
    are used are not known.

    ``stage``: as which the recipe's rows are sharded. Pipeline stages are taken to compute alike.
    """
    gpu = job.cluster.gpu
    peak = job.cluster.peak_flops_per_second(job.recipe.compute)
    if work is None or gpu is None or peak is None or not gpu.memory_bytes_per_second:
        return None
    transfers, update = _transfers(job, schedule), _update(job, holds, stage)
    if transfers is None or update is None:
        return None
    micro_batches = job.training.accumulation
    figures = _flops(work, micro_batches)
    model, done = (int(figure.value) for figure in figures)
    efficiency = job.training.kernel_efficiency or job.cluster.kernel_efficiency[0]
    computing = _part(
        "compute",
        compute_seconds,
        flops=done / job.model_parallel,
        peak_flops_per_second=peak,
        efficiency=efficiency,
    )
    forward = computing.seconds * micro_batches * work.forward / done
    available: dict[Phase, float] = {
        "forward": forward,
        "backward": computing.seconds - forward,
        "step": 0.0,
    }
    exposed = _exposed(transfers, available)
    busy = computing.seconds + sum(t.alone for t in transfers if t.entry.group in UNSHARDED)
    bubble = _part(
        "pipeline bubble",
        bubble_seconds,
        busy_seconds=busy,
        pipeline_parallel=job.parallel.pp,
        micro_batches=micro_batches,
        interleave=job.parallel.interleave,
    )
    parts = (computing, exposed, bubble, update)
    figures += _figures(job, peak, model, done, parts)
    values = {figure.name: figure.value for figure in figures}
    return Timing(
        step_seconds=values[STEP],
        compute_seconds=computing.seconds,
        communication_seconds=sum(t.part.seconds for t in transfers),
        exposed_communication_seconds=exposed.seconds,
        unhidable_communication_seconds=sum(t.alone for t in transfers),
        bubble_seconds=bubble.seconds,
        update_seconds=update.seconds,
        model_flops_per_step=model * job.dp,
        hardware_flops_per_step=done * job.dp,
        mfu=values[MFU],
        hfu=values[HFU],
        tokens_per_second=values[TOKENS],
        hidden_above_bytes_per_second_per_node=_hides(job, transfers, available),
        days=values.get(DAYS),
        gpu_hours=values.get(GPU_HOURS),
        parts=(*parts, *(t.part for t in transfers)),
        figures=tuple(figures),
    )


def _flops(work: Work, micro_batches: int) -> list[Figure]:
    """FLOPs of a step on the GPUs of one replica: the model's, and with what is computed again."""
    passes = {
        "micro_batches": micro_batches,
        "forward_flops": work.forward,
        "backward_flops": work.backward,
    }
    return [
        _figure("model FLOPs per replica", step_flops, **passes, recomputed_flops=0),
        _figure("total FLOPs per replica", step_flops, **passes, recomputed_flops=work.recomputed),
    ]


def _figures(
    job: Job, peak: int, model: int, done: int, parts: tuple[TimePart, ...]
) -> list[Figure]:
    """What follows from the parts of a step's time, and a replica's FLOPs."""
    training, gpus = job.training, job.cluster.gpus
    total = _figure(
        STEP, step_seconds, **dict(zip(SECONDS, [part.seconds for part in parts], strict=True))
    )
    machine = {"gpus": gpus, "peak_flops_per_second": peak, "step_seconds": total.value}
    used = [
        _figure(name, utilisation, flops=flops * job.dp, **machine)
        for name, flops in ((MFU, model), (HFU, done))
    ]
    tokens = _figure(
        TOKENS,
        tokens_per_second,
        data_parallel=job.dp,
        micro_batches=training.accumulation,
        micro_batch=training.micro_batch,
        seq=training.seq or 0,
        step_seconds=total.value,
    )
    if not training.tokens or not tokens.value:
        return [total, *used, tokens]
    days = _figure(DAYS, training_days, tokens=training.tokens, tokens_per_second=tokens.value)
    return [total, *used, tokens, days, _figure(GPU_HOURS, gpu_hours, days=days.value, gpus=gpus)]


def _figure(name: str, formula: Formula[Any] | Ratio[Any], **inputs: float) -> Figure:
    return Figure(name, formula.function(**inputs), formula, inputs, formula.source)


def _part(name: str, formula: Ratio[Any], **inputs: float) -> TimePart:
    return TimePart(name, formula.function(**inputs), formula, inputs, formula.source)


def _update(job: Job, holds: Rank, stage: int) -> TimePart | None:
    """The optimizer's step where its states lie: on the GPU, or on the host, through whose memory
    those of all of a node's ranks go.
    """
    cluster, ranks = job.cluster, 1
    carried = cluster.gpu.memory_bytes_per_second if cluster.gpu else None
    if job.zero.offload_optimizer != "none":
        carried, ranks = cluster.cpu_bytes_per_second, cluster.gpus_of_a_node
    if not carried:
        return None
    states = ranks * _updated_bytes(job, holds, stage)
    return _part(
        "optimizer step",
        update_seconds,
        passes=UPDATE_PASSES,
        state_bytes=states,
        bytes_per_second=carried,
    )


def _updated_bytes(job: Job, holds: Rank, stage: int) -> int:
    """Bytes of weights, gradients and optimizer states of what a rank updates: its share, where
    optimizer states are sharded.

    Weights on the GPU are none of what the host updates: they are copied there afterwards.
    """
    apart = job.zero.offload_optimizer != "none" and job.zero.offload_params == "none"
    kinds = STATE_KINDS - {"weights"} if apart else STATE_KINDS
    rows = [row for row in job.trained_recipe.rows if row.kind in kinds and row.of != "frozen"]
    sharded = any(row.kind == "optimizer" and stage >= row.sharded_from for row in rows)
    total = 0
    for part in holds.parts or (holds,):
        amounts = [
            min(part.elements(row.of), part.trainable) // row.per * DTYPE_BYTES[row.dtype]
            for row in rows
        ]
        total += ceil_div(sum(amounts), part.shards if sharded else 1)
    return total


def _exposed(transfers: list[Transfer], available: dict[Phase, float]) -> TimePart:
    beside = {
        phase: sum(t.part.seconds - t.alone for t in transfers if t.entry.moment == phase)
        for phase in ("forward", "backward")
    }
    return _part(
        "exposed communication",
        exposed_seconds,
        alone_seconds=sum(t.alone for t in transfers),
        forward_seconds=beside["forward"],
        forward_compute_seconds=available["forward"],
        backward_seconds=beside["backward"],
        backward_compute_seconds=available["backward"],
    )


def _transfers(job: Job, schedule: Schedule) -> list[Transfer] | None:
    """Each collective's time; ``None`` where a link is not known."""
    overlapped = [
        entry for entry in schedule.collectives if entry.overlapped and entry.group in ("dp", "edp")
    ]
    first = next((entry for entry in overlapped if entry.moment == "forward"), None)
    last = _last(
        [entry for entry in overlapped if entry.moment == "backward" and "gradients" in entry.what]
    )
    out = []
    for entry in schedule.collectives:
        # Nothing computes before a micro-batch's first gather, nor after the step's last reduction
        # has begun.
        calls = job.training.accumulation if entry is first else 1 if id(entry) in last else 0
        transfer = _transfer(
            job, entry, min(calls, entry.count) / entry.count if entry.overlapped else 1.0
        )
        if transfer is None:
            return None
        out.append(transfer)
    return out


def _last(reduced: list[Collective]) -> set[int]:
    """Of all reductions the last one's calls, by identity: of shards and then of replicas, or in
    hops.

    Experts on ranks of their own are listed behind all else, but what is reduced last is never
    among them.
    """
    own = [entry for entry in reduced if entry.group == "dp"] or reduced
    path = OPERATIONS[own[-1].op].path if own else None
    alike = [entry for entry in own if OPERATIONS[entry.op].path == path]
    return {
        id(entry)
        for entry in {
            (entry.op, entry.dtype, entry.ranks, entry.spacing): entry for entry in alike
        }.values()
    }


def _transfer(job: Job, entry: Collective, alone: float) -> Transfer | None:
    """All calls of a collective over the link that takes longest; ``alone``: the share of them that
    nothing runs beside.

    ``None`` where a link that is used is not known.
    """
    cluster, where = job.cluster, placed(job, entry)
    beside = {
        "pcie": cluster.host_bytes_per_second_per_gpu,
        "nvme": cluster.nvme_bytes_per_second_per_gpu,
    }
    inside = beside.get(entry.fabric, cluster.intra_node_bytes_per_second)
    across = cluster.inter_node_bytes_per_second_per_gpu
    within = entry.sent_bytes - where.inter_node_bytes
    links = [
        (sent, speed)
        for sent, speed in ((within, inside), (where.inter_node_bytes, across))
        if sent
    ]
    if any(not speed for _, speed in links):
        return None
    sent, speed = max(
        ((sent, speed or 1) for sent, speed in links),
        key=lambda link: link[0] / link[1],
        default=(0, 1),
    )
    part = _part(_name(entry), transfer_seconds, **_inputs(entry, where, sent, speed))
    return Transfer(
        entry,
        part,
        part.seconds * alone,
        where.inter_node_bytes,
        within / (inside or 1),
        part.seconds - sent / speed,
    )


def _name(entry: Collective) -> str:
    return f"{entry.moment}: {entry.op} of {entry.what}"


def _inputs(entry: Collective, where: Placement, sent: int, speed: int) -> dict[str, float]:
    node_hops, network_hops = hops(entry, where)
    return {
        "sent_bytes": sent,
        "bytes_per_second": speed,
        "count": entry.count,
        "node_hops": node_hops,
        "network_hops": network_hops,
        "node_latency_seconds": NODE_LATENCY_SECONDS,
        "network_latency_seconds": NETWORK_LATENCY_SECONDS,
    }


def _hides(job: Job, transfers: list[Transfer], available: dict[Phase, float]) -> float | None:
    """The bandwidth of a node's network from which on computing hides all that may run beside
    it.
    """
    needed = []
    for phase in ("forward", "backward"):
        beside = [
            (t, 1 - t.alone / t.part.seconds)
            for t in transfers
            if t.entry.moment == phase and t.alone < t.part.seconds
        ]
        crossing = [int(share * t.crossing_bytes) for t, share in beside]
        if any(crossing):
            left = available[phase] - sum(share * t.hops_seconds for t, share in beside)
            inside = [share * t.inside_seconds for t, share in beside]
            needed.append(
                hiding_bytes_per_second(
                    fixed_seconds=inside, crossing_bytes=crossing, available_seconds=left
                )
            )
    known = [each for each in needed if each is not None]
    return max(known) * job.cluster.gpus_per_node if known and len(known) == len(needed) else None
