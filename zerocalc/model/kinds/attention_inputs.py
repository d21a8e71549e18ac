"""Queries, keys and values of attention: projected, normed, rotated."""

from __future__ import annotations

import math

from zerocalc.model.kinds.attention_values import Attention
from zerocalc.model.kinds.scores import expanded
from zerocalc.model.trace import FULL, Shape, Tape, Value

ONE_PRODUCT = frozenset({"fused", "split"})
"""One product for queries, keys and values, of which they are views, or from which they are copied.
"""


def projected(tape: Tape, x: Value, a: Attention) -> tuple[Value, Value, Value]:
    """Queries, keys and values."""
    as_written = tape.how.qkv == "as_written"
    if tape.how.qkv in ONE_PRODUCT or (a.fused and as_written):
        q, k, v = _one_product(tape, x, a)
    elif a.shared_keys:
        q = _queries(tape, x, a)
        tp, tokens = tape.run.tp, tape.run.tokens
        k = tape.elsewhere(Value("keys", tape.wide, tp, (tokens, *a.key)))
        return q, k, tape.elsewhere(Value("values", q.dtype, tp, (tokens, *a.value)))
    else:
        q, k, v = _three_products(tape, x, a)
    if a.repeated and as_written and a.kv_heads < a.heads:
        k, v = expanded(tape, k, v, a.heads, a.head_dim, a.value[1])
    return q, k, v


def _one_product(tape: Tape, x: Value, a: Attention) -> tuple[Value, Value, Value]:
    tp, tokens, how = tape.run.tp, tape.run.tokens, tape.how.qkv
    width = math.prod(a.query) + math.prod(a.key) + math.prod(a.value)
    q = k = v = tape.linear(x, "attention.qkv", "queries, keys and values", (width,), tp)
    if how == "split":
        q = Value("queries", q.dtype, tp, (tokens, *a.query))
    if how == "split" or (a.copied and how == "as_written"):
        k = Value("keys", k.dtype, tp, (tokens, *a.key))
        v = Value("values", v.dtype, tp, (tokens, *a.value))
    if a.bounded and how == "as_written":
        tape.keep(q)
        q = k = v = tape.like(q, "queries, keys and values, bounded")
    return q, k, v


def _three_products(tape: Tape, x: Value, a: Attention) -> tuple[Value, Value, Value]:
    tp = tape.run.tp
    q = _queries(tape, x, a)
    if a.memory:
        x = tape.elsewhere(tape.stream("encoder output", x.shape[-1]))
    k = tape.linear(x, "attention.k", "keys", a.key, tp)
    v = k if a.keys_as_values else tape.linear(x, "attention.v", "values", a.value, tp)
    if not a.bounded or tape.how.qkv != "as_written":
        return q, k, v
    for part in (q, k, v):
        tape.keep(part)
    return (
        tape.like(q, "queries, bounded"),
        tape.like(k, "keys, bounded"),
        tape.like(v, "values, bounded"),
    )


def _queries(tape: Tape, x: Value, a: Attention) -> Value:
    width = (2 * a.heads if a.query_gate else a.heads, a.head_dim)
    return tape.linear(x, "attention.q", "queries", width, tape.run.tp)


def positioned(
    tape: Tape, x: Value, q: Value, k: Value, key: Shape, a: Attention
) -> tuple[Value, Value]:
    """Norms and rotation of queries and of keys, of shape ``key``."""
    query = a.query
    if a.rotary and a.qk_norm_after:
        q, k = rotated(tape, (q, query), (k, key))
    if a.qk_norm != "none" or a.qk_norm_kind is not None:
        kind, weight = a.qk_norm_kind or ("layer" if a.qk_norm_bias else "rms"), a.qk_norm != "none"
        whole = a.qk_norm == "full"
        before = q.viewed("queries before their norm", (math.prod(query),) if whole else query)
        q = tape.norm(before, "q norm", kind, "queries", weight=weight)
        before = k.viewed("keys before their norm", (math.prod(key),) if whole else key)
        k = k if a.shared_keys else tape.norm(before, "k norm", kind, "keys", weight=weight)
    if a.rotary and not a.qk_norm_after:
        turned = rotated(tape, (q, query), (k, key))
        q, k = (turned[0], k) if a.shared_keys else turned
    if a.rotary_tables and tape.how.rotary == "shared":
        tape.small(
            "sines and cosines",
            FULL if a.rotary_dtype == FULL else x.dtype,
            1,
            (tape.run.tokens // tape.run.micro_batch, a.rotary_tables),
        )
    return q, k


def rotated(tape: Tape, *projections: tuple[Value, Shape], dim: int = 0) -> list[Value]:
    """Queries and keys turned by their positions: new tensors; the sines and cosines are the
    model's or, in some code, the layer's own.

    ``dim``: how many numbers of a head are turned, where not all are.
    """
    run = tape.run
    if tape.how.rotary == "each_layer":
        head_dim = dim or projections[0][1][-1]
        tape.small(
            "sines and cosines",
            run.compute,
            1,
            (2 * len(projections), run.tokens // run.micro_batch, head_dim),
        )
    named = zip(("queries", "keys"), projections, strict=True)
    return [Value(name, tape.wide, run.tp, (run.tokens, *shape)) for name, (_, shape) in named]
