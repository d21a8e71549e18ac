"""Alternating updates and learned augmented residuals (Gemma 3n; AltUp, arXiv 2301.13310; LAuReL,
arXiv 2411.07501): several residual streams, of which a layer computes on one and corrects the
others by it.

Source: transformers 5.24.0, models/gemma3n/modeling_gemma3n.py.
"""

from __future__ import annotations

from typing import Literal, get_args

from zerocalc.ledger import record
from zerocalc.model.kind import Kind
from zerocalc.model.module import ParameterRow, linear, replicated, tensor
from zerocalc.model.trace import FULL, NormKind, Tape, Value

Part = Literal["spread", "predict", "correct", "join"]
NORM_KIND: NormKind = "rms_power"


@record
class AltUp:
    """The values of one part of alternating updates."""

    hidden: int
    streams: int
    part: Part
    """Before the layers the streams are made of the embedding (``spread``), after them they are
    joined (``join``). A layer begins with a prediction of all streams, of which it reads one
    (``predict``), and ends with a correction of them (``correct``).
    """
    correct_scale: bool = True
    """The first stream is multiplied by a weight before it takes the layer's input in."""


@record
class Laurel:
    """The values of a residual of low rank."""

    hidden: int
    rank: int


def altup_weights(u: AltUp) -> tuple[ParameterRow, ...]:
    """The tensors of alternating updates: a matrix for each further stream before and after the
    layers; in a layer those of prediction and correction, which the prediction lists.
    """
    if u.part in {"spread", "join"}:
        return tuple(
            [
                row
                for i in range(u.streams - 1)
                for row in linear(f"altup.{u.part}.{i}", u.hidden, u.hidden)
            ]
        )
    if u.part == "correct":
        return ()
    return (
        tensor("altup.output_scale", u.hidden),
        *linear("altup.correction", u.streams, u.streams),
        *linear("altup.prediction", u.streams * u.streams, u.streams),
        *linear("altup.router", u.streams, u.hidden),
        replicated("altup.norm.weight", u.hidden),
    )


def alternate(tape: Tape, x: Value, u: AltUp) -> Value:
    """One part of alternating updates; returns the stream that is read next."""
    if u.part in {"spread", "join"}:
        return _resized(tape, x, u.hidden, u.streams, u.part)
    weights = _router(
        tape, x if u.part == "correct" else x.viewed("active stream", (u.hidden,)), u.streams
    )
    if u.part == "predict":
        coefficients = tape.linear(
            weights, "altup.prediction", "prediction's coefficients", (u.streams, u.streams)
        )
        tape.keep(coefficients)
        tape.keep(
            Value(
                "streams, side by side",
                coefficients.dtype,
                x.divisor,
                (tape.run.tokens, u.hidden, u.streams),
            )
        )
        return tape.stream("streams, predicted", u.streams * u.hidden).viewed(
            "active stream, predicted", (u.hidden,)
        )
    tape.keep(
        tape.like(
            tape.linear(weights, "altup.correction", "corrections", (u.streams,)), "corrections + 1"
        )
    )
    tape.small(
        "innovation for every stream", tape.wide, x.divisor, (tape.run.tokens, u.streams, u.hidden)
    )
    first = tape.stream("first stream, corrected", u.hidden)
    return tape.scale(first, "first stream, scaled") if u.correct_scale else first


def _router(tape: Tape, x: Value, streams: int) -> Value:
    """The tanh of a projection of the normed stream, in fp32: how much it says of each stream."""
    normed = tape.norm(x, "altup norm", NORM_KIND, "altup router input")
    scores = tape.cast(
        tape.linear(normed, "altup.router", "scores of the streams", (streams,)), FULL
    )
    weights = tape.like(scores, "tanh of the scores")
    tape.keep(weights)
    return tape.cast(weights, x.dtype, "weights of the streams")


def _resized(tape: Tape, x: Value, hidden: int, streams: int, part: Part) -> Value:
    """Every further stream is a projection, as long as the first one is: a root of a mean of
    squares, and the quotient of two.
    """
    tokens = tape.run.tokens
    tape.keep(x)
    tape.small("mean square of the first stream, and its root", tape.wide, x.divisor, (tokens, 2))
    for i in range(streams - 1):
        read = x if part == "spread" else x.viewed(f"stream {i + 1}", (hidden,))
        projected = tape.linear(read, f"altup.{part}.{i}", f"stream {i + 1}", (hidden,), x.divisor)
        tape.keep(tape.cast(projected, tape.wide))
        tape.small(
            f"mean square of stream {i + 1}, and its root", tape.wide, x.divisor, (tokens, 2)
        )
        tape.small(
            f"stream {i + 1} times the first one's length", tape.wide, x.divisor, (tokens, hidden)
        )
    return tape.stream("embedding" if part == "spread" else "final norm input", hidden)


def laurel_weights(r: Laurel) -> tuple[ParameterRow, ...]:
    """The tensors of a residual of low rank: down and up again, then a norm."""
    return (
        *linear("laurel.down", r.rank, r.hidden),
        *linear("laurel.up", r.hidden, r.rank),
        replicated("laurel.norm.weight", r.hidden),
    )


def augment(tape: Tape, x: Value, r: Laurel) -> None:
    """A low-rank product of the normed stream, normed: it is added to the residual stream beside
    attention's result.
    """
    low = tape.linear(x, "laurel.down", "low-rank residual", (r.rank,))
    tape.norm(
        tape.linear(low, "laurel.up", "augmented residual", (x.shape[-1],), x.divisor),
        "laurel norm",
        NORM_KIND,
        "augmented residual, normed",
    )


ALTUP = Kind(
    component="other",
    values=AltUp,
    sizes=("hidden", "streams"),
    weights=altup_weights,
    forward=alternate,
    role="stream",
    words={"part": get_args(Part)},
)
LAUREL = Kind(
    component="other",
    values=Laurel,
    sizes=("hidden", "rank"),
    weights=laurel_weights,
    forward=augment,
    role="side",
)
