"""The architecture as one list: embedding, a layer repeated, and what follows the layers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from zerocalc.modules.attention import attention
from zerocalc.modules.base import Layout, Module, ParameterRow
from zerocalc.modules.embedding import embedding
from zerocalc.modules.head import head
from zerocalc.modules.mlp import mlp
from zerocalc.modules.norm import norm
from zerocalc.spec.model import Dimensions, Model, dimensions


class Architecture:
    """The modules of a model: ``before`` and ``after`` once, ``layer`` as often as ``layers`` says.

    ``parameters`` is Ψ, all of them [elements], a tied head once; ``layer_elements`` are those of one layer.
    """

    def __init__(self, model: Model, d: Dimensions, run: Layout | None) -> None:
        bias = model.kind == "gpt2"
        self.model = model
        self.layers = d.layers
        self.vocab = d.vocab
        self.hidden = d.hidden
        self.before = (embedding(model, d, run),)
        self.layer = (
            norm("attention norm", d, bias, run), attention(model, d, run), norm("mlp norm", d, bias, run), mlp(model, d, run),
        )  # fmt: skip
        self.after = (norm("final norm", d, bias, run), head(model, d, run))
        self.before_elements = elements(self.before)
        self.layer_elements = elements(self.layer)
        self.after_elements = elements(self.after)
        self.parameters = self.before_elements + d.layers * self.layer_elements + self.after_elements

    @property
    def linear_elements(self) -> int:
        """Weights of linear layers; a tied head's too, since the product with it is computed like the others."""
        tied = self.vocab * self.hidden if self.model.tied_embeddings else 0
        return self.layers * _linear(self.layer) + _linear(self.before + self.after) + tied

    @property
    def matrix_elements(self) -> int:
        """Elements of the matrices inside the layers."""
        return self.layers * sum([math.prod(shape) for _, shape, _ in _rows(self.layer) if len(shape) > 1])

    @property
    def factored_elements(self) -> int:
        """A row and a column sum per matrix, vectors whole ([Adafactor], arXiv 1804.04235 §3)."""
        return self.layers * _factored(self.layer) + _factored(self.before + self.after)


def _rows(modules: Iterable[Module]) -> list[ParameterRow]:
    return [row for module in modules for row in module.parameter_rows]


def _linear(modules: Iterable[Module]) -> int:
    return sum([math.prod(shape) for _, shape, linear in _rows(modules) if linear])


def _factored(modules: Iterable[Module]) -> int:
    return sum([sum(shape) for _, shape, _ in _rows(modules)])


def elements(modules: Iterable[Module]) -> int:
    """Parameters of some modules [elements]."""
    return sum([math.prod(shape) for module in modules for _, shape, _ in module.parameter_rows])


def architecture(model: Model, run: Layout | None = None) -> Architecture | None:
    """The modules of a model, with what they save when a layout is given; ``None`` for a bare number of parameters."""
    return None if model.is_bare else Architecture(model, dimensions(model), run)
