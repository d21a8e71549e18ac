"""Moments, terms and the ledger that joins them: where memory is at each instant of a training
step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, dataclass_transform

from zerocalc.formulas.formula import Formula, Ratio

T = TypeVar("T")
P = ParamSpec("P")
AnyRatio: TypeAlias = Ratio[Any]


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots that the type checker takes as frozen (a really frozen one costs twice
    as much to make).

    Comparison and text are the same functions for all: writing and compiling them for each class is
    a good part of a start.
    """
    made: Any = dataclass(slots=True, repr=False, eq=False, match_args=False)(cls)
    made.__eq__, made.__repr__, made.__hash__ = _equal, _shown, None
    kept: type[T] = made
    return kept


def _names(one: Any) -> Iterable[str]:
    names: Iterable[str] = one.__dataclass_fields__
    return names


def _equal(one: Any, other: object) -> bool:
    return type(one) is type(other) and all(
        getattr(one, name) == getattr(other, name) for name in _names(one)
    )


def _shown(one: Any) -> str:
    fields = ", ".join(f"{name}={getattr(one, name)!r}" for name in _names(one))
    return f"{type(one).__qualname__}({fields})"


Moment = Literal["load", "forward", "loss", "backward_start", "backward_end", "step"]
Tier = Literal["gpu", "cpu", "nvme"]
Kind = Literal[
    "weights",
    "gradients",
    "optimizer",
    "copies",
    "activations",
    "checkpoints",
    "logits",
    "buffers",
    "gathered",
    "runtime",
    "fragmentation",
]

MOMENTS: tuple[Moment, ...] = ("load", "forward", "loss", "backward_start", "backward_end", "step")
"""Instants of a step, in order: `forward` is its end, `loss` when the logits' gradient exists,
`backward_start` with all activations and no new gradient, `backward_end` with all gradients and the
first layer's working set (the largest's where layers differ). Between those two memory is linear in
depth.
"""

STATE_KINDS = frozenset({"weights", "gradients", "optimizer"})
ACTIVATION_KINDS = frozenset({"activations", "checkpoints", "logits"})
GATHERED = "all-gathered parameters"
"""What answers call entries of kind ``gathered`` together, also where they are unknown."""
DYNAMIC_KINDS = frozenset(
    {"gradients", "copies", "activations", "checkpoints", "logits", "buffers", "gathered"}
)
"""Kinds that come and go within a step: what fragmentation is a fraction of."""


def span(first: Moment, last: Moment) -> tuple[Moment, ...]:
    """The moments from ``first`` to ``last``, both included.

    >>> span("forward", "backward_start")
    ('forward', 'loss', 'backward_start')
    """
    return MOMENTS[MOMENTS.index(first) : MOMENTS.index(last) + 1]


_BOUNDS = {
    MOMENTS[first:end]: (first, end) for end in range(1, len(MOMENTS) + 1) for first in range(end)
}
"""Every span of moments, as the index of its first moment and the index after its last."""


@record
class Term:
    """An amount of memory: how large, on which tier, when it is alive (a span of moments), and the
    formula that says so.
    """

    name: str
    kind: Kind
    tier: Tier
    bytes: int
    moments: tuple[Moment, ...]
    formula: Formula[Any]
    inputs: dict[str, int | float]
    source: str
    assumption: str | None = None


def term(
    name: str,
    kind: Kind,
    moments: tuple[Moment, ...],
    formula: Formula[P],
    assumption: str | None = None,
    /,
    *args: P.args,
    **inputs: P.kwargs,
) -> Term:
    """A term on the GPU whose bytes are what ``formula`` gives for ``inputs`` (keywords only)."""
    return Term(
        name,
        kind,
        "gpu",
        formula.function(*args, **inputs),
        moments,
        formula,
        inputs,  # type: ignore[arg-type]
        formula.source,
        assumption,
    )


def alive_at(entry: Term, moments: tuple[Moment, ...]) -> Term:
    """A term at other moments."""
    if entry.moments == moments:
        return entry
    return Term(
        entry.name,
        entry.kind,
        entry.tier,
        entry.bytes,
        moments,
        entry.formula,
        entry.inputs,
        entry.source,
        entry.assumption,
    )


def replaced(entry: T, **changes: Any) -> T:
    """A copy of a term or a collective with some fields changed."""
    return dataclasses.replace(entry, **changes)  # type: ignore[type-var]


@dataclass
class Block:
    """Some terms that depend on few things: what a ledger is joined from."""

    terms: tuple[Term, ...]
    unknown: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """The block's part of the ledger's sums by moment; for those who keep blocks and add their
        sums.
        """
        return sums_by_moment(self.terms)


def block(
    terms: Iterable[Term], unknown: tuple[str, ...] = (), assumptions: tuple[str, ...] = ()
) -> Block:
    """A block of ``terms``."""
    return Block(tuple(terms), unknown, assumptions)


EMPTY = block(())


def sums_by_moment(terms: Iterable[Term]) -> tuple[int, ...]:
    """Bytes on the GPU at each moment, fragmentation aside."""
    # What appears at each moment less what is gone by then, summed up at the end: two additions a
    # term however long it lives.
    change = [0] * (len(MOMENTS) + 1)
    for entry in terms:
        if entry.tier == "gpu" and entry.kind != "fragmentation":
            first, end = _BOUNDS[entry.moments]
            change[first] += entry.bytes
            change[end] -= entry.bytes
    return tuple(accumulate(change[:-1]))


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
        return tuple(
            t
            for t in self.terms
            if moment in t.moments and t.tier == "gpu" and t.kind != "fragmentation"
        )

    def total(self, kinds: frozenset[str], moment: Moment | None = None) -> int:
        """Bytes on the GPU of all terms of some kinds, or of those alive at a moment."""
        return sum(
            [
                t.bytes
                for t in self.terms
                if t.kind in kinds and t.tier == "gpu" and (moment is None or moment in t.moments)
            ]
        )


def join(blocks: Iterable[Block]) -> Ledger:
    """The union of blocks: their terms, and the sums of those by moment."""
    terms: list[Term] = []
    unknown: list[str] = []
    assumptions: list[str] = []
    for part in blocks:
        terms += part.terms
        unknown += part.unknown
        assumptions += part.assumptions
    return Ledger(
        tuple(terms),
        sums_by_moment(terms),
        tuple(dict.fromkeys(unknown)),
        tuple(dict.fromkeys(assumptions)),
    )
