"""Data-parallel traffic by stage: gradients reduced, weights gathered ([ZeRO] §7)."""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.schedule import Collective, Link, Op, Phase, collective
from zerocalc.sharding.gather_units import Unit
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.groups import PACKED, hops, link

LAST = 3
QUANTISED = "int8"
"""The dtype of what is sent quantised; 4-bit numbers go two in a byte."""
ZERO_PLUS = "[++] §3"
HYBRID = "[FSDP] §3.2.2"
SOURCES = {0: "[ZeRO] §7.1", 1: "[ZeRO] §7.2.1", 2: "[ZeRO] §7.2.1", 3: "[ZeRO] §7.2.2"}


class DataParallel:
    """The data-parallel collectives of one stage, where there is more than one rank;
    ``reductions``: how often gradients are reduced in a step.
    """

    def __init__(self, job: Job, rank: Rank, stage: int, reductions: int, overlapped: bool) -> None:
        self.job, self.zero, self.rank, self.stage, self.reductions = (
            job,
            job.zero,
            rank,
            stage,
            reductions,
        )
        self.overlapped = overlapped
        self.link = link(
            job,
            rank.group,
            job.reducing(stage) if rank.group == "dp" else rank.shards,
            SOURCES[stage],
        )
        self.reduce_dtype = job.reduce_dtype
        self.reduce_size = DTYPE_BYTES[self.reduce_dtype]

    def replicated(self, gather_dtype: str) -> list[Collective]:
        """Stages 0 to 2: every rank has all weights; gradients are reduced in backward, weights
        gathered after the step.
        """
        zero, stage = self.zero, self.stage
        out = self._buckets_reduced(
            "all_reduce"
            if stage == 0 or (stage == 1 and zero.grad_sync == "all-reduce")
            else "reduce_scatter"
        )
        if stage:
            size = DTYPE_BYTES[gather_dtype]
            buckets = self._bucketed(self.rank.trainable, zero.allgather_bucket_size)
            out += [
                collective(
                    self.link, "step", "all_gather", "weights", gather_dtype, elements * size, count
                )
                for elements, count in buckets
            ]
        return out

    def sharded(self, gather_dtype: str, adapter_dtype: str, gathers: int) -> list[Collective]:
        """Stage 3: each unit's weights are gathered for forward and again for backward, its
        gradients reduced to their owner.
        """
        rank, overlapped, zero = self.rank, self.overlapped, self.zero
        by_owner = self.zero.gather == "broadcast"
        gather: Op = "broadcast" if by_owner else "all_gather"
        reduce: Op = "reduce" if by_owner else "reduce_scatter"
        units, last_first = rank.units, rank.units[::-1]
        again, sent = self.link, QUANTISED if zero.quantised_weights else gather_dtype
        if (
            zero.secondary_group is not None
        ):  # hpZ: backward gathers what forward has left in the group
            again = link(self.job, "dp", zero.secondary_group, ZERO_PLUS)
        passes: tuple[tuple[Phase, tuple[Unit, ...], Link], ...] = (
            ("forward", units, self.link),
            ("backward", last_first, again),
        )
        out = [
            collective(
                over,
                phase,
                gather,
                f"{unit.name} {what}",
                dtype,
                elements * DTYPE_BYTES[dtype],
                unit.count * gathers,
                overlapped,
            )
            for phase, order, over in passes
            for unit in order
            for what, dtype, elements in (
                ("weights", sent, unit.elements),
                ("adapters' weights", adapter_dtype, unit.adapters),
            )
            if (elements or what == "weights") and over.ranks > 1
        ]
        if rank.adapters is not None:
            for unit in last_first:
                out += (
                    self._reduction(
                        reduce, f"{unit.name} adapters' gradients", unit.adapters, unit.count
                    )
                    if unit.adapters
                    else []
                )
        elif rank.trainable == rank.parameters:
            for unit in last_first:
                out += self._reduction(reduce, f"{unit.name} gradients", unit.elements, unit.count)
        else:  # which units hold the trained parameters isn't known
            out += reversed(self._buckets_reduced(reduce))
        return out

    def _buckets_reduced(self, op: Op) -> list[Collective]:
        buckets = self._bucketed(self.rank.trainable, self.zero.reduce_bucket_size)
        return [
            call
            for elements, count in buckets
            for call in self._reduction(op, "gradients", elements, count)
        ]

    def _bucketed(self, elements: int, bucket: int) -> list[tuple[int, int]]:
        """(elements, calls) of what goes through buckets: full ones and the rest; a fused buffer is
        one call.
        """
        if self.zero.buffers == "fused":
            return [(elements, 1)]
        full, rest = divmod(elements, bucket)
        return [(size, count) for size, count in ((bucket, full), (rest, 1)) if size and count]

    def _reduction(self, op: Op, what: str, elements: int, count: int) -> list[Collective]:
        """Gradients reduced among those that share one copy of the states, then each share among
        those that hold the same one.
        """
        calls = count * self.reductions
        if self.stage == LAST and self.zero.quantised_gradients:
            return self._quantised(what, elements, calls)
        size = self.reduce_size
        out = (
            [
                collective(
                    self.link,
                    "backward",
                    op,
                    what,
                    self.reduce_dtype,
                    elements * size,
                    calls,
                    self.overlapped,
                )
            ]
            if self.link.ranks > 1
            else []
        )
        if self.stage and self.job.replicas > 1:
            over = link(self.job, "dp", self.job.replicas, HYBRID, apart=self.link.ranks)
            share = ceil_div(elements, self.link.ranks) * size
            out.append(
                collective(
                    over,
                    "backward",
                    "all_reduce",
                    f"shares of {what}",
                    self.reduce_dtype,
                    share,
                    calls,
                    self.overlapped,
                )
            )
        return out

    def _quantised(self, what: str, elements: int, calls: int) -> list[Collective]:
        """qgZ: all-to-all in 4 bits among the ranks of a node, and of each one's share between
        nodes.
        """
        return [
            collective(
                link(self.job, "dp", ranks, ZERO_PLUS, apart=apart),
                "backward",
                "all_to_all",
                what,
                QUANTISED,
                ceil_div(elements, PACKED * part),
                calls,
                self.overlapped,
            )
            for ranks, apart, part in hops(self.job, self.link.ranks)
            if ranks > 1
        ]


def data_parallel(
    job: Job, rank: Rank, stage: int, sync: str, overlapped: bool = True
) -> list[Collective]:
    """The data-parallel collectives of a stage; ``sync`` is how often its gradients are reduced
    (``step`` or ``micro_batch``).
    """
    if job.reducing(0) == 1:
        return []
    micro_batches = job.training.accumulation
    traffic = DataParallel(job, rank, stage, job.reductions(sync), overlapped)
    trained_dtype = job.trained_recipe.gather
    return (
        traffic.sharded(job.gather_dtype, trained_dtype, micro_batches)
        if stage == 3
        else traffic.replicated(trained_dtype)
    )
