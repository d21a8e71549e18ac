"""Self-attention: multi-head or grouped-query, with or without biases, q/k norms and dropout."""

from zerocalc.modules.base import Layout, Module, Parameter, Saved, saved
from zerocalc.spec.model import Dimensions, Model

MASK = "int8"
"""Dropout keeps one byte an element ([SP] §4.1)."""
STATISTICS = "fp32"
"""Flash attention keeps the softmax's log-sum-exp, one fp32 per head and token (arXiv 2205.14135, algorithm 1)."""


def attention(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """Attention from its input to the residual addition; with a layout, also what it saves for backward."""
    return Module("attention", "attention", _parameters(model, d), _saved(model, d, run) if run else ())


def _parameters(model: Model, d: Dimensions) -> tuple[Parameter, ...]:
    query, key_value = d.heads * d.head_dim, d.kv_heads * d.head_dim
    tensors = [
        Parameter("attention.q.weight", (query, d.hidden), True),
        Parameter("attention.k.weight", (key_value, d.hidden), True),
        Parameter("attention.v.weight", (key_value, d.hidden), True),
        Parameter("attention.out.weight", (d.hidden, query), True),
    ]
    if model.qkv_bias:
        tensors += [Parameter("attention.q.bias", (query,)), Parameter("attention.k.bias", (key_value,)), Parameter("attention.v.bias", (key_value,))]
    if model.out_bias:
        tensors.append(Parameter("attention.out.bias", (d.hidden,)))
    if model.qk_norm:
        tensors += [Parameter("attention.q_norm.weight", (d.head_dim,)), Parameter("attention.k_norm.weight", (d.head_dim,))]
    return tuple(tensors)


def _saved(model: Model, d: Dimensions, run: Layout) -> tuple[Saved, ...]:
    n, half, tp = run.tokens, run.compute, run.tp
    tensors = [
        saved("attention input", half, run.sequence, (n, d.hidden)),
        saved("queries", half, tp, (n, d.heads, d.head_dim)),
        saved("keys", half, tp, (n, d.kv_heads, d.head_dim)),
        saved("values", half, tp, (n, d.kv_heads, d.head_dim)),
    ]
    if model.qk_norm:
        tensors.append(saved("q/k norm inputs", half, tp, (n, d.heads + d.kv_heads, d.head_dim)))
    if run.flash:
        tensors.append(saved("softmax statistics", STATISTICS, tp, (n, d.heads), True))
    else:
        scores = (n, d.heads, run.seq)
        tensors.append(saved("softmax output", half, tp, scores, True))
        if model.dropout:
            tensors.append(saved("attention dropout mask", MASK, tp, scores, True))
            tensors.append(saved("attention dropout output", half, tp, scores, True))
    tensors.append(saved("attention output", half, tp, (n, d.heads, d.head_dim)))
    if model.dropout:
        tensors.append(saved("residual dropout mask", MASK, run.sequence, (n, d.hidden)))
    return tuple(tensors)
