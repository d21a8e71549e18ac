"""DeepSpeed's stages 1 and 2: all trained tensors are one flat buffer, in the order in which the
model lists them, and each rank owns an equal share of it. Shares end within tensors.

DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: initialize_gradient_partition, get_partition_info.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from zerocalc.formulas.buffers import touched
from zerocalc.formulas.formula import ceil_div
from zerocalc.sharding.call_order import Tensors, listed_whole, tensors, trained
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job

Piece = tuple[int, int]
"""The rank that owns a part of a tensor, and the part's elements."""


class FlatBuffer:
    """The tensors of a rank in the flat buffer: where each starts, and how large a share is."""

    def __init__(self, rank: Rank, known: Tensors) -> None:
        self.sizes = known.sizes
        ordered = [known.sizes[number] for number in known.listed]
        starts = accumulate([0, *ordered[:-1]])
        self.starts = dict(zip(known.listed, starts, strict=True))
        self.share = (rank.flat or sum(ordered)) // rank.shards

    def pieces(self, numbers: Iterable[int]) -> list[Piece]:
        """Some tensors, cut where a share ends."""
        out: list[Piece] = []
        for number in numbers:
            start = self.starts[number]
            end = start + self.sizes[number]
            for owner in range(start // self.share, ceil_div(end, self.share)):
                first, last = owner * self.share, (owner + 1) * self.share
                out.append((owner, min(end, last) - max(start, first)))
        return out


def touched_elements(job: Job, rank: Rank) -> list[int]:
    """For each rank, the elements of all tensors with a part in its share; its share alone where
    tensors are not known.
    """
    share = ceil_div(rank.shardable("trainable"), rank.shards)
    if rank.arch is None or not listed_whole(job, rank):
        return [share] * rank.shards
    sizes, listed, _ = tensors(job, rank.arch)
    ordered = [sizes[number] for number in listed]
    return [amount for amount, _ in touched(ordered, rank.shards, share)]


def elements_beyond_share(job: Job, rank: Rank) -> int:
    """Elements of gradients beyond a rank's share at the end of backward, on the rank with most.

    A rank keeps whole each gradient with a part in its share, and the model's first tensor has just
    got its own: in addition to what is kept of it already where gradients accumulate.
    """
    known = trained(job, rank)
    if known is None or rank.shards == 1:
        return 0
    sizes, listed, _ = known
    ordered = [sizes[number] for number in listed]
    share = (rank.flat or sum(ordered)) // rank.shards
    accumulates = job.training.accumulation > 1
    kept = [
        amount + (ordered[0] if accumulates or not first else 0)
        for amount, first in touched(ordered, rank.shards, share)
    ]
    return max(0, max(kept) - share)
