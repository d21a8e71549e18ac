"""A kind of module as one record: which values describe it, its tensors, and its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field
from typing import Any, Literal, TypedDict, get_args

from zerocalc.ledger import record
from zerocalc.model.module import Component, Module, ParameterRow
from zerocalc.model.trace import NormKind, Tape, Value
from zerocalc.spec.implementation import UNKNOWN, Activation

Role = Literal["mixer", "stream", "side", "norm", "listed"]
"""What a forward pass does with a module.

- ``mixer``: reads the normed residual stream; its result is added to the stream.
- ``stream``: reads the stream; its result is the stream that follows.
- ``side``: reads the stream, or its norm; the stream stays as it is.
- ``norm``: norms the stream, or a mixer's result.
- ``listed``: tensors that are spelled out, and the operations that they take part in.
"""
IDLE = "idle"
"""The value of a module whose tensors the pass does not go through, such as a decoder's
cross-attention without an encoder.
"""
MIXER_VALUES = ("scaled", "picked", "residual_scale")
"""Values of every mixer: what it reads is scaled, or some tokens are picked, and the stream is
scaled before its result is added.
"""
PASS_VALUES = frozenset({IDLE, *MIXER_VALUES})
"""Values that the pass reads itself."""

NORMS: tuple[str, ...] = get_args(NormKind)
PRECISIONS = ("fp32", "compute")
"""A dtype: fp32, or the one in which products run."""
ACTIVATIONS: tuple[str, ...] = (*get_args(Activation), UNKNOWN)


class Facts(TypedDict, total=False):
    """Fields of a `Module` that follow from its values."""

    transposed: bool
    attends: tuple[int, int, int, int]
    listed_last: bool
    called: tuple[str, ...]


NO_FACTS: Facts = {}


def no_facts(_values: Any) -> Facts:
    """What a `Module` says besides where nothing follows from its values."""
    return NO_FACTS


def no_tensors(_values: Any) -> tuple[ParameterRow, ...]:
    """The tensors of a module that has none."""
    return ()


def no_forward(_tape: Tape, x: Value, _values: Any) -> Value:
    """The forward pass of a module that leaves what it reads as it is."""
    return x


@record
class Kind:
    """A kind of module: what its values are, and what follows from them."""

    component: Component
    """Where its parameters and activations are counted, unless a module says otherwise."""
    values: type
    """The class of records of its values."""
    sizes: tuple[str, ...]
    """Values without which it has no tensors: whole numbers of at least 1."""
    weights: Callable[..., tuple[ParameterRow, ...]] = no_tensors
    """From its values to its tensors."""
    forward: Callable[..., Any] = no_forward
    """Its forward pass, from the tape, what it reads and its values to its result; norms' is the
    tape's own.
    """
    role: Role = "mixer"
    reads: Literal["normed", "stream"] = "normed"
    """What a ``side`` reads."""
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values that are words, and the words that each of them can be."""
    norms: tuple[str, ...] = ()
    """Words in the names of norms that belong to a mixer of this kind."""
    facts: Callable[..., Facts] = no_facts
    """From its values to what else a `Module` says."""
    modules: Callable[..., list[Module]] | None = None
    """In place of ``weights``, the modules of a step that is several or spells its tensors out:
    called with the step and what it saves.
    """

    def known(self) -> dict[str, bool]:
        """Every value that a module of this kind takes, and whether it needs it."""
        fields: dict[str, Any] = getattr(self.values, "__dataclass_fields__", {})
        own = {name: one.default is MISSING for name, one in fields.items()}
        shared = (IDLE, *MIXER_VALUES) if self.role == "mixer" else (IDLE,)
        return own | dict.fromkeys(shared, False)

    def read(self, values: Mapping[str, Any]) -> Any:
        """The record of a module's values."""
        if PASS_VALUES.isdisjoint(values):
            return self.values(**values)
        return self.values(**{key: values[key] for key in values if key not in PASS_VALUES})
