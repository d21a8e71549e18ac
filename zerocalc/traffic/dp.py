"""Data-parallel traffic by stage: gradients reduced, weights gathered ([ZeRO] §7)."""

from __future__ import annotations

from collections.abc import Iterable

from zerocalc.modules.rank import Rank
from zerocalc.schedule import Collective, Fabric, Op, Phase, collective
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

SOURCES = {0: "[ZeRO] §7.1", 1: "[ZeRO] §7.2.1", 2: "[ZeRO] §7.2.1", 3: "[ZeRO] §7.2.2"}


class DataParallel:
    """The data-parallel collectives of one stage; ``micro_batches`` is how often a gather runs, ``reductions`` a reduction."""

    def __init__(self, job: Job, rank: Rank, stage: int, sync: str) -> None:
        self.job, self.rank, self.stage = job, rank, stage
        self.micro_batches = job.training.accumulation
        deferred = job.zero.defer_grad_sync or sync == "step"
        self.reductions = 1 if deferred else self.micro_batches
        self.fabric: Fabric = "node" if job.cluster.gpus <= job.cluster.gpus_per_node else "network"

    def collectives(self) -> list[Collective]:
        """All of them, in order; none where there is one rank."""
        if self.rank.shards == 1:
            return []
        return self._sharded() if self.stage == 3 else self._replicated()

    def _replicated(self) -> list[Collective]:
        """Stages 0 to 2: every rank has all weights; gradients are reduced in backward, weights gathered after the step."""
        zero, rank = self.job.zero, self.rank
        whole = self.stage == 0 or (self.stage == 1 and zero.grad_sync == "all-reduce")
        op: Op = "all_reduce" if whole else "reduce_scatter"
        gradients = self._bucketed(rank.trainable, zero.reduce_bucket_size)
        out = self._calls("backward", op, "gradients", self.job.reduce_dtype, gradients, self.reductions, zero.overlap_comm)
        if self.stage:
            weights = self._bucketed(rank.trainable, zero.allgather_bucket_size)
            out += self._calls("step", "all_gather", "weights", self.job.recipe.gather, weights, 1, False)
        return out

    def _sharded(self) -> list[Collective]:
        """Stage 3: each unit's weights are gathered for forward and again for backward, its gradients reduced to their owner."""
        zero, rank = self.job.zero, self.rank
        by_owner = zero.gather == "broadcast"
        gather: Op = "broadcast" if by_owner else "all_gather"
        reduce: Op = "reduce" if by_owner else "reduce_scatter"
        units = [(f"{unit.name} weights", unit.elements, unit.count) for unit in rank.units]
        if rank.trainable == rank.parameters:
            gradients = [(f"{unit.name} gradients", unit.elements, unit.count) for unit in rank.units]
        else:  # which units hold the trained parameters isn't known
            gradients = [("gradients", size, count) for size, count in self._bucketed(rank.trainable, zero.reduce_bucket_size)]
        out: list[Collective] = []
        phases: tuple[Phase, ...] = ("forward", "backward")
        for phase in phases:
            for what, size, count in units if phase == "forward" else reversed(units):
                out += self._calls(phase, gather, what, self.job.recipe.gather, ((size, count),), self.micro_batches, zero.overlap_comm)
        for what, size, count in reversed(gradients):
            out += self._calls("backward", reduce, what, self.job.reduce_dtype, ((size, count),), self.reductions, zero.overlap_comm)
        return out

    def _bucketed(self, elements: int, bucket: int) -> tuple[tuple[int, int], ...]:
        """(elements, calls) of what goes through buckets: full ones and the rest; a fused buffer is one call."""
        if self.job.zero.buffers == "fused":
            return ((elements, 1),)
        full, rest = divmod(elements, bucket)
        return ((bucket, full), (rest, 1))

    def _calls(self, phase: Phase, op: Op, what: str, dtype: str, sizes: Iterable[tuple[int, int]], times: int, overlapped: bool) -> list[Collective]:
        return [
            collective(
                phase, op, what, dtype=dtype, tensor_bytes=size * DTYPE_BYTES[dtype], count=count * times, group="dp",
                ranks=self.rank.shards, fabric=self.fabric, overlapped=overlapped, source=SOURCES[self.stage],
            )
            for size, count in sizes
            if size and count
        ]  # fmt: skip


def data_parallel(job: Job, rank: Rank, stage: int, sync: str) -> list[Collective]:
    """The data-parallel collectives of a stage; ``sync`` is how often its gradients are reduced (``step`` or ``micro_batch``)."""
    return DataParallel(job, rank, stage, sync).collectives()
