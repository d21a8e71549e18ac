"""Gradients reduced in 4 bits and two hops: among the ranks of a node, then what is left of them between nodes (ZeRO++, arXiv 2306.10209 §3.3)."""

from __future__ import annotations

import math
from collections import Counter

from zerocalc.formulas.formula import ceil_div
from zerocalc.modules.rank import Rank
from zerocalc.modules.visits import listed_whole
from zerocalc.schedule import Collective, Link, Op, collective
from zerocalc.spec.framework_rows import Move
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

PACKED = 2
"""Gradients of 4 bits in a byte."""
SCALE_BYTES = DTYPE_BYTES["fp32"]


def in_two_hops(job: Job, rank: Rank, move: Move, repeats: int, overlapped: bool) -> list[Collective]:
    """Each matrix in two all-to-alls, each followed by one of its scales; what has one dimension, or does not divide, reduced and scattered.

    The rules are those of DeepSpeed 0.19.8, runtime/comm/coalesced_collectives.py: all_to_all_quant_reduce.
    """
    n, near = rank.shards, job.cluster.gpus_per_node
    calls: Counter[tuple[Op, str, str, int, int]] = Counter()
    for shape, count in _shapes(job, rank).items():
        elements = math.prod(shape)
        if len(shape) == 1 or elements % (PACKED * n):
            dtype = job.reduce_dtype
            calls["reduce_scatter", "", dtype, ceil_div(elements, n) * n * DTYPE_BYTES[dtype], n] += count
            continue
        groups = max(shape[0], shape[1], n)
        calls["all_to_all", "", move.dtype, elements // PACKED, near] += count
        calls["all_to_all", "scales of", "fp32", groups * SCALE_BYTES, near] += count
        calls["all_to_all", "", move.dtype, elements // PACKED // near, n // near] += count
        calls["all_to_all", "scales of", "fp32", groups // near * SCALE_BYTES, n // near] += count
    out: list[Collective] = []
    for (op, name, dtype, size, ranks), count in calls.items():
        if ranks > 1:
            link = Link("dp", ranks, "node" if near in (ranks, n) else "network", job.framework.source)
            out.append(collective(link, move.moment, op, f"{name} {move.what}".strip(), dtype, size, count * repeats, overlapped))
    return out


def _shapes(job: Job, rank: Rank) -> Counter[tuple[int, ...]]:
    """How often each shape stands among the trained tensors; a bare number of parameters is taken as one matrix of N rows."""
    shapes: Counter[tuple[int, ...]] = Counter()
    if rank.arch is None or not listed_whole(job, rank):
        shapes[rank.shards, PACKED * ceil_div(rank.trainable, PACKED * rank.shards)] += 1
        return shapes
    for count, modules in rank.arch.all_groups():
        for module in modules:
            for _, shape, _ in module.parameter_rows:
                shapes[shape] += count
    return shapes
