"""The architecture as one list: embedding, a layer repeated, and what follows the layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from zerocalc.modules.attention import attention
from zerocalc.modules.base import Layout, Module, ParameterRow
from zerocalc.modules.embedding import embedding
from zerocalc.modules.head import head
from zerocalc.modules.mlp import mlp
from zerocalc.modules.norm import norm
from zerocalc.spec.model import Dimensions, Model, dimensions

if TYPE_CHECKING:
    from zerocalc.spec.stack import ModuleSpec, Stack

Modules: TypeAlias = tuple[Module, ...]


class Architecture:
    """The modules of a model: ``before`` and ``after`` once, each group's as often as it says.

    ``parameters`` is Ψ, all of them [elements], a tied head once. ``saves`` tells whether what the layers keep for backward is known.
    """

    def __init__(
        self, before: Modules, groups: tuple[tuple[int, Modules], ...], after: Modules, *, vocab: int, hidden: int, tied: bool, saves: bool
    ) -> None:
        self.before, self.groups, self.after = before, groups, after
        self.vocab, self.hidden, self.tied, self.saves = vocab, hidden, tied, saves
        self.layers = sum([count for count, _ in groups])
        self.before_elements = elements(before)
        self.group_elements = [(count, elements(modules)) for count, modules in groups]
        self.after_elements = elements(after)
        in_layers = sum([count * amount for count, amount in self.group_elements])
        self.parameters = self.before_elements + in_layers + self.after_elements

    @property
    def layer(self) -> Modules:
        """The modules of a layer, where all layers are alike."""
        return self.groups[0][1]

    @property
    def linear_elements(self) -> int:
        """Weights of linear layers; a tied head's too, since the product with it is computed like the others."""
        return self._over(_linear) + (self.vocab * self.hidden if self.tied else 0)

    @property
    def matrix_elements(self) -> int:
        """Elements of the matrices inside the layers."""
        return sum(count * sum([math.prod(shape) for _, shape, _ in _rows(modules) if len(shape) > 1]) for count, modules in self.groups)

    @property
    def factored_elements(self) -> int:
        """A row and a column sum per matrix, vectors whole ([Adafactor], arXiv 1804.04235 §3)."""
        return self._over(_factored)

    def _over(self, amount: Callable[[Modules], int]) -> int:
        return amount(self.before) + sum([count * amount(modules) for count, modules in self.groups]) + amount(self.after)


def _rows(modules: Iterable[Module]) -> list[ParameterRow]:
    return [row for module in modules for row in module.parameter_rows]


def _linear(modules: Iterable[Module]) -> int:
    return sum([math.prod(shape) for _, shape, linear in _rows(modules) if linear])


def _factored(modules: Iterable[Module]) -> int:
    return sum([math.prod(shape[:-2]) * sum(shape[-2:]) for _, shape, _ in _rows(modules)])


def elements(modules: Iterable[Module]) -> int:
    """Parameters of some modules [elements]."""
    return sum([math.prod(shape) for module in modules for _, shape, _ in module.parameter_rows])


def architecture(model: Model, run: Layout | None = None) -> Architecture | None:
    """The modules of a model, with what they save when a layout is given; ``None`` for a bare number of parameters."""
    if model.is_bare:
        return None
    return _described(model, dimensions(model), run) if model.stack is None else _written(model.stack)


def _described(model: Model, d: Dimensions, run: Layout | None) -> Architecture:
    """A decoder of a known kind, from its dimensions."""
    bias = model.kind == "gpt2"
    layer = (norm("attention norm", d, bias, run), attention(model, d, run), norm("mlp norm", d, bias, run), mlp(model, d, run))
    after = (norm("final norm", d, bias, run), head(model, d, run))
    tied = bool(model.tied_embeddings)
    return Architecture((embedding(model, d, run),), ((d.layers, layer),), after, vocab=d.vocab, hidden=d.hidden, tied=tied, saves=run is not None)


def _written(stack: Stack) -> Architecture:
    """An architecture that is written out module by module; what it saves is not known."""
    from zerocalc.modules.written import written  # most jobs have no such architecture

    def modules(specs: tuple[ModuleSpec, ...]) -> Modules:
        return tuple([module for spec in specs for module in written(spec)])

    groups = tuple([(group.count, modules(group.modules)) for group in stack.groups])
    tied = next((spec for spec in stack.after if spec.type == "head" and spec.values.get("tied")), None)
    vocab, hidden = (int(tied.values["vocab"]), int(tied.values["dim"])) if tied else (0, 0)
    return Architecture(modules(stack.before), groups, modules(stack.after), vocab=vocab, hidden=hidden, tied=tied is not None, saves=False)
