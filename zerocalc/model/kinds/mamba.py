"""Mamba and Mamba-2: their tensors, and their forward pass up to the residual addition, as the
kernels of mamba-ssm and causal-conv1d run it.

A class of transformers calls these kernels where the packages are installed; its own operations,
which it falls back on, keep far more. Source: mamba-ssm 2.3.2, ops/selective_scan_interface.py and
ops/triton/ssd_combined.py; causal-conv1d 1.6, causal_conv1d_interface.py (what each saves for
backward).
"""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.model.kind import Kind
from zerocalc.model.module import ParameterRow, linear, replicated, tensor
from zerocalc.model.trace import FULL, Tape, Value

SCAN_CHUNK = 2048
"""Positions between two states that the selective scan keeps (mamba-ssm,
csrc/selective_scan/selective_scan.cpp).
"""


@record
class Mamba:
    """The values of a Mamba mixer (arXiv 2312.00752 §3.4)."""

    hidden: int
    inner: int
    state: int
    rank: int
    """Of the step sizes."""
    conv: int
    conv_bias: bool = True
    bias: bool = False
    inner_norms: bool = False
    """Norms of step sizes, B and C (Jamba)."""


@record
class Mamba2:
    """The values of a Mamba-2 mixer (arXiv 2405.21060 §7)."""

    hidden: int
    inner: int
    heads: int
    state: int
    groups: int
    """B and C are shared by the heads of one of them."""
    conv: int
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool | None = None
    """Whether the last product has a bias, where that is not as ``bias`` says."""
    norm: bool = True


def selective_weights(m: Mamba) -> tuple[ParameterRow, ...]:
    """The tensors of a Mamba mixer."""
    rows = (
        *linear("mamba.in", 2 * m.inner, m.hidden, bias=m.bias),
        *_convolution(m.inner, m.conv, m.conv_bias),
        *linear("mamba.x", m.rank + 2 * m.state, m.inner),
        *linear("mamba.dt", m.inner, m.rank, bias=True),
        tensor("mamba.A_log", m.inner, m.state),
        tensor("mamba.D", m.inner),
        *linear("mamba.out", m.hidden, m.inner, bias=m.bias, split="rows"),
    )
    if not m.inner_norms:
        return rows
    return (
        *rows,
        *(
            replicated(f"mamba.{name}_norm.weight", size)
            for name, size in (("dt", m.rank), ("b", m.state), ("c", m.state))
        ),
    )


def structured_weights(m: Mamba2) -> tuple[ParameterRow, ...]:
    """The tensors of a Mamba-2 mixer."""
    mixed = m.inner + 2 * m.groups * m.state
    return (
        *linear("mamba.in", m.inner + mixed + m.heads, m.hidden, bias=m.bias),
        *_convolution(mixed, m.conv, m.conv_bias),
        *(tensor(f"mamba.{name}", m.heads) for name in ("dt_bias", "A_log", "D")),
        *((replicated("mamba.norm.weight", m.inner),) if m.norm else ()),
        *linear(
            "mamba.out",
            m.hidden,
            m.inner,
            bias=m.bias if m.out_bias is None else m.out_bias,
            split="rows",
        ),
    )


def _convolution(channels: int, width: int, bias: bool) -> tuple[ParameterRow, ...]:
    weight: ParameterRow = tensor("mamba.conv.weight", channels, 1, width)
    return (weight, tensor("mamba.conv.bias", channels)) if bias else (weight,)


def selective(tape: Tape, x: Value, m: Mamba) -> Value:
    """The forward pass of a Mamba mixer: one kernel from the first product to the last, or, with
    norms inside, a kernel for each of its parts.
    """
    run, tp, hidden = tape.run, tape.run.tp, x.shape[-1]
    both = tape.linear(tape.entering(x), "mamba.in", "input and gate", (2 * m.inner,), tp)
    tape.keep(both)
    part = both.viewed("input", (m.inner,))
    low = (run.tokens, m.rank + 2 * m.state)
    if m.inner_norms:
        convolved = tape.like(tape.cast(part, part.dtype), "convolved input")
        convolved.base = convolved
        mixed = tape.linear(convolved, "mamba.x", "step sizes, B and C", low[1:])
        steps = tape.norm(
            mixed.viewed("step sizes before their norm", (m.rank,)),
            "dt norm",
            "rms",
            "low-rank step sizes",
        )
        for name in ("B", "C"):
            normed = tape.norm(
                mixed.viewed(f"{name} before its norm", (m.state,)), f"{name} norm", "rms", name
            )
            tape.keep(normed)
        tape.linear(steps, "mamba.dt", "step sizes", (m.inner,), tp)
        for name in ("input in channels", "step sizes", "gate in channels"):
            tape.small(name, convolved.dtype, tp, (run.tokens, m.inner))
    else:
        tape.small("step sizes, B and C", both.dtype, 1, low)
        tape.small("B and C, in channels", both.dtype, 1, (run.tokens, 2 * m.state))
    _decays(tape, (m.inner, m.state), (m.inner,))
    tape.small(
        "states between chunks",
        FULL,
        tp,
        (
            run.micro_batch,
            m.inner,
            ceil_div(run.tokens // run.micro_batch, SCAN_CHUNK),
            2 * m.state,
        ),
    )
    tape.small("scan output", both.dtype, tp, (run.tokens, m.inner))
    if m.inner_norms:
        gated = Value("scan output, gated", both.dtype, tp, (run.tokens, m.inner))
        return tape.linear(gated, "mamba.out", "mamba result", (hidden,), run.sequence)
    return Value("mamba result", both.dtype, run.sequence, (run.tokens, hidden))


def structured(tape: Tape, x: Value, m: Mamba2) -> Value:
    """The forward pass of a Mamba-2 mixer: one kernel after the first product, which keeps that
    product's result and the scan's.
    """
    run, tp, hidden = tape.run, tape.run.tp, x.shape[-1]
    both = tape.linear(
        tape.entering(x),
        "mamba.in",
        "gate, input, B, C and step sizes",
        (2 * m.inner + 2 * m.groups * m.state + m.heads,),
        tp,
    )
    tape.keep(both)
    tape.small("scan output", both.dtype, tp, (run.tokens, m.inner))
    _decays(tape, (m.heads,), ())
    if m.norm and tape.how.statistics:
        tape.small("norm statistics", FULL, tp, (run.tokens, m.groups))
    return Value("mamba result", both.dtype, run.sequence, (run.tokens, hidden))


def _decays(tape: Tape, shape: tuple[int, ...], vector: tuple[int, ...]) -> None:
    """A = -exp(A_log) in fp32, however many tokens there are, and fp32 copies of 16-bit vectors
    that a kernel wants so.
    """
    for name in ("A",) if tape.frozen else ("exp(A_log)", "A"):
        tape.small(name, FULL, tape.run.tp, shape)
    if vector and not tape.autocast and tape.compute != FULL:
        tape.small("D and the step sizes' bias (fp32)", FULL, tape.run.tp, (2, *vector))


MAMBA = Kind(
    component="other",
    values=Mamba,
    sizes=("hidden", "inner", "state", "rank", "conv"),
    weights=selective_weights,
    forward=selective,
)
MAMBA2 = Kind(
    component="other",
    values=Mamba2,
    sizes=("hidden", "inner", "heads", "state", "groups", "conv"),
    weights=structured_weights,
    forward=structured,
)
