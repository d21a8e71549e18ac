"""Gated delta networks (arXiv 2412.06464) and Kimi's delta attention (arXiv 2510.26692): their
tensors, and their forward pass up to the residual addition, as the kernels of
flash-linear-attention and causal-conv1d run it.

A class of transformers calls these kernels where the packages are installed; its own operations,
which it falls back on, keep far more. Source: flash-linear-attention 0.6.0,
ops/gated_delta_rule/chunk.py and ops/kda/chunk.py; causal-conv1d 1.6, causal_conv1d_interface.py
(what each saves for backward).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from zerocalc.ledger import record
from zerocalc.model.kind import Kind
from zerocalc.model.module import ParameterRow, linear, replicated, tensor
from zerocalc.model.trace import FULL, MASK, Tape, Value

CHUNK = 64
"""Positions that the kernel treats together; it keeps one matrix of that width a chunk and head."""
Projections = Literal["paired", "split", "each"]
TOGETHER = {
    "paired": ("qkvz", "ba"),
    "split": ("qkv", "z", "b", "a"),
    "each": ("q", "k", "v", "z", "b", "a"),
}


@record
class Delta:
    """The values of a gated delta network."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    projections: Projections = "paired"
    """Two products, of queries, keys, values and gate, and of step and decay (``paired``); four,
    with queries, keys and values in one (``split``); or ``each`` of the six on its own.
    """
    doubled: bool = False
    """The step is multiplied by two after its sigmoid."""


@record
class ChannelDelta:
    """The values of a delta rule that decays each channel on its own."""

    hidden: int
    heads: int
    head_dim: int
    conv: int
    low_rank: bool = True
    """Decay and gate come through a rank of ``head_dim``."""


def delta_weights(d: Delta) -> tuple[ParameterRow, ...]:
    """The tensors of a gated delta network."""
    keys, values = d.key_heads * d.key_dim, d.value_heads * d.value_dim
    rows: list[ParameterRow] = []
    for name, width in _products(d.projections, keys, values, d.value_heads):
        rows += linear(f"delta.{name}", width, d.hidden)
    rows.append(tensor("delta.conv.weight", 2 * keys + values, 1, d.conv))
    rows += [
        tensor("delta.dt_bias", d.value_heads),
        tensor("delta.A_log", d.value_heads),
        replicated("delta.norm.weight", d.value_dim),
    ]
    return (*rows, *linear("delta.out", d.hidden, values, split="rows"))


def _products(
    projections: Projections, keys: int, values: int, heads: int
) -> list[tuple[str, int]]:
    """The products that read the layer's input, and how wide their results are: queries, keys,
    values, gate (z), step (b) and decay (a).
    """
    widths = {"q": keys, "k": keys, "v": values, "z": values, "b": heads, "a": heads}
    return [(name, sum(widths[letter] for letter in name)) for name in TOGETHER[projections]]


def delta(tape: Tape, x: Value, d: Delta) -> Value:
    """The forward pass of a gated delta network."""
    tp, tokens, hidden = tape.run.tp, tape.run.tokens, x.shape[-1]
    keys, values, heads = (
        (d.key_heads, d.key_dim),
        (d.value_heads, d.value_dim),
        (tokens, d.value_heads),
    )
    x = tape.entering(x)
    for name, width in _products(
        d.projections, d.key_heads * d.key_dim, d.value_heads * d.value_dim, d.value_heads
    ):
        tape.linear(x, f"delta.{name}", name, (width,), tp)
    mixed = _mixed(tape, x, keys, values)
    tape.small("step", mixed.dtype, tp, heads)
    if d.doubled:
        tape.small("step, doubled", mixed.dtype, tp, heads)
    for name in ("decay before its softplus", "decay after its softplus", "decays summed"):
        tape.small(name, FULL, tp, heads)
    for name in ("A",) if tape.frozen else ("exp(A_log)", "A"):
        tape.small(name, FULL, tp, (d.value_heads,))
    _delta_rule(tape, mixed.dtype, keys, values)
    tape.small("matrices of chunks", mixed.dtype, tp, (*heads, CHUNK))
    result = Value("delta rule's result", mixed.dtype, tp, (tokens, *values))
    normed = tape.norm(result, "delta norm", "rms", "delta rule's result, normed")
    gate = Value("gate (fp32)", FULL, tp, (tokens, *values))
    tape.keep(gate)
    tape.keep(tape.like(gate, "gate after its activation"))
    tape.keep(normed)
    return tape.linear(
        Value("gated result", mixed.dtype, tp, (tokens, *values)),
        "delta.out",
        "attention result",
        (hidden,),
        tape.run.sequence,
    )


