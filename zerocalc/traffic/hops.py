"""Gradients reduced in 4 bits and two hops: among the ranks of a node, then what is left of them
between nodes (ZeRO++, arXiv 2306.10209 §3.3).
"""

from __future__ import annotations

import math
from typing import TypeVar

from zerocalc.formulas.formula import ceil_div
from zerocalc.schedule import Collective, Op, collective
from zerocalc.sharding.call_order import listed_whole
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework_rows import Move
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.groups import PACKED, hops, link

Key = TypeVar("Key")
SCALE_BYTES = DTYPE_BYTES["fp32"]


def in_two_hops(
    job: Job, rank: Rank, move: Move, repeats: int, overlapped: bool
) -> list[Collective]:
    """Each matrix in two all-to-alls, each followed by one of its scales; what has one dimension,
    or does not divide, reduced and scattered.

    The rules are those of DeepSpeed 0.19.8, runtime/comm/coalesced_collectives.py:
    all_to_all_quant_reduce.
    """
    n = rank.shards
    calls: dict[tuple[Op, str, str, int, int, int], int] = {}
    for shape, count in _shapes(job, rank).items():
        elements = math.prod(shape)
        if len(shape) == 1 or elements % (PACKED * n):
            dtype = job.reduce_dtype
            _count(
                calls,
                ("reduce_scatter", "", dtype, ceil_div(elements, n) * n * DTYPE_BYTES[dtype], n, 1),
                count,
            )
            continue
        groups = max(shape[0], shape[1], n)
        for ranks, apart, part in hops(job, n):
            _count(
                calls,
                ("all_to_all", "", move.dtype, elements // PACKED // part, ranks, apart),
                count,
            )
            _count(
                calls,
                ("all_to_all", "scales of", "fp32", groups // part * SCALE_BYTES, ranks, apart),
                count,
            )
    out: list[Collective] = []
    for (op, name, dtype, size, ranks, apart), count in calls.items():
        if ranks > 1:
            over = link(job, "dp", ranks, job.framework.source, apart=apart)
            out.append(
                collective(
                    over,
                    move.moment,
                    op,
                    f"{name} {move.what}".strip(),
                    dtype,
                    size,
                    count * repeats,
                    overlapped,
                )
            )
    return out


def _count(counts: dict[Key, int], key: Key, more: int) -> None:
    """Counts calls of one kind; the kind of the last one comes last."""
    counts[key] = counts.pop(key, 0) + more


def _shapes(job: Job, rank: Rank) -> dict[tuple[int, ...], int]:
    """How often each shape stands among the trained tensors, as their gradients come; a bare number
    of parameters is taken as one square matrix.
    """
    shapes: dict[tuple[int, ...], int] = {}
    if rank.adapters is not None:
        for matrix in reversed(rank.adapters.shapes):
            _count(shapes, matrix, 1)
        return shapes
    if rank.arch is None or not listed_whole(job, rank):
        whole = PACKED * rank.shards
        side = ceil_div(math.isqrt(rank.trainable), whole) * whole
        return {(side, ceil_div(rank.trainable, side)): 1}
    for count, modules in reversed(rank.arch.all_groups()):
        for module in reversed(modules):
            for _, shape, _ in reversed(module.parameter_rows):
                _count(shapes, shape, count)
    return shapes
