"""The MLP: plain (two matrices) or gated (three); its tensors, and its forward pass up to the
residual addition.
"""

from __future__ import annotations

from zerocalc.model.kind import ACTIVATIONS, NORMS, Facts, Kind
from zerocalc.model.module import ParameterRow, linear
from zerocalc.model.trace import FULL, MASK, Tape, Value


def matrices(
    *,
    hidden: int,
    ffn: int,
    gated: bool = True,
    bias: bool = False,
    down_bias: bool | None = None,
    fused: bool = False,
    transposed: bool = False,
    out: int | None = None,
) -> tuple[ParameterRow, ...]:
    """The tensors of an MLP: two matrices, or three when gated; ``fused`` makes one tensor of gate
    and up.
    """
    inner = 2 * ffn if gated and fused else ffn
    rows = (
        linear("mlp.gate", ffn, hidden, bias=bias, transposed=transposed)
        if gated and not fused
        else ()
    )
    rows += linear("mlp.up", inner, hidden, bias=bias, transposed=transposed)
    return rows + linear(
        "mlp.down",
        out or hidden,
        ffn,
        bias=bias if down_bias is None else down_bias,
        transposed=transposed,
        split="rows",
    )


def feed(
    tape: Tape,
    x: Value,
    *,
    ffn: int,
    gated: bool = True,
    fused: bool = False,
    out: int | None = None,
    activation: str | None = None,
    dropout: bool = False,
    residual_dropout: bool = False,
    inner_norm: str | None = None,
    sparse: bool = False,
) -> Value:
    """The forward pass of an MLP; ``dropout`` and ``inner_norm`` are of what goes into the last
    product.

    ``sparse``: of the gate only the largest numbers stay. ``activation``: silu where it is gated
    and gelu where it is not, unless told otherwise.
    """
    again = tape.region("mlp", x)
    x = tape.entering(x)
    tp = tape.run.tp
    activation = activation or ("silu" if gated else "gelu")
    if not gated:
        inner = activate(
            tape,
            tape.linear(x, "mlp.up", f"{activation} input", (ffn,), tp),
            activation,
            "down input",
        )
    elif tape.how.gated == "fused":
        both = tape.linear(x, "mlp.gate", "gate and up", (2 * ffn,), tp)
        tape.keep(both)
        inner = Value("down input", both.dtype, tp, (tape.run.tokens, ffn))
    else:
        inner = gate_up(tape, x, (ffn,), fused, activation, sparse=sparse)
    if inner_norm:
        inner = tape.norm(inner, "inner norm", inner_norm, "down input, normed")
    if dropout:
        inner = tape.dropout(inner, "down input")
    result = tape.linear(inner, "mlp.down", "mlp result", (out or x.shape[-1],), tape.run.sequence)
    if again:
        tape.rebuilding = False
    return tape.leaving(result, residual_dropout)


def gate_up(
    tape: Tape,
    x: Value,
    width: tuple[int, ...],
    fused: bool,
    activation: str,
    layer: str = "mlp",
    *,
    sparse: bool = False,
) -> Value:
    """activation(gate) · up, each an operation of its own."""
    tp = tape.run.tp
    if fused:
        gate = up = tape.linear(x, f"{layer}.up", "gate and up", (*width[:-1], 2 * width[-1]), tp)
    else:
        gate = tape.linear(x, f"{layer}.gate", "gate", width, tp)
        up = tape.linear(x, f"{layer}.up", "up", width, tp)
    half = Value("gate", gate.dtype, tp, (gate.shape[0], *width))
    half.base = gate.base
    # what a deviation or more above the mean is kept, less that bound: relu(gate - mean -
    # factor·deviation)
    if sparse:
        tape.keep(half)
        tape.small("deviation of the gate", half.dtype, tp, (half.shape[0], 1))
        half = activate(tape, tape.like(half, "gate less its bound"), "relu", "gate, the largest")
    if activation == "clamped_swiglu":
        return _clamped_swiglu(tape, half, up)
    activated = activate(tape, half, activation, "activated gate")
    tape.keep(activated)
    tape.keep(up)
    return tape.like(activated, "down input")


def activate(tape: Tape, x: Value, activation: str, name: str) -> Value:
    """An activation function. In one kernel it keeps its input, or its output where that is enough;
    written out, what its operations keep.
    """
    out = tape.like(x, name)
    if activation in KEEP_OUTPUT:
        tape.keep(out)
        return tape.like(out, name) if activation == "relu2" else out
    if activation in WRITTEN_OUT and tape.how.activation == "as_written":
        return WRITTEN_OUT[activation](tape, x, name)
    tape.keep(x)
    return out


KEEP_OUTPUT = frozenset({"relu", "relu2", "sigmoid", "tanh"})


def _clamped_swiglu(tape: Tape, gate: Value, up: Value) -> Value:
    """(up + 1) · gate · σ(α·gate), both clamped first (GPT-OSS): what each operation keeps."""
    tape.keep(gate)
    tape.keep(up)
    for part in ("clamped gate", "sigmoid of the gate", "up + 1", "activated gate"):
        tape.keep(tape.like(gate, part))
    return tape.like(gate, "down input")


def _quick_gelu(tape: Tape, x: Value, name: str) -> Value:
    """The product of x and σ(1.702·x)."""
    tape.keep(x)
    tape.keep(tape.like(x, f"sigmoid of {x.name}"))
    return tape.like(x, name)


def _gelu_fast(tape: Tape, x: Value, name: str) -> Value:
    """The product of x/2 and 1 + tanh(0.798·x·(1 + 0.0447·x·x))."""
    tape.keep(x)
    for part in ("multiple", "scaled", "1 + square", "tanh", "half", "1 + tanh"):
        tape.keep(tape.like(x, f"{part} of {x.name}"))
    return tape.like(x, name)


def _xielu(tape: Tape, x: Value, name: str) -> Value:
    """αₚ·x² + β·x where x is positive, αₙ·(exp(x) - 1 - x) + β·x elsewhere (arXiv 2411.13010), αₚ
    and αₙ trained; autocast takes powers in fp32.
    """
    tape.keep(x)
    wide = tape.cast(x, FULL) if tape.autocast else x
    for part in ("multiple", "exp - 1", "exp - 1 - x"):
        tape.keep(tape.like(wide, f"{part} of {x.name}"))
    tape.small(f"sign of {x.name}", MASK, x.divisor, x.shape)
    return tape.like(wide, name)


def _gelu_new(tape: Tape, x: Value, name: str) -> Value:
    """x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))); autocast takes powers in fp32."""
    cubed = tape.cast(x, FULL) if tape.autocast else x
    tape.keep(cubed)
    tape.keep(tape.like(cubed, f"tanh of {x.name}"))
    tape.keep(tape.like(x, f"half of {x.name}"))
    one_plus = tape.like(cubed, f"1 + tanh of {x.name}")
    tape.keep(one_plus)
    return tape.like(one_plus, name)


WRITTEN_OUT = {
    "gelu_new": _gelu_new,
    "gelu_fast": _gelu_fast,
    "quick_gelu": _quick_gelu,
    "xielu": _xielu,
}


def facts(*, transposed: bool = False) -> Facts:
    """How its matrices are kept."""
    return {"transposed": transposed}


MLP = Kind(
    component="mlp",
    sizes=("hidden", "ffn"),
    weights=matrices,
    facts=facts,
    forward=feed,
    norms=("mlp",),
    words={"activation": ACTIVATIONS, "inner_norm": NORMS},
)
