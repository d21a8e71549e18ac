"""DeepSpeed's reduction of gradients: tensor by tensor through buckets of reduce_bucket_size.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads,
average_tensor; stage3.py: __avg_scatter_grads, __avg_scatter_contiguous_grads; engine.py:
buffered_allreduce_fallback (stage 0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from zerocalc.formulas.buffers import filled
from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.buckets import Calls, grouped
from zerocalc.frameworks.flat_buffer import FlatBuffer, Piece
from zerocalc.frameworks.step import Step
from zerocalc.ledger import Term, record
from zerocalc.schedule import Op
from zerocalc.sharding.call_order import Tensors, trained

Order = Literal["arriving", "listed"]


@record
class Bucket:
    """Tensors that are reduced together, by number; their elements, and those with each tensor
    rounded up to whole shards.
    """

    tensors: list[int]
    elements: int
    padded: int


class ReduceBuckets:
    """The buckets of one reduction of all gradients. A tensor that does not fit into what is left
    of a bucket has the bucket reduced first; one that is larger than a bucket is reduced alone.

    ``order``: in which tensors go into buckets: as their gradients arrive, or as the model lists
    them. ``weights_first``: a linear layer's weight has its gradient before its bias has.

    Where tensors are not known, all of their elements go through full buckets and a rest.
    """

    def __init__(
        self, step: Step, order: Order = "arriving", *, weights_first: bool = False
    ) -> None:
        self.step, self.rank = step, step.rank
        self.most = step.zero.reduce_bucket_size
        self.order, self.weights_first = order, weights_first
        # What is in CPU memory is copied from the contiguous bucket: offloading turns it on.
        self.contiguous = step.zero.contiguous_gradients or step.zero.offload_optimizer != "none"

    # Memory.

    def hold(self) -> Term | None:
        """The contiguous bucket, into which gradients are copied, as large as it can get however
        small the model. There are two while reduction overlaps backward: one fills, one is reduced.
        """
        if not self.contiguous:
            return None
        copies = 2 if self.step.overlaps else 1
        return self.step.hold("reduce bucket", "buffers", self.most, "reduce", copies=copies)

    def hold_flat_copy(self) -> Term | None:
        """A bucket's gradients made flat for their reduction, where no contiguous bucket has them:
        a full bucket at most.
        """
        if self.contiguous:
            return None
        elements = min(self.rank.part("trainable"), self.most)
        return self.step.hold("flattened gradients", "buffers", elements, "reduce")

    def hold_unreduced(self) -> Term | None:
        """Gradients that wait for their bucket to fill, where no contiguous bucket has them: a full
        bucket at most.
        """
        if self.contiguous:
            return None
        elements = min(self.rank.part("trainable"), self.most)
        return self.step.hold("unreduced gradients", "buffers", elements, "weights")

    # Traffic.

    def all_reduce(self) -> None:
        """All-reduce whole buckets."""
        self._reduce("all_reduce", self._calls())

    def all_reduce_for_owners(self) -> None:
        """All-reduce whole buckets, of which each rank keeps what it owns
        (use_multi_rank_bucket_allreduce). A tensor larger than a bucket is reduced in calls that
        end where shares do.
        """
        if self.known is None:
            self.all_reduce()
            return
        calls: list[int] = []
        for bucket in self.buckets:
            if bucket.elements <= self.most:
                calls.append(bucket.elements)
            else:
                calls += _ending_at_shares(self.flat_buffer.pieces(bucket.tensors), self.most)
        self._reduce("all_reduce", grouped(calls))

    def reduce_to_owners(self) -> None:
        """Reduce each owner's part of a bucket to that rank, in a call of its own."""
        calls: list[int] = []
        for bucket in self.buckets:
            calls += _of_each_owner(self.flat_buffer.pieces(bucket.tensors))
        if self.known is None:
            calls = [ceil_div(self.rank.part("trainable"), self.rank.shards)] * self.rank.shards
        self._reduce("reduce", grouped(calls))

    def reduce_scatter(self) -> None:
        """Reduce-scatter each bucket's tensors, each rounded up to whole shards."""
        self._reduce("reduce_scatter", self._calls(padded=True))

    def all_reduce_in_place(self) -> None:
        """Stage 3 with reduce_scatter off: what is in the contiguous bucket is all-reduced where it
        is; what is not, a tensor larger than the bucket, is scattered all the same.
        """
        in_place = self.step.zero.contiguous_gradients
        if self.known is None:
            if in_place:
                self.all_reduce()
            else:
                self.reduce_scatter()
            return
        inside: list[int] = []
        outside: list[int] = []
        for bucket in self.buckets:
            if in_place and bucket.elements <= self.most:
                inside.append(bucket.elements)
            else:
                outside.append(bucket.padded)
        self._reduce("all_reduce", grouped(inside))
        self._reduce("reduce_scatter", grouped(outside))

    def all_reduce_among_replicas(self) -> None:
        """MiCS: the copies of a shard are made alike, once a step (runtime/zero/mics.py)."""
        step = self.step
        if step.replicas.ranks == 1:
            return
        dtype, shards = step.dtype("weights"), self.rank.shards
        for size, count in self._calls(padded=True):
            share = ceil_div(size, shards)
            step.send(
                step.replicas, "all_reduce", "gradients", dtype, share, count, overlapped=False
            )

    def _reduce(self, op: Op, calls: Calls) -> None:
        step, dtype = self.step, self.step.dtype("reduce")
        for elements, count in calls:
            step.send(step.shards, op, "gradients", dtype, elements, count * step.reductions)

    # Which tensors are reduced together.

    @cached_property
    def known(self) -> Tensors | None:
        """The trained tensors, where they are known."""
        return trained(self.step.job, self.rank, self.weights_first)

    @cached_property
    def buckets(self) -> list[Bucket]:
        """The buckets in the order in which they are reduced, where tensors are known."""
        if self.known is None:
            return []
        sizes, shards = self.known.sizes, self.rank.shards
        tensors = self.known.listed if self.order == "listed" else self.known.arriving
        up = {size: size for size in sizes}
        if self.rank.rule == "tensor":
            up = {size: ceil_div(size, shards) * shards for size in up}
        out: list[Bucket] = []
        first = 0
        for count in filled([sizes[tensor] for tensor in tensors], self.most):
            group = tensors[first : first + count]
            first += count
            own = [sizes[tensor] for tensor in group]
            out.append(Bucket(group, sum(own), sum([up[size] for size in own])))
        return out

    @cached_property
    def flat_buffer(self) -> FlatBuffer:
        """The buffer that the owners share."""
        assert self.known is not None
        return FlatBuffer(self.rank, self.known)

    def _calls(self, *, padded: bool = False) -> Calls:
        """(elements, calls) of the buckets."""
        if self.known is not None:
            return grouped([each.padded if padded else each.elements for each in self.buckets])
        whole = self.rank.shardable("trainable") if padded else self.rank.part("trainable")
        full, rest = divmod(whole, self.most)
        return [(self.most, full), (rest, 1)]


def hold_gradient_being_computed(step: Step) -> Term | None:
    """The gradient that is added to, or copied into, one that is there already."""
    elements = step.rank.part("tensor", trained=True)
    return step.hold("gradient being computed", "buffers", elements, "weights")


def hold_accumulated(step: Step) -> Term | None:
    """A rank's share of the sum of gradients over micro-batches (grad_accum_dtype)."""
    elements, shards = step.rank.part("trainable"), step.rank.shards
    return step.hold("accumulated gradients", "gradients", elements, "fp32", shards=shards)


def _of_each_owner(pieces: Iterable[Piece]) -> Iterable[int]:
    """Elements that each owner has of a bucket."""
    owners: Counter[int] = Counter()
    for owner, size in pieces:
        owners[owner] += size
    return owners.values()


def _ending_at_shares(pieces: Iterable[Piece], most: int) -> list[int]:
    """The calls for a tensor larger than a bucket: one ends with the share that makes it so."""
    calls: list[int] = []
    size = 0
    for _, elements in pieces:
        size += elements
        if size > most:
            calls.append(size)
            size = 0
    return [*calls, size] if size else calls
