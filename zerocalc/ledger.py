"""Moments, terms and the ledger that joins them: the memory in use at each moment of a step."""

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
    """Make ``cls`` a dataclass with slots that type checkers take as frozen; a really frozen one
    costs twice as much to make.

    All records share one comparison and one representation: compiling them for each class would be
    a good part of a start. Records are not hashable.
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
"""Moments of a step, in order: ``load`` before it, ``forward`` at the end of forward, ``loss`` when
the logits' gradient exists, ``backward_start`` with all saved activations and no new gradient,
``backward_end`` with all gradients and the working set of the first layer (of the largest, if
layers differ), ``step`` in the optimizer step. Between the two ends of backward memory is linear in
depth.
"""

STATE_KINDS = frozenset({"weights", "gradients", "optimizer"})
ACTIVATION_KINDS = frozenset({"activations", "checkpoints", "logits"})
GATHERED = "all-gathered parameters"
"""What answers call entries of kind ``gathered`` together, also where they are unknown."""
DYNAMIC_KINDS = frozenset(
    {"gradients", "copies", "activations", "checkpoints", "logits", "buffers", "gathered"}
)
"""Kinds that are allocated and freed within a step; fragmentation is a fraction of them."""


def span(first: Moment, last: Moment) -> tuple[Moment, ...]:
    """The moments from ``first`` to ``last``, both included; empty if ``last`` is earlier.

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
    """An amount of memory, with its formula."""

    name: str
    """Name of what is in memory, unique on its tier."""
    kind: Kind
    """What it is in memory for."""
    tier: Tier
    """Where it is: on one GPU, or in the CPU memory or on the NVMe drives of one node."""
    bytes: int
    """Its size [bytes]."""
    moments: tuple[Moment, ...]
    """The moments at which it is alive: a `span`."""
    formula: Formula[Any]
    """The formula that gives ``bytes``."""
    inputs: dict[str, int | float]
    """The formula's inputs by name, in elements, bytes and plain numbers."""
    source: str
    """Where the formula is from."""
    assumption: str | None = None
    """What it rests on, in words; ``None`` if nothing is assumed."""


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
    """A term on the GPU whose bytes ``formula`` gives for ``inputs``, which are keywords."""
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
    """The term, alive at ``moments``, a `span`, instead."""
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
    """A copy of a record with some fields changed. Raises `TypeError` for a field it lacks."""
    return dataclasses.replace(entry, **changes)  # type: ignore[type-var]


@dataclass
class Block:
    """Terms that depend on the same few inputs: a ledger is joined from blocks."""

    terms: tuple[Term, ...]
    """The amounts of memory."""
    unknown: tuple[str, ...] = ()
    """What is in memory too and in no term, by name."""
    assumptions: tuple[str, ...] = ()
    """What the terms rest on, one sentence each."""

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """Bytes of the block on the GPU at each of `MOMENTS`, without fragmentation; for callers
        that keep blocks and add their sums.
        """
        return sums_by_moment(self.terms)


def block(
    terms: Iterable[Term], unknown: tuple[str, ...] = (), assumptions: tuple[str, ...] = ()
) -> Block:
    """A block of ``terms``, with names of what is unknown and the assumptions, in words."""
    return Block(tuple(terms), unknown, assumptions)


EMPTY = block(())


def sums_by_moment(terms: Iterable[Term]) -> tuple[int, ...]:
    """Bytes on the GPU at each of `MOMENTS`, without fragmentation.

    Raises `KeyError` for a term whose moments are no `span`.
    """
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
    """All terms of a step, on every tier, and their sums on the GPU."""

    terms: tuple[Term, ...]
    """Every amount of memory."""
    sums: tuple[int, ...]
    """Bytes on the GPU at each of `MOMENTS`, without fragmentation."""
    unknown: tuple[str, ...]
    """What is in memory too and in no term, by name."""
    assumptions: tuple[str, ...]
    """What the terms rest on, one sentence each."""

    @property
    def peak_bytes(self) -> int:
        """The largest sum over the moments [bytes per GPU]."""
        return max(self.sums)

    @property
    def peak_moment(self) -> Moment:
        """The first moment at which the peak is reached."""
        return MOMENTS[self.sums.index(max(self.sums))]

    def alive(self, moment: Moment) -> tuple[Term, ...]:
        """The terms on the GPU that are alive at a moment, without fragmentation."""
        return tuple(
            t
            for t in self.terms
            if moment in t.moments and t.tier == "gpu" and t.kind != "fragmentation"
        )

    def total(self, kinds: frozenset[str], moment: Moment | None = None) -> int:
        """Bytes on the GPU of the terms of some kinds: all, or those alive at ``moment``."""
        return sum(
            [
                t.bytes
                for t in self.terms
                if t.kind in kinds and t.tier == "gpu" and (moment is None or moment in t.moments)
            ]
        )


def join(blocks: Iterable[Block]) -> Ledger:
    """The ledger of all terms of ``blocks``; what is unknown and assumed is listed once."""
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