def _mixed(tape: Tape, x: Value, keys: tuple[int, int], values: tuple[int, int]) -> Value:
    """Queries, keys and values side by side: what the convolution reads and keeps."""
    compute = tape.compute if tape.autocast else x.dtype
    mixed = Value(
        "queries, keys and values",
        compute,
        tape.run.tp,
        (tape.run.tokens, 2 * math.prod(keys) + math.prod(values)),
    )
    tape.keep(mixed)
    return mixed


def _delta_rule(tape: Tape, dtype: str, keys: tuple[int, int], values: tuple[int, int]) -> None:
    """What the kernels keep of queries, keys (both normed) and values."""
    tokens, tp = tape.run.tokens, tape.run.tp
    for name in ("queries", "keys"):
        tape.small(f"{name}, normed", dtype, tp, (tokens, *keys))
        tape.small(f"{name}' norms", FULL, tp, (tokens, keys[0]))
    tape.small("values", dtype, tp, (tokens, *values))


def channel_weights(d: ChannelDelta) -> tuple[ParameterRow, ...]:
    """The tensors of a delta rule that decays each channel on its own."""
    inner = d.heads * d.head_dim
    rows: list[ParameterRow] = []
    for name in "qkv":
        rows += linear(f"delta.{name}", inner, d.hidden)
    for name in ("decay", "gate"):
        if d.low_rank:
            rows += (
                *linear(f"delta.{name}_down", d.head_dim, d.hidden),
                *linear(f"delta.{name}_up", inner, d.head_dim),
            )
        else:
            rows += linear(f"delta.{name}", inner, d.hidden)
    return (
        *rows,
        tensor("delta.conv.weight", 3 * inner, 1, d.conv),
        tensor("delta.dt_bias", inner),
        tensor("delta.A_log", *((1, 1, d.heads, 1) if d.low_rank else (d.heads,))),
        *linear("delta.b", d.heads, d.hidden),
        replicated("delta.norm.weight", d.head_dim),
        *linear("delta.out", d.hidden, inner, split="rows"),
    )


LOW_RANK_DECAY = (
    "exp of the decay",
    "1 + exp of the decay",
    "decay after its softplus",
    "decay (fp32)",
)
"""Kimi's class writes the softplus out and hands the decay over in fp32; Ling's takes PyTorch's own
and hands it over in compute's dtype.
"""
DECAY = ("decay before its bound", "decay after its bound")


def channels(tape: Tape, x: Value, d: ChannelDelta) -> Value:
    """The forward pass of a delta rule that decays each channel on its own: the decay is computed
    in fp32, operation by operation.
    """
    tp, tokens, hidden = tape.run.tp, tape.run.tokens, x.shape[-1]
    each = (d.heads, d.head_dim)
    x = tape.entering(x)
    for name in "qkv":
        tape.linear(x, f"delta.{name}", name, each, tp)
    mixed = _mixed(tape, x, each, each)
    for name in ("decay", "gate"):
        if d.low_rank:
            tape.linear(
                tape.linear(x, f"delta.{name}_down", f"low-rank {name}", (d.head_dim,)),
                f"delta.{name}_up",
                name,
                each,
                tp,
            )
        else:
            tape.linear(x, f"delta.{name}", name, each, tp)
    for name in (*(LOW_RANK_DECAY if d.low_rank else DECAY), "decays summed"):
        tape.small(name, FULL, tp, (tokens, *each))
    if d.low_rank:
        tape.small("decays that are large", MASK, tp, (tokens, *each))
    else:
        tape.small("decay", mixed.dtype, tp, (tokens, *each))
    tape.linear(x, "delta.b", "step", (d.heads,), tp)
    tape.small("step", mixed.dtype, tp, (tokens, d.heads))
    _delta_rule(tape, mixed.dtype, each, each)
    tape.small("matrices of chunks", mixed.dtype, tp, (2, tokens, d.heads, CHUNK))
    result = Value("delta rule's result", mixed.dtype, tp, (tokens, *each))
    tape.norm(result, "delta norm", "rms_fp32", "delta rule's result, normed")
    for name in ("delta rule's result, normed (fp32)", "sigmoid of the gate (fp32)"):
        tape.small(name, FULL, tp, (tokens, *each))
    return tape.linear(
        Value("gated result", mixed.dtype, tp, (tokens, *each)),
        "delta.out",
        "attention result",
        (hidden,),
        tape.run.sequence,
    )


DELTA = Kind(
    component="attention",
    values=Delta,
    sizes=("hidden", "key_heads", "value_heads", "key_dim", "value_dim", "conv"),
    weights=delta_weights,
    forward=delta,
    norms=("attention",),
    words={"projections": get_args(Projections)},
)
CHANNEL_DELTA = Kind(
    component="attention",
    values=ChannelDelta,
    sizes=("hidden", "heads", "head_dim", "conv"),
    weights=channel_weights,
    forward=channels,
    norms=("attention",),
)
