"""Mamba and Mamba-2: their tensors, and their forward pass up to the residual addition, as the
kernels of mamba-ssm and causal-conv1d run it.

A class of transformers calls these kernels where the packages are installed; its own operations,
which it falls back on, keep far more. Source: mamba-ssm 2.3.2, ops/selective_scan_interface.py and
ops/triton/ssd_combined.py; causal-conv1d 1.6, causal_conv1d_interface.py (what each saves for
backward).
"""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.model.kind import Kind
from zerocalc.model.module import ParameterRow, linear, replicated, tensor
from zerocalc.model.trace import FULL, Tape, Value

SCAN_CHUNK = 2048
"""Positions between two states that the selective scan keeps (mamba-ssm,
csrc/selective_scan/selective_scan.cpp).
"""


def selective_weights(
    *,
    hidden: int,
    inner: int,
    state: int,
    rank: int,
    conv: int,
    conv_bias: bool = True,
    bias: bool = False,
    inner_norms: bool = False,
) -> tuple[ParameterRow, ...]:
    """The tensors of a Mamba mixer (arXiv 2312.00752 §3.4): ``rank`` is that of the step sizes.
    ``inner_norms``: of step sizes, B and C (Jamba).
    """
    rows = (
        *linear("mamba.in", 2 * inner, hidden, bias=bias),
        *_convolution(inner, conv, conv_bias),
        *linear("mamba.x", rank + 2 * state, inner),
        *linear("mamba.dt", inner, rank, bias=True),
        tensor("mamba.A_log", inner, state),
        tensor("mamba.D", inner),
        *linear("mamba.out", hidden, inner, bias=bias, split="rows"),
    )
    if not inner_norms:
        return rows
    return (
        *rows,
        *(
            replicated(f"mamba.{name}_norm.weight", size)
            for name, size in (("dt", rank), ("b", state), ("c", state))
        ),
    )


def structured_weights(
    *,
    hidden: int,
    inner: int,
    heads: int,
    state: int,
    groups: int,
    conv: int,
    conv_bias: bool = True,
    bias: bool = False,
    out_bias: bool | None = None,
    norm: bool = True,
) -> tuple[ParameterRow, ...]:
    """The tensors of a Mamba-2 mixer (arXiv 2405.21060 §7): B and C are shared by the heads of one
    of the ``groups``.
    """
    mixed = inner + 2 * groups * state
    return (
        *linear("mamba.in", inner + mixed + heads, hidden, bias=bias),
        *_convolution(mixed, conv, conv_bias),
        *(tensor(f"mamba.{name}", heads) for name in ("dt_bias", "A_log", "D")),
        *((replicated("mamba.norm.weight", inner),) if norm else ()),
        *linear(
            "mamba.out",
            hidden,
            inner,
            bias=bias if out_bias is None else out_bias,
            split="rows",
        ),
    )


def _convolution(channels: int, width: int, bias: bool) -> tuple[ParameterRow, ...]:
    weight: ParameterRow = tensor("mamba.conv.weight", channels, 1, width)
    return (weight, tensor("mamba.conv.bias", channels)) if bias else (weight,)


def selective(
    tape: Tape,
    x: Value,
    *,
    inner: int,
    state: int,
    rank: int,
    inner_norms: bool = False,
) -> Value:
    """The forward pass of a Mamba mixer: one kernel from the first product to the last, or, with
    norms inside, a kernel for each of its parts.
    """
    run, tp, hidden = tape.run, tape.run.tp, x.shape[-1]
    both = tape.linear(tape.entering(x), "mamba.in", "input and gate", (2 * inner,), tp)
    tape.keep(both)
    part = both.viewed("input", (inner,))
    low = (run.tokens, rank + 2 * state)
    if inner_norms:
        convolved = tape.like(tape.cast(part, part.dtype), "convolved input")
        convolved.base = convolved
        mixed = tape.linear(convolved, "mamba.x", "step sizes, B and C", low[1:])
        steps = tape.norm(
            mixed.viewed("step sizes before their norm", (rank,)),
            "dt norm",
            "rms",
            "low-rank step sizes",
        )
        for name in ("B", "C"):
            normed = tape.norm(
                mixed.viewed(f"{name} before its norm", (state,)), f"{name} norm", "rms", name
            )
            tape.keep(normed)
        tape.linear(steps, "mamba.dt", "step sizes", (inner,), tp)
        for name in ("input in channels", "step sizes", "gate in channels"):
            tape.small(name, convolved.dtype, tp, (run.tokens, inner))
    else:
        tape.small("step sizes, B and C", both.dtype, 1, low)
        tape.small("B and C, in channels", both.dtype, 1, (run.tokens, 2 * state))
    _decays(tape, (inner, state), (inner,))
    tape.small(
        "states between chunks",
        FULL,
        tp,
        (run.micro_batch, inner, ceil_div(run.tokens // run.micro_batch, SCAN_CHUNK), 2 * state),
    )
    tape.small("scan output", both.dtype, tp, (run.tokens, inner))
    if inner_norms:
        gated = Value("scan output, gated", both.dtype, tp, (run.tokens, inner))
        return tape.linear(gated, "mamba.out", "mamba result", (hidden,), run.sequence)
    return Value("mamba result", both.dtype, run.sequence, (run.tokens, hidden))


def structured(
    tape: Tape,
    x: Value,
    *,
    inner: int,
    heads: int,
    state: int,
    groups: int,
    norm: bool = True,
) -> Value:
    """The forward pass of a Mamba-2 mixer: one kernel after the first product, which keeps that
    product's result and the scan's.
    """
    run, tp, hidden = tape.run, tape.run.tp, x.shape[-1]
    both = tape.linear(
        tape.entering(x),
        "mamba.in",
        "gate, input, B, C and step sizes",
        (2 * inner + 2 * groups * state + heads,),
        tp,
    )
    tape.keep(both)
    tape.small("scan output", both.dtype, tp, (run.tokens, inner))
    _decays(tape, (heads,), ())
    if norm and tape.how.statistics:
        tape.small("norm statistics", FULL, tp, (run.tokens, groups))
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
    sizes=("hidden", "inner", "state", "rank", "conv"),
    weights=selective_weights,
    forward=selective,
)
MAMBA2 = Kind(
    component="other",
    sizes=("hidden", "inner", "heads", "state", "groups", "conv"),
    weights=structured_weights,
    forward=structured,
)
