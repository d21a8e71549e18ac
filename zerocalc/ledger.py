"""Moments, terms and the ledger that joins them: where memory is at each instant of a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, dataclass_transform

from zerocalc.formulas.formula import Formula

T = TypeVar("T")
P = ParamSpec("P")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots that the type checker takes as frozen (a really frozen one costs twice as much to make)."""
    return dataclass(slots=True)(cls)


Moment = Literal["load", "forward", "loss", "backward_start", "backward_end", "step"]
Tier = Literal["gpu", "cpu", "nvme"]
Kind = Literal[
    "weights", "gradients", "optimizer", "copies", "activations", "checkpoints", "logits", "buffers", "gathered", "runtime", "fragmentation"
]

MOMENTS: tuple[Moment, ...] = ("load", "forward", "loss", "backward_start", "backward_end", "step")
"""Instants of a step, in order: `forward` is its end, `loss` when the logits' gradient exists, `backward_start` with all activations and
no new gradient, `backward_end` with all gradients and the first layer's working set. Between those two memory is linear in depth."""

STATE_KINDS = frozenset({"weights", "gradients", "optimizer"})
ACTIVATION_KINDS = frozenset({"activations", "checkpoints", "logits"})
DYNAMIC_KINDS = frozenset({"gradients", "copies", "activations", "checkpoints", "logits", "buffers", "gathered"})
"""Kinds that come and go within a step: what fragmentation is a fraction of."""

_INDEX = {moment: index for index, moment in enumerate(MOMENTS)}


def span(first: Moment, last: Moment) -> tuple[Moment, ...]:
    """The moments from ``first`` to ``last``, both included.

    >>> span("forward", "backward_start")
    ('forward', 'loss', 'backward_start')
    """
    return MOMENTS[_INDEX[first] : _INDEX[last] + 1]


@record
class Term:
    """An amount of memory: how large, on which tier, when it is alive, and the formula that says so."""

    name: str
    kind: Kind
    tier: Tier
    bytes: int
    moments: tuple[Moment, ...]
    formula: Formula[Any]
    inputs: dict[str, int | float]
    source: str
    assumption: str | None = None


def term(name: str, kind: Kind, moments: tuple[Moment, ...], formula: Formula[P], /, *args: P.args, **inputs: P.kwargs) -> Term:
    """A term on the GPU whose bytes are what ``formula`` gives for ``inputs`` (keywords only)."""
    return Term(name, kind, "gpu", formula.function(*args, **inputs), moments, formula, inputs, formula.source)  # type: ignore[arg-type]


def replaced(entry: T, **changes: Any) -> T:
    """A copy of a term or a collective with some fields changed."""
    return dataclasses.replace(entry, **changes)  # type: ignore[type-var]


@record
class Block:
    """Some terms that depend on few things, with their GPU sums by moment: what a ledger is joined from."""

    terms: tuple[Term, ...]
    sums: tuple[int, ...]
    unknown: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def block(terms: Iterable[Term], unknown: tuple[str, ...] = (), assumptions: tuple[str, ...] = ()) -> Block:
    """A block of ``terms``; fragmentation stays out of the sums by moment."""
    kept = tuple(terms)
    sums = [0] * len(MOMENTS)
    index = _INDEX
    for entry in kept:
        if entry.tier == "gpu" and entry.kind != "fragmentation":
            amount = entry.bytes
            for moment in entry.moments:
                sums[index[moment]] += amount
    return Block(kept, tuple(sums), unknown, assumptions)


@record
class Ledger:
    """All terms of a step, their sums by moment on the GPU, and what could not be known."""

    terms: tuple[Term, ...]
    sums: tuple[int, ...]
    unknown: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """The largest sum over the moments [bytes per GPU]."""
        return max(self.sums)

    @property
    def peak_moment(self) -> Moment:
        """The first moment at which the peak is reached."""
        return MOMENTS[self.sums.index(max(self.sums))]

    def alive(self, moment: Moment) -> tuple[Term, ...]:
        """The GPU terms alive at a moment, fragmentation aside."""
        return tuple(t for t in self.terms if moment in t.moments and t.tier == "gpu" and t.kind != "fragmentation")

    def total(self, kinds: frozenset[str], moment: Moment | None = None) -> int:
        """Bytes on the GPU of all terms of some kinds, or of those alive at a moment."""
        return sum(t.bytes for t in self.terms if t.kind in kinds and t.tier == "gpu" and (moment is None or moment in t.moments))


def join(blocks: Iterable[Block]) -> Ledger:
    """The union of blocks: their terms, and their sums moment by moment."""
    terms: list[Term] = []
    unknown: list[str] = []
    assumptions: list[str] = []
    columns: list[tuple[int, ...]] = []
    for part in blocks:
        terms += part.terms
        unknown += part.unknown
        assumptions += part.assumptions
        columns.append(part.sums)
    sums = tuple(map(sum, zip(*columns, strict=True)))
    return Ledger(tuple(terms), sums, tuple(dict.fromkeys(unknown)), tuple(dict.fromkeys(assumptions)))
