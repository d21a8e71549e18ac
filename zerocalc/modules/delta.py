"""Gated delta networks (arXiv 2412.06464): their tensors, and their forward pass up to the residual addition, as the kernels of
flash-linear-attention and causal-conv1d run it.

A class of transformers calls these kernels where the packages are installed; its own operations, which it falls back on, keep far more.
Source: flash-linear-attention 0.6.0, ops/gated_delta_rule/chunk.py; causal-conv1d 1.6, causal_conv1d_interface.py (what each saves for backward).
"""

from __future__ import annotations

from typing import Literal

from zerocalc.modules.attention import entering
from zerocalc.modules.base import ParameterRow, linear
from zerocalc.modules.tape import FULL, Tape, Value

CHUNK = 64
"""Positions that the kernel treats together; it keeps one matrix of that width a chunk and head."""
Projections = Literal["paired", "split", "each"]
TOGETHER = {"paired": ("qkvz", "ba"), "split": ("qkv", "z", "b", "a"), "each": ("q", "k", "v", "z", "b", "a")}


def delta_weights(
    *, hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, conv: int, projections: Projections = "paired",
) -> tuple[ParameterRow, ...]:  # fmt: skip
    """The tensors of a gated delta network.

    ``projections``: two products, of queries, keys, values and gate, and of step and decay (``paired``); four, with queries, keys and values in
    one (``split``); or ``each`` of the six on its own, and a convolution for each of queries, keys and values.
    """
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = {"q": keys, "k": keys, "v": values} if projections == "each" else {"qkv": 2 * keys + values}
    rows: list[ParameterRow] = []
    for name, width in _products(projections, keys, values, value_heads):
        rows += linear(f"delta.{name}", width, hidden)
    rows += [(f"delta.conv_{name}.weight", (width, 1, conv), False) for name, width in channels.items()]
    rows += [("delta.dt_bias", (value_heads,), False), ("delta.A_log", (value_heads,), False), ("delta.norm.weight", (value_dim,), False)]
    return (*rows, *linear("delta.out", hidden, values))


def _products(projections: Projections, keys: int, values: int, heads: int) -> list[tuple[str, int]]:
    """The products that read the layer's input, and how wide their results are: queries, keys, values, gate (z), step (b) and decay (a)."""
    widths = {"q": keys, "k": keys, "v": values, "z": values, "b": heads, "a": heads}
    return [(name, sum(widths[letter] for letter in name)) for name in TOGETHER[projections]]


def delta(
    tape: Tape, x: Value, *, key_heads: int, value_heads: int, key_dim: int, value_dim: int, projections: Projections = "paired",
    doubled: bool = False, **_: object,
) -> Value:  # fmt: skip
    """The forward pass of a gated delta network; ``doubled``: the step is multiplied by two after its sigmoid."""
    tp, tokens, hidden = tape.run.tp, tape.run.tokens, x.shape[-1]
    keys, values, heads = (key_heads, key_dim), (value_heads, value_dim), (tokens, value_heads)
    x = entering(tape, x)
    for name, width in _products(projections, key_heads * key_dim, value_heads * value_dim, value_heads):
        tape.linear(x, f"delta.{name}", name, (width,), tp)
    compute = tape.compute if tape.autocast else x.dtype
    mixed = Value("queries, keys and values", compute, tp, (tokens, 2 * key_heads * key_dim + value_heads * value_dim))
    tape.keep(mixed)
    tape.small("step", mixed.dtype, tp, heads)
    if doubled:
        tape.small("step, doubled", mixed.dtype, tp, heads)
    for name in ("decay before its softplus", "decay after its softplus", "decays summed"):
        tape.small(name, FULL, tp, heads)
    for name in ("A",) if tape.frozen else ("exp(A_log)", "A"):
        tape.small(name, FULL, tp, (value_heads,))
    for name in ("queries", "keys"):
        tape.small(f"{name}, normed", mixed.dtype, tp, (tokens, *keys))
        tape.small(f"{name}' norms", FULL, tp, (tokens, key_heads))
    tape.small("values", mixed.dtype, tp, (tokens, *values))
    tape.small("matrices of chunks", mixed.dtype, tp, (*heads, CHUNK))
    result = Value("delta rule's result", mixed.dtype, tp, (tokens, *values))
    normed = tape.norm(result, "delta norm", "rms", "delta rule's result, normed")
    gate = Value("gate (fp32)", FULL, tp, (tokens, *values))
    tape.keep(gate)
    tape.keep(tape.like(gate, "gate after its activation"))
    tape.keep(normed)
    return tape.linear(Value("gated result", mixed.dtype, tp, (tokens, *values)), "delta.out", "attention result", (hidden,), tape.run.sequence)
