"""What offloading would make fit; the efficiency that it leaves, kind by kind, and the bandwidth
that it needs ([Inf] §4).
"""

from __future__ import annotations

from zerocalc.answers.changes import fitting, line
from zerocalc.formulas.offload import needed_bytes_per_second
from zerocalc.formulas.published import (
    checkpoint_intensity,
    efficiency,
    optimizer_intensity,
    parameter_intensity,
)
from zerocalc.ledger import record
from zerocalc.quantities import format_gib, format_rate
from zerocalc.sharding.rank import Rank, shares
from zerocalc.spec.job import Job
from zerocalc.spec.offload import unmodelled_with
from zerocalc.spec.zero import Device

HALF, MOST = 0.5, 0.9
"""Efficiencies that [Inf] §4.2 gives bandwidths for."""


@record
class Efficiency:
    """One kind of offloaded state: its arithmetic intensity [FLOP/byte], the bandwidths [bytes/s]
    that ``HALF`` and ``MOST`` of the compute rate need, what there is (``None`` where a link is not
    known), and the share of the compute rate that this gives while no transfer is hidden.

    ``ranks``: over how many of them together bandwidths are counted.
    """

    what: str
    intensity: float
    ranks: int
    for_half: float
    for_most: float
    bytes_per_second: float | None
    efficiency: float | None

    def words(self) -> str:
        """The figures in one sentence."""
        where = f"over all {self.ranks:,} ranks" if self.ranks > 1 else "per GPU"
        half, most = format_rate(self.for_half), format_rate(self.for_most)
        needs = (
            f"{HALF:.0%} efficiency needs {half} {where}, {MOST:.0%} needs {most} (no overlap, "
            "[Inf] §4)"
        )
        if self.efficiency is None or self.bytes_per_second is None:
            return f"{self.what}: {needs}"
        given = format_rate(self.bytes_per_second)
        return f"{self.what}: {needs}; {given} gives {self.efficiency:.0%}"


CHOICES: tuple[dict[str, Device], ...] = (
    {"offload_optimizer": "cpu"},
    {"offload_optimizer": "cpu", "offload_params": "cpu"},
)


def would_fit(job: Job) -> list[str]:
    """What fits with states in CPU memory, the optimizer alone or else the parameters too, in one
    line; none where nothing does.
    """
    if job.zero.offloads or job.zero.gather == "broadcast" or unmodelled_with(job.zero):
        return []
    for choice in CHOICES:
        changed = job.model_copy(update={"zero": job.zero.model_copy(update=choice)})
        able = [stage.stage for stage in job.framework.stages if changed.can_offload(stage)]
        best = fitting(changed, shares(changed), able)
        if best is not None:
            flags = [f"--{name.replace('_', '-')} {device}" for name, device in choice.items()]
            host = format_gib(best.memory.cpu.bytes_per_node if best.memory.cpu else 0)
            return [f"{line(changed, flags, best, job.stages)}, with {host} of CPU memory per node"]
    return []


def efficiencies(job: Job, holds: Rank) -> list[Efficiency]:
    """What each offloaded kind of state allows; nothing while the GPU's speed or the sequence
    length is not known.

    Of parameters, gradients and optimizer states only where all is trained, as [Inf]'s intensities
    take it.
    """
    gpu, seq = job.cluster.gpu, job.training.seq
    fastest = job.cluster.peak_flops_per_second(job.recipe.compute)
    if gpu is None or fastest is None or not seq:
        return []
    zero, micro_batch = job.zero, job.training.micro_batch
    share = job.training.kernel_efficiency or job.cluster.kernel_efficiency[0]
    peak, tokens = fastest * share, max(1, seq // job.parallel.cp)
    host, out = job.cluster.host_bytes_per_second_per_gpu, []

    def add(what: str, intensity: float, ranks: int, bandwidth: float | None) -> None:
        reached = (
            None
            if bandwidth is None
            else efficiency(
                intensity=intensity, bytes_per_second=bandwidth, peak_flops_per_second=peak
            )
        )
        half, most = (
            needed_bytes_per_second(fraction=e, peak_flops_per_second=peak, intensity=intensity)
            for e in (HALF, MOST)
        )
        out.append(Efficiency(what, intensity, ranks, half, most, bandwidth, reached))

    whole = holds.total_trainable == holds.total
    if zero.offload_params != "none" and whole:
        own = _own(job, zero.offload_params)
        gathered = (
            None
            if own is None
            else min(own * holds.shards, _gathers(job, holds) or own * holds.shards)
        )
        add(
            "parameters and gradients",
            parameter_intensity(seq=tokens, micro_batch=micro_batch),
            1,
            gathered,
        )
    if zero.offload_optimizer != "none" and whole:
        own = _own(job, zero.offload_optimizer)
        once = optimizer_intensity(seq=tokens, micro_batch=micro_batch * job.training.accumulation)
        add("optimizer states", once, holds.shards, None if own is None else own * holds.shards)
    if zero.checkpoints_on_host and holds.arch is not None:
        add(
            "checkpoints",
            checkpoint_intensity(hidden=holds.arch.hidden, checkpoint_interval=1),
            1,
            host,
        )
    return out


def _own(job: Job, device: str) -> int | None:
    """What one rank exchanges with where its share lies [bytes/s]."""
    host, drives = (
        job.cluster.host_bytes_per_second_per_gpu,
        job.cluster.nvme_bytes_per_second_per_gpu,
    )
    if device == "cpu":
        return host
    return None if host is None or drives is None else min(host, drives)


def _gathers(job: Job, holds: Rank) -> int | None:
    """What gathering brings one GPU [bytes/s]: the slower of its link inside a node and of the
    node's network cards.
    """
    inside, across = (
        job.cluster.intra_node_bytes_per_second,
        job.cluster.inter_node_bytes_per_second_per_gpu,
    )
    if holds.shards * job.parallel.tp <= job.cluster.gpus_per_node:
        return inside
    return (
        None
        if inside is None or across is None
        else min(inside, across * job.cluster.gpus_per_node)
    )
