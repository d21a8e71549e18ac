"""A model as DeepSpeed's stage 3 sees it: its modules as they are called, one inside another, each
with a hook before and after its turn (DeepSpeed 0.19.8, runtime/zero/parameter_offload.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from zerocalc.frameworks.zero3_adapters import (
    AROUND,
    Parts,
    parts_of,
    up_to_first_gradient,
    with_adapter,
)
from zerocalc.frameworks.zero3_prefetch import Gathers, Layers, Node, Stack, Windows, gathers
from zerocalc.model.architecture import Architecture, on_rank
from zerocalc.model.module import Module
from zerocalc.sharding.call_order import called, listed_whole
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job

REPEATING = frozenset({"full", "operators"})
"""Kinds of recomputation that call a layer's modules again."""


def windowed(job: Job, rank: Rank) -> Gathers | None:
    """What a micro-batch gathers where windows decide it; ``None`` where the modules, or how they
    are called, are not known.
    """
    known = stack(job, rank)
    if known is None:
        return None
    zero = job.zero
    windows = Windows(
        zero.prefetch_bucket_size,
        zero.max_live_parameters,
        zero.max_reuse_distance,
        zero.persistence_threshold,
        bool(zero.secondary_group),
    )
    return gathers(known, windows, job.training.accumulation > 1)


def stack(job: Job, rank: Rank) -> Stack | None:
    """The modules of one model-parallel rank, in the order of the forward pass; ``None`` where
    they, or what is called when, are not known.
    """
    arch, split = rank.arch, job.parallel.tp
    if arch is None:
        return None
    parts: list[Parts] | None = None
    if rank.adapters is not None and rank.split == 1 and not job.experts_apart:
        parts = parts_of(rank.adapters, arch)
        if parts is None:
            return None
    elif not listed_whole(job, rank):
        return None
    first, *inside, last = (
        parts if parts is not None else [None for _ in range(len(arch.groups) + 2)]
    )
    *norms, head = arch.after or (None,)
    ends = (
        _leaves([m for m in norms if m], split, last),
        _leaves([head] if head else [], split, last),
    )
    if arch.tied:
        ends = ends[0], (Node(shared=True),)
    before = _leaves(arch.before, split, first)
    if parts is None:
        return Stack((*before, Node()), tuple(_layers(job, arch, split, inside)), *ends)
    if job.training.recompute not in REPEATING:
        before = tuple([node._replace(silent=True) for node in before])
    return Stack((*before, Node()), tuple(_layers(job, arch, split, inside)), *ends, AROUND)


def _layers(
    job: Job, arch: Architecture, split: int, parts: Sequence[Parts | None]
) -> Iterator[Layers]:
    training = job.training
    how = ("whole" if training.reentrant else "cut") if training.recompute in REPEATING else "none"
    started = how != "none"  # recomputation needs inputs with gradients, and has them made so
    for (count, modules), part in zip(arch.groups, parts, strict=True):
        nodes = [_node(module, split, part) for module in modules]
        again = (
            how == "none"
            or training.recompute_every == 1
            or any(row[-1] for module in modules for row in module.saved_rows)
        )
        left = count
        while part is not None and left and not started:
            first, started = _up_to_first_gradient(modules, nodes)
            yield Layers(1, first)
            left -= 1
        if left:
            yield Layers(left, Node((), tuple(nodes)), how if again else "none")


def _up_to_first_gradient(modules: Iterable[Module], nodes: Iterable[Node]) -> tuple[Node, bool]:
    """A layer whose input has no gradient, and whether what leaves it has one."""
    out: list[Node] = []
    started = False
    for module, node in zip(modules, nodes, strict=True):
        own = node
        if not started:
            own, started = up_to_first_gradient(
                [name.rpartition(".")[2] for name, _ in called(module)], node
            )
        out.append(own)
    return Node((), tuple(out), silent=not started), started


def _node(module: Module, split: int, part: Parts | None) -> Node:
    """A module that calls those of its linear layers and norms, unless it is one tensor's."""
    if module.experts > 1:
        return Node(tuple([on_rank(row, split) for row in module.parameter_rows]))
    inner = _leaves((module,), split, part)
    return inner[0] if len(inner) == 1 else Node((), inner)


def _leaves(modules: Iterable[Module], split: int, part: Parts | None) -> tuple[Node, ...]:
    """The modules that have tensors, and activations, of some modules, as they are called;
    ``part``: the adapters among them, of a frozen model.
    """
    out: list[Node] = []
    for module in modules:
        for _, numbers in called(module):
            rows = [module.parameter_rows[number] for number in numbers]
            node = Node(tuple([on_rank(row, split) for row in rows]))
            if part is not None:
                node = with_adapter(node, [name for name, _, _ in rows], part)
            out.append(node)
    return tuple(out)
