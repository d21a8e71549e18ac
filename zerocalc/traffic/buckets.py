"""What goes through reduction buckets together: tensor by tensor, as gradients come or as the model
lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from zerocalc.formulas.buffers import filled
from zerocalc.formulas.formula import ceil_div
from zerocalc.sharding.call_order import Tensors
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework_rows import Move
from zerocalc.spec.job import Job

Part = tuple[str, int, int]
"""(name, elements, calls)."""


def buckets(job: Job, rank: Rank, move: Move, known: Tensors, *, overlapped: bool) -> list[Part]:
    """The calls of one reduction of all gradients of ``known`` tensors, one for each bucket or for
    each owner of a part of one.
    """
    sizes, listed, arriving = known
    order = listed if move.order == "model" and not overlapped else arriving
    counts = filled([sizes[number] for number in order], job.zero.reduce_bucket_size)
    ends = list(accumulate(counts))
    groups = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    if move.fitting is not None:
        groups = [
            group for group in groups if _fits(job, sum([sizes[n] for n in group])) is move.fitting
        ]
    each = move.padded and rank.rule == "tensor"
    totals = [
        sum([ceil_div(sizes[n], rank.shards) * rank.shards if each else sizes[n] for n in group])
        for group in groups
    ]
    most = job.zero.reduce_bucket_size
    if move.op != "reduce" and not (move.cut and max(totals) > most):
        return grouped(totals)
    starts = dict(zip(listed, accumulate([0, *[sizes[n] for n in listed[:-1]]]), strict=True))
    share = (rank.flat or sum(sizes)) // rank.shards
    calls: list[int] = []
    for group, total in zip(groups, totals, strict=True):
        if move.op != "reduce" and total <= most:
            calls.append(total)
            continue
        pieces = _owned([(starts[n], sizes[n]) for n in group], share)
        calls += _together(pieces) if move.op == "reduce" else _sent(pieces, most)
    return grouped(calls)


def _fits(job: Job, elements: int) -> bool:
    """Whether so many elements lie in the contiguous bucket when they are reduced."""
    return job.zero.contiguous_gradients and elements <= job.zero.reduce_bucket_size


def _owned(group: Iterable[tuple[int, int]], share: int) -> list[tuple[int, int]]:
    """A bucket's tensors (start in the flat buffer, size) as pieces (owner, elements): the buffer
    is cut into equal shares.
    """
    pieces: list[tuple[int, int]] = []
    for start, size in group:
        for owner in range(start // share, ceil_div(start + size, share)):
            pieces.append(
                (owner, min(start + size, (owner + 1) * share) - max(start, owner * share))
            )
    return pieces


def _together(pieces: Iterable[tuple[int, int]]) -> Iterable[int]:
    owners: Counter[int] = Counter()
    for owner, size in pieces:
        owners[owner] += size
    return owners.values()


def _sent(pieces: list[tuple[int, int]], most: int) -> list[int]:
    """The calls that reduce one bucket for all owners: one, but for a tensor larger than a bucket,
    which is cut where a share ends.
    """
    calls, filled = [], 0
    for _, size in pieces:
        filled += size
        if filled > most:
            calls.append(filled)
            filled = 0
    return [*calls, filled] if filled else calls


def merged(parts: Iterable[Part]) -> list[Part]:
    """Parts of the same size together."""
    counts: Counter[tuple[str, int]] = Counter()
    for name, elements, count in parts:
        counts[name, elements] += count
    return [(name, elements, count) for (name, elements), count in counts.items() if count]


def grouped(sizes: Iterable[int]) -> list[Part]:
    """Calls of the same size together; the size of the last call comes last.

    >>> grouped([9, 4, 5, 4, 9])
    [('', 5, 1), ('', 4, 2), ('', 9, 2)]
    """
    calls = list(sizes)
    counts = Counter(calls)
    return [("", size, counts[size]) for size in reversed(dict.fromkeys(reversed(calls)))]
