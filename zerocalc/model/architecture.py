"""The architecture as one list: embedding, groups of layers, and what follows them; its sums, and
its parts on ranks and pipeline stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import replaced
from zerocalc.model.module import Module, ParameterRow, Replicated, linear
from zerocalc.spec.parallel import Parallel

if TYPE_CHECKING:
    from zerocalc.model.trace import Tape

Modules: TypeAlias = tuple[Module, ...]


class Architecture:
    """The modules of a model: ``before`` and ``after`` once, each group's as often as it says.

    ``parameters`` is Ψ, all of them [elements], a tied head once. ``saves`` tells whether what the
    layers keep for backward is known, ``frozen`` whether only adapters are trained, ``streams`` how
    many residual streams go from layer to layer.
    """

    def __init__(
        self,
        before: Modules,
        groups: tuple[tuple[int, Modules], ...],
        after: Modules,
        *,
        vocab: int,
        hidden: int,
        tied: bool,
        tape: Tape | None,
        streams: int = 1,
    ) -> None:
        self.before, self.groups, self.after = before, groups, after
        self.vocab, self.hidden, self.tied = vocab, hidden, tied
        self.tape, self.streams = tape, streams
        self.saves, self.frozen = tape is not None, tape is not None and tape.frozen
        self.layers = sum([count for count, _ in groups])
        self.before_elements = elements(before)
        self.group_elements = [(count, elements(modules)) for count, modules in groups]
        self.after_elements = elements(after)
        in_layers = sum([count * amount for count, amount in self.group_elements])
        self.parameters = self.before_elements + in_layers + self.after_elements

    def cut(
        self, before: Modules, groups: tuple[tuple[int, Modules], ...], after: Modules
    ) -> Architecture:
        """A part of it."""
        whole = self.tied and bool(before) and bool(after)
        return Architecture(
            before,
            groups,
            after,
            vocab=self.vocab,
            hidden=self.hidden,
            tied=whole,
            tape=self.tape,
            streams=self.streams,
        )

    @property
    def layer(self) -> Modules:
        """The modules of the first layers."""
        return self.groups[0][1]

    def on_rank(self, tensor_parallel: int) -> tuple[int, list[tuple[int, int]], int]:
        """Elements on one tensor-parallel rank: before the layers, in a layer of each group (how
        often, how many), after the layers.
        """
        if tensor_parallel == 1:
            return self.before_elements, self.group_elements, self.after_elements
        groups = [(count, elements(modules, tensor_parallel)) for count, modules in self.groups]
        return elements(self.before, tensor_parallel), groups, elements(self.after, tensor_parallel)

    def all_groups(self) -> tuple[tuple[int, Modules], ...]:
        """How often, and which modules: what stands before the layers, the groups of layers, what
        stands after them.
        """
        return (1, self.before), *self.groups, (1, self.after)

    def in_order(self) -> list[Modules]:
        """The modules in the order of the forward pass, layer by layer, alike ones together."""
        return [
            self.before,
            *[modules for count, modules in self.groups for _ in range(count)],
            self.after,
        ]

    @property
    def active_elements(self) -> int:
        """Elements that one token passes through: of all experts, the chosen ones."""
        return self._over(_active)

    @property
    def linear_elements(self) -> int:
        """Weights of linear layers; a tied head's too, since the product with it is computed like
        the others.
        """
        return self._over(_linear) + (self.vocab * self.hidden if self.tied else 0)

    @property
    def matrix_elements(self) -> int:
        """Elements of the matrices inside the layers."""
        return sum(
            count * sum([math.prod(shape) for _, shape, _ in _rows(modules) if len(shape) > 1])
            for count, modules in self.groups
        )

    @property
    def factored_elements(self) -> int:
        """A row and a column sum per matrix, vectors whole ([Adafactor], arXiv 1804.04235 §3)."""
        return self._over(_factored)

    def _over(self, amount: Callable[[Modules], int]) -> int:
        return (
            amount(self.before)
            + sum([count * amount(modules) for count, modules in self.groups])
            + amount(self.after)
        )


def _rows(modules: Iterable[Module]) -> list[ParameterRow]:
    return [row for module in modules for row in module.parameter_rows]


def _active(modules: Iterable[Module]) -> int:
    return sum([module.active_elements for module in modules])


def _linear(modules: Iterable[Module]) -> int:
    return sum([math.prod(shape) for _, shape, linear in _rows(modules) if linear])


def _factored(modules: Iterable[Module]) -> int:
    return sum([math.prod(shape[:-2]) * sum(shape[-2:]) for _, shape, _ in _rows(modules)])


def shapes(modules: Iterable[Module]) -> list[tuple[int, ...]]:
    """The shapes of all parameters of some modules."""
    return [shape for _, shape, _ in _rows(modules)]


def listed_last(module: Module) -> bool:
    """Whether a layer lists a module behind those that are called after it."""
    return module.listed_last


def elements(modules: Iterable[Module], tensor_parallel: int = 1) -> int:
    """Parameters of some modules, or a tensor-parallel rank's part of them [elements]."""
    if tensor_parallel == 1:
        return sum(
            [math.prod(shape) for module in modules for _, shape, _ in module.parameter_rows]
        )
    return sum([on_rank(row, tensor_parallel) for row in _rows(modules)])


