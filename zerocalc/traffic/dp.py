"""Data-parallel traffic by stage: gradients reduced, weights gathered ([ZeRO] §7)."""

from __future__ import annotations

from zerocalc.modules.rank import Rank
from zerocalc.modules.units import Unit
from zerocalc.schedule import Collective, Link, Op, Phase, collective
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

SOURCES = {0: "[ZeRO] §7.1", 1: "[ZeRO] §7.2.1", 2: "[ZeRO] §7.2.1", 3: "[ZeRO] §7.2.2"}


class DataParallel:
    """The data-parallel collectives of one stage, where there is more than one rank; ``reductions``: how often gradients are reduced in a step."""

    def __init__(self, job: Job, rank: Rank, stage: int, reductions: int, overlapped: bool) -> None:
        cluster = job.cluster
        self.zero, self.rank, self.stage, self.reductions = job.zero, rank, stage, reductions
        self.overlapped = overlapped
        self.link = Link(rank.group, rank.shards, "node" if cluster.gpus <= cluster.gpus_per_node else "network", SOURCES[stage])
        self.reduce_dtype = job.reduce_dtype
        self.reduce_size = DTYPE_BYTES[self.reduce_dtype]

    def replicated(self, gather_dtype: str) -> list[Collective]:
        """Stages 0 to 2: every rank has all weights; gradients are reduced in backward, weights gathered after the step."""
        zero, stage = self.zero, self.stage
        out = self._buckets_reduced("all_reduce" if stage == 0 or (stage == 1 and zero.grad_sync == "all-reduce") else "reduce_scatter")
        if stage:
            size = DTYPE_BYTES[gather_dtype]
            buckets = self._bucketed(self.rank.trainable, zero.allgather_bucket_size)
            out += [collective(self.link, "step", "all_gather", "weights", gather_dtype, elements * size, count) for elements, count in buckets]
        return out

    def sharded(self, gather_dtype: str, adapter_dtype: str, gathers: int) -> list[Collective]:
        """Stage 3: each unit's weights are gathered for forward and again for backward, its gradients reduced to their owner."""
        link, rank, overlapped = self.link, self.rank, self.overlapped
        by_owner = self.zero.gather == "broadcast"
        gather: Op = "broadcast" if by_owner else "all_gather"
        reduce: Op = "reduce" if by_owner else "reduce_scatter"
        units, last_first = rank.units, rank.units[::-1]
        passes: tuple[tuple[Phase, tuple[Unit, ...]], ...] = (("forward", units), ("backward", last_first))
        out = [
            collective(link, phase, gather, f"{unit.name} {what}", dtype, elements * DTYPE_BYTES[dtype], unit.count * gathers, overlapped)
            for phase, order in passes
            for unit in order
            for what, dtype, elements in (("weights", gather_dtype, unit.elements), ("adapters' weights", adapter_dtype, unit.adapters))
            if elements or what == "weights"
        ]
        if rank.adapters is not None:
            out += [self._reduction(reduce, f"{unit.name} adapters' gradients", unit.adapters, unit.count) for unit in last_first if unit.adapters]
        elif rank.trainable == rank.parameters:
            out += [self._reduction(reduce, f"{unit.name} gradients", unit.elements, unit.count) for unit in last_first]
        else:  # which units hold the trained parameters isn't known
            out += reversed(self._buckets_reduced(reduce))
        return out

    def _buckets_reduced(self, op: Op) -> list[Collective]:
        buckets = self._bucketed(self.rank.trainable, self.zero.reduce_bucket_size)
        return [self._reduction(op, "gradients", elements, count) for elements, count in buckets]

    def _bucketed(self, elements: int, bucket: int) -> list[tuple[int, int]]:
        """(elements, calls) of what goes through buckets: full ones and the rest; a fused buffer is one call."""
        if self.zero.buffers == "fused":
            return [(elements, 1)]
        full, rest = divmod(elements, bucket)
        return [(size, count) for size, count in ((bucket, full), (rest, 1)) if size and count]

    def _reduction(self, op: Op, what: str, elements: int, count: int) -> Collective:
        return collective(
            self.link, "backward", op, what, self.reduce_dtype, elements * self.reduce_size, count * self.reductions, self.overlapped
        )  # fmt: skip


def data_parallel(job: Job, rank: Rank, stage: int, sync: str, overlapped: bool = True) -> list[Collective]:
    """The data-parallel collectives of a stage; ``sync`` is how often its gradients are reduced (``step`` or ``micro_batch``)."""
    if rank.shards == 1:
        return []
    micro_batches = job.training.accumulation
    traffic = DataParallel(job, rank, stage, 1 if sync == "step" or job.zero.defer_grad_sync else micro_batches, overlapped)
    trained_dtype = job.trained_recipe.gather
    return traffic.sharded(job.gather_dtype, trained_dtype, micro_batches) if stage == 3 else traffic.replicated(trained_dtype)
