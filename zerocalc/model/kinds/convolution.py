"""Short convolutions between two gates (LFM2): their tensors, and their forward pass up to the
residual addition, as causal-conv1d runs it.

Source: transformers 5.24.0, models/lfm2/modeling_lfm2.py; causal-conv1d 1.6,
causal_conv1d_interface.py (its backward keeps its input).
"""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.model.kind import Kind
from zerocalc.model.module import ParameterRow, linear, tensor
from zerocalc.model.trace import Tape, Value


@record
class Convolution:
    """The values of a gated short convolution, of width ``conv``."""

    hidden: int
    conv: int
    bias: bool = False


def convolution_weights(c: Convolution) -> tuple[ParameterRow, ...]:
    """The tensors of a gated short convolution."""
    rows: tuple[ParameterRow, ...] = (
        *linear("conv.in", 3 * c.hidden, c.hidden, bias=c.bias),
        tensor("conv.weight", c.hidden, 1, c.conv),
    )
    return (
        *rows,
        *((tensor("conv.bias", c.hidden),) if c.bias else ()),
        *linear("conv.out", c.hidden, c.hidden, bias=c.bias, split="rows"),
    )


def convolve(tape: Tape, x: Value, c: Convolution) -> Value:
    """C · conv(B · x): each product keeps both its factors, and the convolution its input."""
    tp = tape.run.tp
    three = tape.linear(tape.entering(x), "conv.in", "input and its two gates", (3 * c.hidden,), tp)
    tape.keep(three)
    gated = Value("gated input", three.dtype, tp, (tape.run.tokens, c.hidden))
    tape.keep(gated)
    convolved = tape.like(gated, "convolved input")
    tape.keep(convolved)
    return tape.linear(
        tape.like(convolved, "convolved input, gated"),
        "conv.out",
        "convolution result",
        (c.hidden,),
        tape.run.sequence,
    )


CONVOLUTION = Kind(
    component="other",
    values=Convolution,
    sizes=("hidden", "conv"),
    weights=convolution_weights,
    forward=convolve,
)
