"""The MLP: plain (two matrices) or gated (three); its tensors, and its forward pass up to the
residual addition.
"""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.model.kind import ACTIVATIONS, NORMS, Facts, Kind
from zerocalc.model.module import ParameterRow, linear
from zerocalc.model.trace import FULL, MASK, Tape, Value


@record
class Mlp:
    """The values of an MLP."""

    hidden: int
    ffn: int
    gated: bool = True
    fused: bool = False
    """Gate and up have one tensor."""
    transposed: bool = False
    bias: bool = False
    down_bias: bool | None = None
    """Whether the last product has a bias, where that is not as ``bias`` says."""
    out: int = 0
    """Numbers of the result; 0: as many as it reads."""
    activation: str = ""
    """Unless given, silu where it is gated and gelu where it is not."""
    sparse: bool = False
    """Of the gate only the largest numbers stay."""
    inner_norm: str | None = None
    """How the norm of what goes into the last product is computed; without it there is none."""
    dropout: bool = False
    """Of what goes into the last product."""
    residual_dropout: bool = False


def matrices(m: Mlp) -> tuple[ParameterRow, ...]:
    """The tensors of an MLP: two matrices, or three when gated."""
    hidden, bias, turned = m.hidden, m.bias, m.transposed
    rows: tuple[ParameterRow, ...] = ()
    if m.gated and not m.fused:
        rows = linear("mlp.gate", m.ffn, hidden, bias=bias, transposed=turned)
    width = 2 * m.ffn if m.gated and m.fused else m.ffn
    return (
        *rows,
        *linear("mlp.up", width, hidden, bias=bias, transposed=turned),
        *linear(
            "mlp.down",
            m.out or hidden,
            m.ffn,
            bias=bias if m.down_bias is None else m.down_bias,
            transposed=turned,
            split="rows",
        ),
    )


def feed(tape: Tape, x: Value, m: Mlp) -> Value:
    """The forward pass of an MLP."""
    again = tape.region("mlp", x)
    x = tape.entering(x)
    tp = tape.run.tp
    activation = m.activation or ("silu" if m.gated else "gelu")
    if not m.gated:
        up = tape.linear(x, "mlp.up", f"{activation} input", (m.ffn,), tp)
        inner = activate(tape, up, activation, "down input")
    elif tape.how.gated == "fused":
        both = tape.linear(x, "mlp.gate", "gate and up", (2 * m.ffn,), tp)
        tape.keep(both)
        inner = Value("down input", both.dtype, tp, (tape.run.tokens, m.ffn))
    else:
        inner = gate_up(tape, x, (m.ffn,), m.fused, activation, sparse=m.sparse)
    if m.inner_norm:
        inner = tape.norm(inner, "inner norm", m.inner_norm, "down input, normed")
    if m.dropout:
        inner = tape.dropout(inner, "down input")
    width = (m.out or x.shape[-1],)
    result = tape.linear(inner, "mlp.down", "mlp result", width, tape.run.sequence)
    if again:
        tape.rebuilding = False
    return tape.leaving(result, m.residual_dropout)


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


def facts(m: Mlp) -> Facts:
    """How its matrices are kept, and that its activation is a module."""
    two = m.gated and not m.fused
    calls = ("gate", "gate_activation", "up", "down") if two else ("up", "up_activation", "down")
    return {"transposed": m.transposed, "called": calls}


MLP = Kind(
    component="mlp",
    values=Mlp,
    sizes=("hidden", "ffn"),
    weights=matrices,
    facts=facts,
    forward=feed,
    norms=("mlp",),
    words={"activation": ACTIVATIONS, "inner_norm": NORMS},
)
