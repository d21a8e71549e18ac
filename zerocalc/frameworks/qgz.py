"""qgZ: gradients reduced in 4 bits and two hops: among the ranks of a node, then what is left of
them between nodes (ZeRO++, arXiv 2306.10209 §3.3).

DeepSpeed 0.19.8, runtime/comm/coalesced_collectives.py: all_to_all_quant_reduce.
"""

from __future__ import annotations

import math
from typing import TypeVar

from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.step import Step
from zerocalc.schedule import Op
from zerocalc.sharding.call_order import listed_whole
from zerocalc.traffic.groups import PACKED, hops

Key = TypeVar("Key")
Shape = tuple[int, ...]


def reduce_in_two_hops(step: Step) -> None:
    """Each matrix in two all-to-alls, each followed by one of its scales; what has one dimension,
    or does not divide, is reduce-scattered.
    """
    shards, reduced = step.rank.shards, step.dtype("reduce")
    calls: dict[tuple[Op, str, str, int, int, int], int] = {}
    for shape, count in _shapes(step).items():
        elements = math.prod(shape)
        if len(shape) == 1 or elements % (PACKED * shards):
            whole = ceil_div(elements, shards) * shards
            _count(calls, ("reduce_scatter", "gradients", reduced, whole, shards, 1), count)
            continue
        scales = max(shape[0], shape[1], shards)
        for ranks, apart, part in hops(step.job, shards):
            packed, own = elements // PACKED // part, scales // part
            _count(calls, ("all_to_all", "gradients", "int8", packed, ranks, apart), count)
            _count(calls, ("all_to_all", "scales of gradients", "fp32", own, ranks, apart), count)
    for (op, what, dtype, size, ranks, apart), count in calls.items():
        over = step.link(ranks, apart=apart)
        step.send(over, op, what, dtype, size, count * step.reductions)


def _shapes(step: Step) -> dict[Shape, int]:
    """How often each shape occurs among the trained tensors, as their gradients arrive; a parameter
    count alone is taken as one square matrix.
    """
    rank, shapes = step.rank, dict[Shape, int]()
    if rank.adapters is not None:
        for matrix in reversed(rank.adapters.shapes):
            _count(shapes, matrix, 1)
    elif rank.arch is None or not listed_whole(step.job, rank):
        whole = PACKED * rank.shards
        side = ceil_div(math.isqrt(rank.trainable), whole) * whole
        shapes[side, ceil_div(rank.trainable, side)] = 1
    else:
        for count, modules in reversed(rank.arch.all_groups()):
            for module in reversed(modules):
                for _, shape, _ in reversed(module.parameter_rows):
                    _count(shapes, shape, count)
    return shapes


def _count(counts: dict[Key, int], key: Key, more: int) -> None:
    """Counts calls of one kind; the kind of the last one comes last."""
    counts[key] = counts.pop(key, 0) + more
