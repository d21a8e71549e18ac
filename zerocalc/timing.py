"""How long a step takes: computing, communication that nothing hides, the pipeline's bubble, the optimizer's update."""

from __future__ import annotations

from zerocalc.formulas.compute import bubble_seconds, compute_seconds, step_flops, transfer_seconds, update_seconds
from zerocalc.ledger import STATE_KINDS, Ledger
from zerocalc.modules.compute import Work
from zerocalc.results import Timing
from zerocalc.schedule import Phase, Schedule
from zerocalc.spec.job import Job
from zerocalc.traffic.placement import NETWORK_LATENCY_SECONDS, NODE_LATENCY_SECONDS, Placed, placed

UPDATE_PASSES = 2
"""The optimizer's step reads and writes each state once."""
PHASES: tuple[Phase, ...] = ("forward", "backward", "step")


def timing(job: Job, work: Work | None, ledger: Ledger, schedule: Schedule) -> Timing | None:
    """The time of one optimizer step; ``None`` where the work, the GPU's speed or the links that are used are not known."""
    gpu = job.cluster.gpu
    peak = gpu.bf16_dense_flops_per_second if gpu else None
    if work is None or gpu is None or peak is None or not gpu.memory_bytes_per_second:
        return None
    transfers, update = _transfers(job, schedule), _update(job, ledger)
    if transfers is None or update is None:
        return None
    micro_batches, shared = job.training.accumulation, job.model_parallel
    model = step_flops(micro_batches=micro_batches, forward_flops=work.forward, recomputed_flops=0)
    done = step_flops(micro_batches=micro_batches, forward_flops=work.forward, recomputed_flops=work.recomputed)
    efficiency = job.training.kernel_efficiency or job.cluster.kernel_efficiency[0]
    computing = compute_seconds(flops=done / shared, peak_flops_per_second=peak, efficiency=efficiency)
    forward = computing * micro_batches * work.forward / done
    available: dict[Phase, float] = {"forward": forward, "backward": computing - forward, "step": 0.0}
    hidden = {phase: sum(s for p, s, overlapped in transfers if p == phase and overlapped) for phase in PHASES}
    exposed = sum(s for _, s, overlapped in transfers if not overlapped) + sum(max(0.0, hidden[p] - available[p]) for p in PHASES)
    bubble = bubble_seconds(
        compute_seconds=computing, pipeline_parallel=job.parallel.pp, micro_batches=micro_batches, interleave=job.parallel.interleave
    )
    step = computing + exposed + bubble + update
    tokens = job.dp * micro_batches * job.training.micro_batch * (job.training.seq or 0)
    per_gpu = step * shared * peak
    return Timing(
        step_seconds=step,
        compute_seconds=computing,
        communication_seconds=sum(s for _, s, _ in transfers),
        exposed_communication_seconds=exposed,
        bubble_seconds=bubble,
        update_seconds=update,
        model_flops_per_step=model * job.dp,
        hardware_flops_per_step=done * job.dp,
        mfu=model / per_gpu,
        hfu=done / per_gpu,
        tokens_per_second=tokens / step,
        hidden_above_bytes_per_second_per_node=_hides(job, schedule, available),
        days=_days(job, tokens, step),
        gpu_hours=_days(job, tokens, step, 24 * job.cluster.gpus),
    )


def _update(job: Job, ledger: Ledger) -> float | None:
    """The optimizer's step where its states lie: on the GPU, or on the host, through whose memory all of a node's go."""
    if job.zero.offload_optimizer == "none":
        states, carried = ledger.total(STATE_KINDS), job.cluster.gpu.memory_bytes_per_second if job.cluster.gpu else None
    else:
        states = sum([entry.bytes for entry in ledger.terms if entry.tier != "gpu" and entry.kind in STATE_KINDS])
        carried = job.cluster.cpu_bytes_per_second
    return None if carried is None else update_seconds(passes=UPDATE_PASSES, state_bytes=states, bytes_per_second=carried)


def _transfers(job: Job, schedule: Schedule) -> list[tuple[Phase, float, bool]] | None:
    """(phase, seconds, whether it runs beside computing) of each collective; ``None`` where a link is not known."""
    out: list[tuple[Phase, float, bool]] = []
    inside, across = job.cluster.intra_node_bytes_per_second, job.cluster.inter_node_bytes_per_second_per_gpu
    links = {"pcie": job.cluster.host_bytes_per_second_per_gpu, "nvme": job.cluster.nvme_bytes_per_second_per_gpu}
    for entry in schedule.collectives:
        where = placed(job, entry)
        bandwidths = ((entry.sent_bytes - where.inter_node_bytes, links.get(entry.fabric, inside)), (where.inter_node_bytes, across))
        if any(sent and not bandwidth for sent, bandwidth in bandwidths):
            return None
        latency = NETWORK_LATENCY_SECONDS if where.inter_node_bytes else NODE_LATENCY_SECONDS
        seconds = max((_seconds(where, sent, bandwidth or 1, latency) for sent, bandwidth in bandwidths if sent), default=0.0)
        out.append((entry.moment, seconds, entry.overlapped))
    return out


def _seconds(where: Placed, sent: int, bandwidth: int, latency: float) -> float:
    entry = where.collective
    return transfer_seconds(sent_bytes=sent, bytes_per_second=bandwidth, count=entry.count, ranks=entry.ranks, latency_seconds=latency)


def _hides(job: Job, schedule: Schedule, available: dict[Phase, float]) -> float | None:
    """The bandwidth of a node's network from which on computing hides all that may run beside it."""
    needed = 0.0
    for phase in ("forward", "backward"):
        sent = sum(placed(job, c).inter_node_bytes for c in schedule.collectives if c.moment == phase and c.overlapped)
        if sent and available[phase]:
            needed = max(needed, sent * min(job.cluster.gpus_per_node, job.cluster.gpus) / available[phase])
    return needed or None


def _days(job: Job, tokens: int, step: float, factor: float = 1.0) -> float | None:
    wanted = job.training.tokens
    return None if wanted is None or not tokens else wanted / tokens * step / 86_400 * factor
