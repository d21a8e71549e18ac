"""The MLP: plain (two matrices) or gated (three); its tensors, and its forward pass up to the residual addition."""

from __future__ import annotations

from zerocalc.modules.attention import entering, leaving
from zerocalc.modules.base import ParameterRow, linear
from zerocalc.modules.tape import FULL, Tape, Value


def matrices(
    *, hidden: int, ffn: int, gated: bool = True, bias: bool = False, down_bias: bool | None = None, fused: bool = False, transposed: bool = False,
    out: int | None = None,
) -> tuple[ParameterRow, ...]:  # fmt: skip
    """The tensors of an MLP: two matrices, or three when gated; ``fused`` makes one tensor of gate and up."""
    inner = 2 * ffn if gated and fused else ffn
    rows = linear("mlp.up", inner, hidden, bias=bias, transposed=transposed)
    if gated and not fused:
        rows += linear("mlp.gate", ffn, hidden, bias=bias, transposed=transposed)
    return rows + linear("mlp.down", out or hidden, ffn, bias=bias if down_bias is None else down_bias, transposed=transposed)


def feed(
    tape: Tape, x: Value, *, ffn: int, gated: bool = True, fused: bool = False, out: int | None = None, activation: str | None = None,
    residual_dropout: bool = False, **_: object,
) -> Value:  # fmt: skip
    """The forward pass of an MLP. ``activation``: silu where it is gated and gelu where it is not, unless told otherwise."""
    again = tape.region("mlp", x)
    x = entering(tape, x)
    tp = tape.run.tp
    activation = activation or ("silu" if gated else "gelu")
    if not gated:
        inner = activate(tape, tape.linear(x, "mlp.up", f"{activation} input", (ffn,), tp), activation, "down input")
    elif tape.how.gated == "fused":
        both = tape.linear(x, "mlp.gate", "gate and up", (2 * ffn,), tp)
        tape.keep(both)
        inner = Value("down input", both.dtype, tp, (tape.run.tokens, ffn))
    else:
        inner = gate_up(tape, x, (ffn,), fused, activation)
    result = tape.linear(inner, "mlp.down", "mlp result", (out or x.shape[-1],), tape.run.sequence)
    if again:
        tape.rebuilding = False
    return leaving(tape, result, residual_dropout)


def gate_up(tape: Tape, x: Value, width: tuple[int, ...], fused: bool, activation: str, layer: str = "mlp") -> Value:
    """activation(gate) · up, each an operation of its own."""
    tp = tape.run.tp
    if fused:
        gate = up = tape.linear(x, f"{layer}.up", "gate and up", (*width[:-1], 2 * width[-1]), tp)
    else:
        gate = tape.linear(x, f"{layer}.gate", "gate", width, tp)
        up = tape.linear(x, f"{layer}.up", "up", width, tp)
    half = Value("gate", gate.dtype, tp, (gate.shape[0], *width))
    half.base = gate.base
    activated = activate(tape, half, activation, "activated gate")
    tape.keep(activated)
    tape.keep(up)
    return tape.like(activated, "down input")


def activate(tape: Tape, x: Value, activation: str, name: str) -> Value:
    """An activation function. In one kernel it keeps its input, or its output where that is enough; written out, what its operations keep."""
    out = tape.like(x, name)
    if activation in KEEP_OUTPUT:
        tape.keep(out)
        return tape.like(out, name) if activation == "relu2" else out
    if activation == "gelu_new" and tape.how.activation == "as_written":
        return _gelu_new(tape, x, name)
    tape.keep(x)
    if activation == "quick_gelu" and tape.how.activation == "as_written":
        tape.keep(tape.like(x, f"sigmoid of {x.name}"))
    return out


KEEP_OUTPUT = frozenset({"relu", "relu2"})


def _gelu_new(tape: Tape, x: Value, name: str) -> Value:
    """x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))); autocast takes powers in fp32."""
    cubed = tape.cast(x, FULL) if tape.autocast else x
    tape.keep(cubed)
    tape.keep(tape.like(cubed, f"tanh of {x.name}"))
    tape.keep(tape.like(x, f"half of {x.name}"))
    one_plus = tape.like(cubed, f"1 + tanh of {x.name}")
    tape.keep(one_plus)
    return tape.like(one_plus, name)
