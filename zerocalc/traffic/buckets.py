"""What goes through reduction buckets together: tensor by tensor, as gradients come or as the model lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from zerocalc.formulas.buffers import filled
from zerocalc.formulas.formula import ceil_div
from zerocalc.modules.rank import Rank
from zerocalc.modules.visits import tensors
from zerocalc.spec.framework import Move
from zerocalc.spec.job import Job

Part = tuple[str, int, int]
"""(name, elements, calls)."""


def buckets(job: Job, rank: Rank, move: Move, *, overlapped: bool) -> list[Part]:
    """The calls of one reduction of all gradients of a known architecture, one for each bucket or for each owner of a part of one."""
    assert rank.arch is not None
    sizes, listed = tensors(job, rank.arch)
    order = listed if move.order == "model" and not overlapped else range(len(sizes))[::-1]
    counts = filled([sizes[number] for number in order], job.zero.reduce_bucket_size)
    ends = list(accumulate(counts))
    groups = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    if move.op == "reduce":
        return grouped(_owned(groups, sizes, listed, rank))
    each = move.padded and rank.rule == "tensor"
    return grouped([sum([ceil_div(sizes[n], rank.shards) * rank.shards if each else sizes[n] for n in group]) for group in groups])


def _owned(groups: Iterable[Iterable[int]], sizes: list[int], listed: list[int], rank: Rank) -> list[int]:
    """Elements of each bucket by the rank that keeps them: the flat buffer, in the model's order, is cut into equal shares."""
    share = (rank.padded or sum(sizes)) // rank.shards
    starts = dict(zip(listed, accumulate([0, *[sizes[n] for n in listed[:-1]]]), strict=True))
    calls: list[int] = []
    for group in groups:
        owners: Counter[int] = Counter()
        for number in group:
            start, end = starts[number], starts[number] + sizes[number]
            for owner in range(start // share, ceil_div(end, share)):
                owners[owner] += min(end, (owner + 1) * share) - max(start, owner * share)
        calls += owners.values()
    return calls


def merged(parts: Iterable[Part]) -> list[Part]:
    """Parts of the same size together."""
    counts: Counter[tuple[str, int]] = Counter()
    for name, elements, count in parts:
        counts[name, elements] += count
    return [(name, elements, count) for (name, elements), count in counts.items() if count]


def grouped(sizes: Iterable[int]) -> list[Part]:
    """Calls of the same size together."""
    return [("", size, count) for size, count in Counter(sizes).items()]
