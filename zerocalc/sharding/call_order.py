"""The tensors of a model in the orders in which frameworks meet them: as the model lists them, as
its modules are called, and as their gradients arrive.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from zerocalc.model.architecture import Architecture, listed_last, on_rank
from zerocalc.model.module import Module
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job

CALLED = (
    *(
        "q",
        "q_down",
        "q_norm",
        "q_up",
        "k",
        "k_norm",
        "v",
        "kv_down",
        "kv_norm",
        "kv_up",
        "qkv",
        "out",
    ),
    *("gate", "gate_activation", "up", "up_activation", "down"),
)
"""The order in which the parts of a module are called; parts with other names come behind, as they
are listed.
"""


class Tensors(NamedTuple):
    """Elements of all tensors, and their numbers in the order in which the model lists them, and in
    which their gradients arrive.
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
            for _, numbers in called(module):
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


def called(module: Module) -> list[tuple[str, list[int]]]:
    """A module's own modules with the numbers of their tensors, as they are called."""
    rows: dict[str, list[int]] = {}
    for number, (name, _, _) in enumerate(module.parameter_rows):
        rows.setdefault(name.rpartition(".")[0], []).append(number)
    if "mlp.up" in rows:  # a module without tensors
        rows["mlp.gate_activation" if "mlp.gate" in rows else "mlp.up_activation"] = []
    return sorted(rows.items(), key=lambda item: _place(item[0]))


def _place(name: str) -> int:
    last = name.rpartition(".")[2]
    return CALLED.index(last) if last in CALLED else len(CALLED)
