"""A model as its modules are called, one inside another: what frameworks that hook into modules
see.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zerocalc.formulas.buffers import touched
from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.zero3_prefetch import Gathers, Layers, Node, Stack, Windows, gathers
from zerocalc.model.architecture import Architecture, listed_last, on_rank
from zerocalc.model.module import Module
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job

if TYPE_CHECKING:
    from zerocalc.sharding.peft_calls import Parts

REPEATING = frozenset({"full", "operators"})
"""Kinds of recomputation that call a layer's modules again."""


class Tensors(NamedTuple):
    """Elements of all tensors, and their numbers in the order in which the model lists them, and in
    which their gradients come.
    """

    sizes: list[int]
    listed: list[int]
    arriving: list[int]


def listed_whole(job: Job, rank: Rank) -> bool:
    """Whether a rank has the whole list of tensors, and trains them all: no bare number, no
    adapters, no stage of a pipeline, no experts on ranks of their own.
    """
    return (
        rank.arch is not None
        and rank.trainable == rank.parameters
        and job.parallel.pp == 1
        and not job.experts_apart
    )


def trained(job: Job, rank: Rank, weights_first: bool = False) -> Tensors | None:
    """As `tensors`, of those that are trained: all, or the adapters' matrices, layer by layer;
    ``None`` where they are not known.
    """
    if rank.arch is None:
        return None
    if rank.adapters is not None and rank.split == 1:
        sizes = [math.prod(shape) for shape in rank.adapters.shapes]
        return Tensors(sizes, [*range(len(sizes))], [*range(len(sizes))][::-1])
    return tensors(job, rank.arch, weights_first) if listed_whole(job, rank) else None


def touched_elements(job: Job, rank: Rank) -> list[int]:
    """For each rank, the elements of all tensors with a part in its share; its share alone where
    tensors are not known.
    """
    share = ceil_div(rank.shardable("trainable"), rank.shards)
    if rank.arch is None or not listed_whole(job, rank):
        return [share] * rank.shards
    sizes, listed, _ = tensors(job, rank.arch)
    return [
        amount for amount, _ in touched([sizes[number] for number in listed], rank.shards, share)
    ]


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
        from zerocalc.sharding.peft_calls import AROUND, parts_of  # most jobs have no adapters

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


def tensors(job: Job, arch: Architecture, weights_first: bool = False) -> Tensors:
    """All tensors of one model-parallel rank; ``weights_first``: linear layers give the gradient of
    their weight before that of their bias.

    So they do under autocast too, where both are cast for each product (torch 2.13, recorded).
    Hugging Face's layers with RMSNorms list these behind attention and MLP; what lists them in the
    order of the forward pass has biases in its norms.
    """
    split = job.parallel.tp
    weights_first = weights_first or job.recipe.autocast
    sizes: list[int] = []
    listed: list[int] = []
    arriving: list[int] = []
    for count, modules, in_layer in [
        (1, arch.before, False),
        *[(count, group, True) for count, group in arch.groups],
        (1, arch.after, False),
    ]:
        own: list[int] = []
        order: list[int] = []
        late: list[int] = []
        backward: list[int] = []
        for module in modules:
            rows: list[int] = []
            for _, numbers in _called(module):
                coming = numbers if _weight_first(module, numbers, weights_first) else numbers[::-1]
                backward = [len(own) + len(rows) + numbers.index(row) for row in coming] + backward
                rows += numbers
            places = {row: len(own) + place for place, row in enumerate(rows)}
            own += [on_rank(module.parameter_rows[row], split) for row in rows]
            (late if in_layer and listed_last(module) else order).extend(
                [places[row] for row in range(len(rows))]
            )
        for _ in range(count):
            first = len(sizes)
            listed += [first + number for number in (*order, *late)]
            arriving = [first + number for number in backward] + arriving
            sizes += own
    return Tensors(sizes, listed, arriving)


def _weight_first(module: Module, rows: list[int], linear: bool) -> bool:
    """Whether a module's weight has its gradient before its bias: norms' have, those of linear
    layers where ``linear`` says so.

    A linear layer that keeps its weight transposed is none to PyTorch: its product is written with
    its bias first.
    """
    return bool(rows) and (
        len(module.parameter_rows[rows[0]][1]) == 1 or (linear and not module.transposed)
    )


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
    from zerocalc.sharding.peft_calls import up_to_first_gradient  # as above

    out: list[Node] = []
    started = False
    for module, node in zip(modules, nodes, strict=True):
        own = node
        if not started:
            own, started = up_to_first_gradient(
                [name.rpartition(".")[2] for name, _ in _called(module)], node
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
        for _, numbers in _called(module):
            rows = [module.parameter_rows[number] for number in numbers]
            node = Node(tuple([on_rank(row, split) for row in rows]))
            if part is not None:
                from zerocalc.sharding.peft_calls import with_adapter  # as above

                node = with_adapter(node, [name for name, _, _ in rows], part)
            out.append(node)
    return tuple(out)


def _called(module: Module) -> list[tuple[str, list[int]]]:
    """A module's own modules with the numbers of their tensors, as they are called."""
    rows: dict[str, list[int]] = {}
    for number, (name, _, _) in enumerate(module.parameter_rows):
        rows.setdefault(name.rpartition(".")[0], []).append(number)
    order = module.called
    if not order:
        return [*rows.items()]
    named = {_last(name) for name in rows}
    for part in order:
        if part not in named:
            rows[part] = []  # a module without tensors
    places = {part: place for place, part in enumerate(order)}
    return sorted(rows.items(), key=lambda item: places.get(_last(item[0]), len(order)))


def _last(name: str) -> str:
    return name.rpartition(".")[2]
