"""Short convolutions between two gates (LFM2): their tensors, and their forward pass up to the
residual addition, as causal-conv1d runs it.

Source: transformers 5.24.0, models/lfm2/modeling_lfm2.py; causal-conv1d 1.6,
causal_conv1d_interface.py (its backward keeps its input).
"""

from __future__ import annotations

from zerocalc.model.kind import Kind
from zerocalc.model.module import ParameterRow, linear, tensor
from zerocalc.model.trace import Tape, Value


def convolution_weights(*, hidden: int, conv: int, bias: bool = False) -> tuple[ParameterRow, ...]:
    """The tensors of a gated short convolution of width ``conv``."""
    rows: tuple[ParameterRow, ...] = (
        *linear("conv.in", 3 * hidden, hidden, bias=bias),
        tensor("conv.weight", hidden, 1, conv),
    )
    return (
        *rows,
        *((tensor("conv.bias", hidden),) if bias else ()),
        *linear("conv.out", hidden, hidden, bias=bias, split="rows"),
    )


def convolve(tape: Tape, x: Value, *, hidden: int) -> Value:
    """C · conv(B · x): each product keeps both its factors, and the convolution its input."""
    tp = tape.run.tp
    three = tape.linear(tape.entering(x), "conv.in", "input and its two gates", (3 * hidden,), tp)
    tape.keep(three)
    gated = Value("gated input", three.dtype, tp, (tape.run.tokens, hidden))
    tape.keep(gated)
    convolved = tape.like(gated, "convolved input")
    tape.keep(convolved)
    return tape.linear(
        tape.like(convolved, "convolved input, gated"),
        "conv.out",
        "convolution result",
        (hidden,),
        tape.run.sequence,
    )


CONVOLUTION = Kind(
    component="other",
    sizes=("hidden", "conv"),
    weights=convolution_weights,
    forward=convolve,
)
