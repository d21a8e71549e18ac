"""What is saved for backward, by the instant of a step: which activation terms are alive where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Literal

from zerocalc.formulas.activations import saved_bytes
from zerocalc.ledger import MOMENTS, Block, Moment, Term, record, replaced, term

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
optimizer step.
"""
OTHERS_IN_FLIGHT = "other micro-batches in flight"
"""The term of what a pipeline stage holds for micro-batches other than the one in backward."""


def _at(moment: Moment) -> Callable[[Term], bool]:
    return lambda made: moment in made.moments


def _through(*moments: Moment) -> Callable[[Term], bool]:
    return lambda made: all(moment in made.moments for moment in moments)


def _in_first_layer(made: Term) -> bool:
    """What outlives the layers, and what the end of backward has of one layer and of other
    micro-batches: the start of forward has as much.
    """
    return made.moments == ("backward_end",) or _through("forward", "backward_end")(made)


def _after_layers(made: Term) -> bool:
    """Buffers that outlive backward, and other micro-batches; this one's activations are gone."""
    return made.name == OTHERS_IN_FLIGHT or _through("backward_end", "step")(made)


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


@record
class LayerInstant:
    """An instant of a layer's backward. ``alive``: what is left of its saved tensors, and what
    backward works on; ``gradients``: the elements of its weights that have gradients, all for
    ``None``; ``among``: 1 where what the layer saved is in ``alive`` and not among the others'.
    """

    alive: Alive
    gradients: int | None
    among: int


UNKNOWN_LAYER = (LayerInstant(Alive((), 0), None, 0),)
"""The instants of a layer of which nothing is known."""


class Saved:
    """The activations of one rank. ``made`` lists them at the moments of the ledger; those on the
    host cost a GPU nothing. ``layer_bytes``: what one layer saves, the largest. ``stream``: a
    layer's input. ``instants``: those of a layer's backward.
    """

    def __init__(
        self,
        made: Block,
        layer_bytes: int = 0,
        stream: Term | None = None,
        instants: Callable[[], tuple[LayerInstant, ...]] = lambda: UNKNOWN_LAYER,
    ) -> None:
        self.stream, self._instants = stream, instants
        self.elsewhere = tuple([each for each in made.terms if each.tier != "gpu"])
        self.unknown, self.assumptions = made.unknown, made.assumptions
        self.layer_bytes = layer_bytes
        self._terms = tuple([each for each in made.terms if each.tier == "gpu"])
        self._at: dict[Position, Alive] = {}
        self._of_layers: dict[int, Alive] = {}

    def at(self, position: Position) -> Alive:
        """What is alive at an instant."""
        found = self._at.get(position)
        if found is None:
            chosen = ALIVE[position]
            found = self._at[position] = alive([each for each in self._terms if chosen(each)])
        return found

    @cached_property
    def instants(self) -> tuple[LayerInstant, ...]:
        """The instants of a layer's backward, from its last operation to its first."""
        return self._instants()

    @cached_property
    def input(self) -> Alive:
        """The input of a layer."""
        return alive([self.stream] if self.stream is not None else [])

    @cached_property
    def _kinds(self) -> tuple[list[Term], list[Term], list[Term]]:
        """What is there whichever layer runs, what all layers save, and other micro-batches."""
        around = [each for each in self._terms if _through("forward", "backward_end")(each)]
        names = {each.name for each in around}
        spread = [each for each in self.at("last layer").terms if each.name not in names]
        return around, spread, [each for each in self._terms if each.name == OTHERS_IN_FLIGHT]

    def of_layers(self, layers: int, whole: int) -> Alive:
        """What is saved while ``layers`` of ``whole`` layers are left to run backward: of other
        micro-batches all, of this one what these layers have saved.
        """
        found = self._of_layers.get(layers)
        if found is None:
            found = self._of_layers[layers] = self._left(layers, whole)
        return found

    def _left(self, layers: int, whole: int) -> Alive:
        around, spread, others = self._kinds
        if layers <= 0:
            return alive([*around, *others])
        if layers >= whole or (others and layers > whole // 2):
            return alive([*around, *spread])
        if layers > whole // 2:
            return alive([*around, *_without(spread, whole - layers, self.layer_bytes)])
        made = term(
            f"saved by the first {layers} layers" if layers > 1 else "saved by the first layer",
            "activations",
            MOMENTS,
            saved_bytes,
            bytes_per_layer=self.layer_bytes,
            layers=layers,
            pipeline_parallel=1,
            micro_batches_in_flight=1,
        )
        return alive([*around, *others, *([made] if made.bytes else [])])


def _without(spread: list[Term], layers: int, layer_bytes: int) -> list[Term]:
    """The terms of all layers, less what ``layers`` of them have saved: of each in proportion."""
    whole = sum([each.bytes for each in spread])
    left = max(0, whole - layers * layer_bytes)
    out: list[Term] = []
    for each in spread:
        amount = left * each.bytes // whole if whole else 0
        made = term(
            each.name,
            each.kind,
            MOMENTS,
            saved_bytes,
            bytes_per_layer=amount,
            layers=1,
            pipeline_parallel=1,
            micro_batches_in_flight=1,
        )
        out.append(replaced(made, source=each.source))
    return out
