"""A kind of module as one record: which values describe it, its tensors, and its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field
from functools import cache
from types import FunctionType
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

NORMS: tuple[str, ...] = get_args(NormKind)
PRECISIONS = ("fp32", "compute")
"""A dtype: fp32, or the one in which products run."""
ACTIVATIONS: tuple[str, ...] = (*get_args(Activation), UNKNOWN)


class Facts(TypedDict, total=False):
    """Fields of a `Module` that follow from its values."""

    transposed: bool
    attends: tuple[int, int, int, int]
    listed_last: bool


def no_tensors() -> tuple[ParameterRow, ...]:
    """The tensors of a module that has none."""
    return ()


def no_forward(_tape: Tape, x: Value) -> Value:
    """The forward pass of a module that leaves what it reads as it is."""
    return x


@record
class Kind:
    """A kind of module.

    Its functions are called with those of a module's values that they name as keyword-only
    parameters, or, where there is a class ``values``, with one record of all of them.
    """

    component: Component
    """Where its parameters and activations are counted, unless a module says otherwise."""
    sizes: tuple[str, ...]
    """Values without which it has no tensors: whole numbers of at least 1."""
    weights: Callable[..., tuple[ParameterRow, ...]] = no_tensors
    """Its tensors."""
    forward: Callable[..., Any] = no_forward
    """Its forward pass, from the tape and what the module reads to its result; norms' is the
    tape's own.
    """
    role: Role = "mixer"
    reads: Literal["normed", "stream"] = "normed"
    """What a ``side`` reads."""
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values that are words, and the words that each of them can be."""
    norms: tuple[str, ...] = ()
    """Words in the names of norms that belong to a mixer of this kind."""
    facts: Callable[..., Facts] | None = None
    """What else a `Module` says."""
    modules: Callable[..., list[Module]] | None = None
    """In place of ``weights``, the modules of a step that is several or spells its tensors out:
    called with the step and what it saves.
    """
    values: type | None = None

    def known(self) -> dict[str, bool]:
        """Every value that a module of this kind takes, and whether it needs it."""
        shared = MIXER_VALUES if self.role == "mixer" else ()
        found = dict.fromkeys((*self.words, IDLE, *shared), False)
        for taker in (self.weights, self.forward, self.facts, self.modules, self.values):
            for name, needed in (taken(taker) if taker is not None else {}).items():
                found[name] = found.get(name, False) or needed
        return found

    def call(self, function: Callable[..., Any], values: Mapping[str, Any], *given: Any) -> Any:
        """What ``function`` returns for what is ``given`` and the values that it takes."""
        if self.values is not None:
            return function(*given, self.values(**chosen(self.values, values)))
        return function(*given, **chosen(function, values))


@cache
def taken(taker: Callable[..., Any]) -> dict[str, bool]:
    """The values that a function, or a class of records, takes by name; whether it needs them."""
    if isinstance(taker, FunctionType):
        code, defaults = taker.__code__, taker.__kwdefaults__ or {}
        names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        return {name: name not in defaults for name in names}
    fields: dict[str, Any] = getattr(taker, "__dataclass_fields__", {})
    return {name: one.default is MISSING for name, one in fields.items()}


def chosen(taker: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some values that a function or a class of records takes."""
    names = taken(taker)
    return {name: value for name, value in values.items() if name in names}
