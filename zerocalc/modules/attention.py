"""Self-attention: multi-head or grouped-query, with or without biases, q/k norms and dropout."""

from zerocalc.modules.base import Layout, Module, ParameterRow, SavedRow
from zerocalc.spec.model import Dimensions, Model

MASK = "int8"
"""Dropout keeps one byte an element ([SP] §4.1)."""
STATISTICS = "fp32"
"""Flash attention keeps the softmax's log-sum-exp, one fp32 per head and token (arXiv 2205.14135, algorithm 1)."""


def attention(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """Attention from its input to the residual addition; with a layout, also what it saves for backward."""
    return Module("attention", "attention", _parameters(model, d), _saved(model, d, run) if run else ())


def _parameters(model: Model, d: Dimensions) -> tuple[ParameterRow, ...]:
    hidden, query, key_value = d.hidden, d.heads * d.head_dim, d.kv_heads * d.head_dim
    tensors: list[ParameterRow] = [
        ("attention.q.weight", (query, hidden), True),
        ("attention.k.weight", (key_value, hidden), True),
        ("attention.v.weight", (key_value, hidden), True),
        ("attention.out.weight", (hidden, query), True),
    ]
    if model.qkv_bias:
        tensors += [("attention.q.bias", (query,), False), ("attention.k.bias", (key_value,), False), ("attention.v.bias", (key_value,), False)]
    if model.out_bias:
        tensors.append(("attention.out.bias", (hidden,), False))
    if model.qk_norm:
        tensors += [("attention.q_norm.weight", (d.head_dim,), False), ("attention.k_norm.weight", (d.head_dim,), False)]
    return tuple(tensors)


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
