"""Self-attention: multi-head or grouped-query, with or without biases, q/k norms and dropout."""

from typing import Literal

from zerocalc.modules.base import Layout, Module, ParameterRow, SavedRow, linear
from zerocalc.spec.model import Dimensions, Model

MASK = "int8"
"""Dropout keeps one byte an element ([SP] §4.1)."""
STATISTICS = "fp32"
"""Flash attention keeps the softmax's log-sum-exp, one fp32 per head and token (arXiv 2205.14135, algorithm 1)."""


QkNorm = Literal["none", "head", "full", "heads"]


def attention(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """Attention from its input to the residual addition; with a layout, also what it saves for backward."""
    rows = projections(
        hidden=d.hidden, heads=d.heads, kv_heads=d.kv_heads, head_dim=d.head_dim, q_bias=bool(model.qkv_bias), k_bias=bool(model.qkv_bias),
        v_bias=bool(model.qkv_bias), out_bias=bool(model.out_bias), qk_norm="head" if model.qk_norm else "none",
    )  # fmt: skip
    return Module("attention", "attention", rows, _saved(model, d, run) if run else ())


def projections(
    *, hidden: int, heads: int, kv_heads: int, head_dim: int, value_dim: int | None = None, out: int | None = None,
    q_bias: bool = False, k_bias: bool = False, v_bias: bool = False, out_bias: bool = False,
    qk_norm: QkNorm = "none", qk_norm_bias: bool = False, fused: bool = False, transposed: bool = False, sinks: bool = False,
) -> tuple[ParameterRow, ...]:  # fmt: skip
    """The tensors of multi-head or grouped-query attention.

    ``fused`` makes one tensor of q, k and v, whose bias is then ``q_bias``. ``qk_norm``: over one ``head`` (a vector of head_dim for q, one for k),
    over the ``full`` q and k, or over each of the ``heads`` on its own. ``sinks``: one learned score a head.
    """
    value_dim = value_dim or head_dim
    query, key, value = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
    rows: list[ParameterRow]
    if fused:
        rows = [*linear("attention.qkv", query + key + value, hidden, bias=q_bias, transposed=transposed)]
    else:
        rows = [
            *linear("attention.q", query, hidden, bias=q_bias, transposed=transposed),
            *linear("attention.k", key, hidden, bias=k_bias, transposed=transposed),
            *linear("attention.v", value, hidden, bias=v_bias, transposed=transposed),
        ]
    rows += linear("attention.out", out or hidden, heads * value_dim, bias=out_bias, transposed=transposed)
    if qk_norm != "none":
        q_shape, k_shape = {"head": ((head_dim,), (head_dim,)), "full": ((query,), (key,)), "heads": ((heads, head_dim), (kv_heads, head_dim))}[
            qk_norm
        ]
        for part in ("weight", "bias") if qk_norm_bias else ("weight",):
            rows += [(f"attention.q_norm.{part}", q_shape, False), (f"attention.k_norm.{part}", k_shape, False)]
    if sinks:
        rows.append(("attention.sinks", (heads,), False))
    return tuple(rows)


def latent_projections(
    *, hidden: int, heads: int, q_lora_rank: int, kv_lora_rank: int, nope_dim: int, rope_dim: int, value_dim: int,
    bias: bool = False, out_bias: bool | None = None,
) -> tuple[ParameterRow, ...]:  # fmt: skip
    """The tensors of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1): low ranks for queries and for keys and values, each normed."""
    query = heads * (nope_dim + rope_dim)
    if q_lora_rank:
        rows = (
            *linear("attention.q_down", q_lora_rank, hidden, bias=bias),
            ("attention.q_norm.weight", (q_lora_rank,), False),
            *linear("attention.q_up", query, q_lora_rank),
        )
    else:
        rows = linear("attention.q", query, hidden)
    return (
        *rows,
        *linear("attention.kv_down", kv_lora_rank + rope_dim, hidden, bias=bias),
        ("attention.kv_norm.weight", (kv_lora_rank,), False),
        *linear("attention.kv_up", heads * (nope_dim + value_dim), kv_lora_rank),
        *linear("attention.out", hidden, heads * value_dim, bias=bias if out_bias is None else out_bias),
    )


def _saved(model: Model, d: Dimensions, run: Layout) -> tuple[SavedRow, ...]:
    n, half, tp = run.tokens, run.compute, run.tp
    queries, keys = (n, d.heads, d.head_dim), (n, d.kv_heads, d.head_dim)
    tensors: list[SavedRow] = [
        ("attention input", half, run.sequence, (n, d.hidden), False),
        ("queries", half, tp, queries, False),
        ("keys", half, tp, keys, False),
        ("values", half, tp, keys, False),
    ]
    if model.qk_norm:
        tensors.append(("q/k norm inputs", half, tp, (n, d.heads + d.kv_heads, d.head_dim), False))
    if run.flash:
        tensors.append(("softmax statistics", STATISTICS, tp, (n, d.heads), True))
    else:
        scores = (n, d.heads, run.seq)
        tensors.append(("softmax output", half, tp, scores, True))
        if model.dropout:
            tensors.append(("attention dropout mask", MASK, tp, scores, True))
            tensors.append(("attention dropout output", half, tp, scores, True))
    tensors.append(("attention output", half, tp, queries, False))
    if model.dropout:
        tensors.append(("residual dropout mask", MASK, run.sequence, (n, d.hidden), False))
    return tuple(tensors)
