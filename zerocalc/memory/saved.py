"""What is saved for backward, by the instant of a step: which activation terms are alive where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from zerocalc.ledger import Block, Moment, Term, record

Position = Literal[
    "idle",
    "first layer",
    "last layer",
    "head",
    "loss",
    "last layer in backward",
    "first layer in backward",
    "after the layers",
    "step",
]
"""Instants of a step: no micro-batch is under way; forward in the first and in the last layer, and
in the head; the loss; backward in the last and in the first layer, and once no layer is left; the
optimizer step."""


def _at(moment: Moment) -> Callable[[Term], bool]:
    return lambda made: moment in made.moments


def _through(*moments: Moment) -> Callable[[Term], bool]:
    return lambda made: all(moment in made.moments for moment in moments)


def _in_first_layer(made: Term) -> bool:
    """What lives through the step, and what the end of backward has of one layer and of other
    micro-batches: the start of forward has as much.
    """
    return made.moments == ("backward_end",) or _through("forward", "backward_end")(made)


def _after_layers(made: Term) -> bool:
    """Buffers that outlive backward, and other micro-batches; this one's activations are gone."""
    return made.name == OTHERS_IN_FLIGHT or _through("backward_end", "step")(made)


OTHERS_IN_FLIGHT = "other micro-batches in flight"
"""The term of what a pipeline stage holds for micro-batches other than the one in backward."""

ALIVE: dict[Position, Callable[[Term], bool]] = {
    "idle": lambda made: False,
    "first layer": _in_first_layer,
    "last layer": _through("forward", "backward_start"),
    "head": _at("forward"),
    "loss": _at("loss"),
    "last layer in backward": _at("backward_start"),
    "first layer in backward": _at("backward_end"),
    "after the layers": _after_layers,
    "step": _at("step"),
}


@record
class Alive:
    """Activation terms that are alive together, and their bytes."""

    terms: tuple[Term, ...]
    bytes: int


def alive(terms: Iterable[Term]) -> Alive:
    """Terms that are alive together."""
    listed = tuple(terms)
    return Alive(listed, sum([each.bytes for each in listed]))


class Saved:
    """The activations of one rank by position. ``block`` lists them, at the moments of the ledger;
    those on the host are alive there all the same, and cost a GPU nothing.
    """

    def __init__(self, made: Block) -> None:
        self.elsewhere = tuple([each for each in made.terms if each.tier != "gpu"])
        self._terms = tuple([each for each in made.terms if each.tier == "gpu"])
        self.unknown, self.assumptions = made.unknown, made.assumptions
        self._at: dict[Position, Alive] = {}

    def at(self, position: Position) -> Alive:
        """What is alive at an instant."""
        found = self._at.get(position)
        if found is None:
            chosen = ALIVE[position]
            found = self._at[position] = alive([each for each in self._terms if chosen(each)])
        return found


NOTHING = Block(())
"""The activations of a part of a rank beside another part that has them."""
