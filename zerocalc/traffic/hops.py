"""Gradients reduced in 4 bits and two hops: among the ranks of a node, then what is left of them between nodes (ZeRO++, arXiv 2306.10209 §3.3)."""

from __future__ import annotations

import math
from collections import Counter

from zerocalc.formulas.formula import ceil_div
from zerocalc.modules.rank import Rank
from zerocalc.modules.visits import listed_whole
from zerocalc.schedule import Collective, Op, collective
from zerocalc.spec.framework_rows import Move
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.links import PACKED, hops, link

SCALE_BYTES = DTYPE_BYTES["fp32"]


def in_two_hops(job: Job, rank: Rank, move: Move, repeats: int, overlapped: bool) -> list[Collective]:
    """Each matrix in two all-to-alls, each followed by one of its scales; what has one dimension, or does not divide, reduced and scattered.

    The rules are those of DeepSpeed 0.19.8, runtime/comm/coalesced_collectives.py: all_to_all_quant_reduce.
    """
    n = rank.shards
    calls: Counter[tuple[Op, str, str, int, int, int]] = Counter()
    for shape, count in _shapes(job, rank).items():
        elements = math.prod(shape)
        if len(shape) == 1 or elements % (PACKED * n):
            dtype = job.reduce_dtype
            calls["reduce_scatter", "", dtype, ceil_div(elements, n) * n * DTYPE_BYTES[dtype], n, 1] += count
            continue
        groups = max(shape[0], shape[1], n)
        for ranks, apart, part in hops(job, n):
            calls["all_to_all", "", move.dtype, elements // PACKED // part, ranks, apart] += count
            calls["all_to_all", "scales of", "fp32", groups // part * SCALE_BYTES, ranks, apart] += count
    out: list[Collective] = []
    for (op, name, dtype, size, ranks, apart), count in calls.items():
        if ranks > 1:
            over = link(job, "dp", ranks, job.framework.source, apart=apart)
            out.append(collective(over, move.moment, op, f"{name} {move.what}".strip(), dtype, size, count * repeats, overlapped))
    return out


def _shapes(job: Job, rank: Rank) -> Counter[tuple[int, ...]]:
    """How often each shape stands among the trained tensors; a bare number of parameters is taken as one square matrix."""
    shapes: Counter[tuple[int, ...]] = Counter()
    if rank.adapters is not None:
        return Counter(rank.adapters.shapes)
    if rank.arch is None or not listed_whole(job, rank):
        whole = PACKED * rank.shards
        side = ceil_div(math.isqrt(rank.trainable), whole) * whole
        shapes[side, ceil_div(rank.trainable, side)] += 1
        return shapes
    for count, modules in rank.arch.all_groups():
        for module in modules:
            for _, shape, _ in module.parameter_rows:
                shapes[shape] += count
    return shapes