def on_rank(row: ParameterRow, tensor_parallel: int) -> int:
    """A tensor-parallel rank's part of one tensor [elements]."""
    whole = math.prod(row[1])
    if tensor_parallel == 1 or isinstance(row, Replicated):
        return whole
    return ceil_div(whole, tensor_parallel)


READ_BY_ACTIVATIONS = ("mlp.up.weight", "mlp.gate.weight", "experts.up", "experts.gate")


def widest(modules: Modules) -> int:
    """Numbers a token that an MLP's activation reads, its gate's and all chosen experts' with them:
    the widest of some modules.
    """
    found = [0]
    for module in modules:
        if module.component in ("mlp", "experts"):
            axis = -1 if module.transposed else -2
            read = [
                shape
                for name, shape, _ in module.parameter_rows
                if name.endswith(READ_BY_ACTIVATIONS)
            ]
            each = (
                bool(read) and len(read[0]) == 2
            )  # a matrix for each expert, or all experts' rows in one
            found.append(
                sum([shape[axis] for shape in read])
                * module.used
                // (module.experts if each else 1)
            )
    return max(found)


def products(modules: Modules, *, attention: bool, gated: bool) -> list[tuple[int, ...]]:
    """Shapes of the linear layers of some modules, (outputs, inputs); queries, keys and values as
    one, or gate and up, where that is how they run.
    """
    shapes: list[tuple[int, ...]] = []
    for module in modules:
        together = (("attention.q.", "attention.k.", "attention.v.") if attention else ()) + (
            ("mlp.gate.", "mlp.up.") if gated else ()
        )
        outputs = inputs = 0
        for name, kept, is_linear in module.parameter_rows:
            shape = kept[::-1] if module.transposed and len(kept) == 2 else kept
            if is_linear and name.startswith(together):
                outputs, inputs = outputs + shape[0], shape[1]
            elif is_linear:
                shapes.append(shape)
        if outputs:
            shapes.append((outputs, inputs))
    return shapes


def chunk_layers(layers: int, parallel: Parallel, ends: int) -> list[int]:
    """Layers of each chunk of a pipeline, in order; those that do not divide go to the first
    chunks, unless the first or last stage's are given.

    ``ends``: as how many layers the embedding counts, and the head, in the assignment
    (torchtitan: 1).

    >>> chunk_layers(7, Parallel(pp=4), 0), chunk_layers(32, Parallel(pp=4), 1)
    ([2, 2, 2, 1], [8, 9, 8, 7])
    >>> chunk_layers(126, Parallel(pp=3, first_stage_layers=41), 0)
    [41, 43, 42]
    """
    stages, first, last = parallel.pp, parallel.first_stage_layers, parallel.last_stage_layers
    if first is not None or last is not None:
        between = stages - (first is not None) - (last is not None)
        per, more = divmod(layers - (first or 0) - (last or 0), between) if between else (0, 0)
        rest = [per + (index < more) for index in range(between)]
        each = [*([] if first is None else [first]), *rest, *([] if last is None else [last])]
        return [count // parallel.interleave for _ in range(parallel.interleave) for count in each]
    chunks = stages * parallel.interleave
    per, more = divmod(layers + 2 * ends, chunks)
    counts = [per + (index < more) for index in range(chunks)]
    counts[0] -= ends
    counts[-1] -= ends
    return counts


def stage_layers(arch: Architecture, parallel: Parallel, ends: int) -> list[tuple[int, ...]]:
    """How many layers of each group every stage of a pipeline has; chunk c of stage i is the
    (c·stages + i)-th.
    """
    stages, chunks = parallel.pp, parallel.interleave
    starts = [0, *accumulate(chunk_layers(arch.layers, parallel, ends))]
    bounds = [0, *accumulate([count for count, _ in arch.groups])]
    return [
        tuple(
            [
                sum(
                    [
                        max(0, min(starts[c + 1], last) - max(starts[c], first))
                        for c in range(stage, stages * chunks, stages)
                    ]
                )
                for first, last in pairwise(bounds)
            ]
        )
        for stage in range(stages)
    ]


def pipeline_stage(
    arch: Architecture, stage: int, stages: int, layers: tuple[int, ...]
) -> Architecture:
    """What one pipeline stage holds: so many layers of each group, on the first stage the
    embedding, on the last the head, a tied one's copy.
    """
    if stages == 1:
        return arch
    groups = [
        (here, modules) for here, (_, modules) in zip(layers, arch.groups, strict=True) if here
    ]
    after = arch.after if stage == stages else ()
    tied = arch.tied and stage == stages
    if tied:
        copied = linear("head", arch.vocab, arch.hidden)
        after = tuple(
            [
                replaced(m, parameter_rows=(*copied, *m.parameter_rows))
                if m.component == "head"
                else m
                for m in after
            ]
        )
    return arch.cut(arch.before if stage == 1 else (), tuple(groups), after)
