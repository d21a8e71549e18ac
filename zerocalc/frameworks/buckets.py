"""What goes through reduction buckets together: tensor by tensor, as gradients arrive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.step import Step
from zerocalc.model.architecture import on_rank
from zerocalc.sharding.call_order import trained
from zerocalc.sharding.gather_units import pipeline_split
from zerocalc.spec.recipe import DTYPE_BYTES

Calls = list[tuple[int, int]]
"""(elements, calls)."""
FIRST_ARRIVAL_BYTES = 2**20
ARRIVAL_BYTES = 25 * 2**20
"""DDP's first bucket, so that reduction starts early, and the others
(torch/nn/parallel/distributed.py: bucket_cap_mb).
"""


def arrival_buckets(step: Step) -> Calls:
    """DDP's buckets: tensors as their gradients arrive, last first, a bucket closed as soon as it
    is full. All at once where tensors are not known.
    """
    rank = step.rank
    if rank.arch is None or not rank.placed:
        return [(rank.shardable("trainable"), 1)]
    split = pipeline_split(step.job)
    item = DTYPE_BYTES[step.job.reduce_dtype]
    buckets, filled, limit = [], 0, FIRST_ARRIVAL_BYTES
    for size in _arriving(step):
        filled += ceil_div(size, split)
        if filled * item >= limit:
            buckets.append(filled)
            filled, limit = 0, ARRIVAL_BYTES
    return grouped([*buckets, filled] if filled else buckets)


def _arriving(step: Step) -> list[int]:
    """Elements of the trained tensors in the order in which their gradients arrive."""
    job, rank = step.job, step.rank
    known = trained(job, rank)
    if known is not None:
        return [known.sizes[number] for number in known.arriving]
    tensor_parallel = job.parallel.tp
    if rank.adapters is not None:
        shapes = rank.adapters.shapes[::-1]
        return [ceil_div(math.prod(shape), tensor_parallel) for shape in shapes]
    assert rank.arch is not None
    rows = [
        row
        for modules in rank.arch.in_order()
        for module in modules
        for row in module.parameter_rows
    ]
    return [on_rank(row, tensor_parallel) for row in rows[::-1]]


def grouped(sizes: Iterable[int]) -> Calls:
    """Calls of the same size together; the size of the last call comes last.

    >>> grouped([9, 4, 5, 4, 9])
    [(5, 1), (4, 2), (9, 2)]
    """
    calls = list(sizes)
    counts = Counter(calls)
    return [(size, counts[size]) for size in reversed(dict.fromkeys(reversed(calls)))]
