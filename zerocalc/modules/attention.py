"""Self-attention, multi-head or grouped-query: its tensors, and its forward pass up to the residual addition."""

from __future__ import annotations

from typing import Literal

from zerocalc.modules.base import ParameterRow, linear
from zerocalc.modules.tape import FULL, Shape, Tape, Value

QkNorm = Literal["none", "head", "full", "heads"]

ONE_PRODUCT = frozenset({"fused", "split"})
"""One product for queries, keys and values, of which they are views, or from which they are copied."""
FUSED_KERNELS = frozenset({"flash", "efficient"})
"""Kernels that keep the softmax's log-sum-exp, one fp32 per head and token, and no scores (arXiv 2205.14135, algorithm 1)."""


def projections(
    *, hidden: int, heads: int, kv_heads: int, head_dim: int, value_dim: int | None = None, out: int | None = None,
    q_bias: bool = False, k_bias: bool = False, v_bias: bool = False, out_bias: bool = False,
    qk_norm: QkNorm = "none", qk_norm_bias: bool = False, fused: bool = False, transposed: bool = False, sinks: bool = False,
    query_gate: bool = False, keys_as_values: bool = False, shared_keys: bool = False,
) -> tuple[ParameterRow, ...]:  # fmt: skip
    """The tensors of multi-head or grouped-query attention.

    ``fused`` makes one tensor of q, k and v, whose bias is then ``q_bias``. ``qk_norm``: over one ``head`` (a vector of head_dim for q, one for k),
    over the ``full`` q and k, or over each of the ``heads`` on its own. ``sinks``: one learned score a head. ``query_gate``: the
    product that yields queries yields a gate of the result too. ``keys_as_values``: one product for both; ``shared_keys``: both are another layer's.
    """
    value_dim = value_dim or head_dim
    query, key, value = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
    rows: list[ParameterRow]
    if fused:
        rows = [*linear("attention.qkv", query + key + value, hidden, bias=q_bias, transposed=transposed)]
    else:
        rows = [
            *linear("attention.q", 2 * query if query_gate else query, hidden, bias=q_bias, transposed=transposed),
        ]
        if not shared_keys:
            rows += linear("attention.k", key, hidden, bias=k_bias, transposed=transposed)
        if not shared_keys and not keys_as_values:
            rows += linear("attention.v", value, hidden, bias=v_bias, transposed=transposed)
    rows += linear("attention.out", out or hidden, heads * value_dim, bias=out_bias, transposed=transposed)
    if qk_norm != "none":
        q_shape, k_shape = {"head": ((head_dim,), (head_dim,)), "full": ((query,), (key,)), "heads": ((heads, head_dim), (kv_heads, head_dim))}[
            qk_norm
        ]
        for part in ("weight", "bias") if qk_norm_bias else ("weight",):
            rows.append((f"attention.q_norm.{part}", q_shape, False))
            if not shared_keys:
                rows.append((f"attention.k_norm.{part}", k_shape, False))
    if sinks:
        rows.append(("attention.sinks", (heads,), False))
    return tuple(rows)


def attend(
    tape: Tape, x: Value, *, heads: int, kv_heads: int, head_dim: int, value_dim: int | None = None, out: int | None = None,
    fused: bool = False, qk_norm: QkNorm = "none", qk_norm_bias: bool = False, rotary: bool = True, softmax: str = "fp32", soft_cap: bool = False,
    dropout: bool = False, residual_dropout: bool = False, qk_norm_kind: str | None = None, query_gate: bool = False,
    keys_as_values: bool = False, shared_keys: bool = False, value_norm: bool = False, rotary_tables: int = 0, **_: object,
) -> Value:  # fmt: skip
    """The forward pass of multi-head or grouped-query attention; the last keywords change no tensor of its own.

    ``softmax``: the dtype in which the class computes unfused scores, fp32 or compute's. ``dropout``: on the scores.
    ``query_gate``: the result is multiplied by a sigmoid of what comes with the queries. ``value_norm``: values are normed too, without a weight.
    ``rotary_tables``: sines and cosines that each layer makes [a position].
    """
    value_dim = value_dim or head_dim
    query, key, value = (heads, head_dim), (kv_heads, head_dim), (kv_heads, value_dim)
    x = entering(tape, x)
    tp = tape.run.tp
    if tape.how.qkv in ONE_PRODUCT or (fused and tape.how.qkv == "as_written"):
        q = k = v = tape.linear(x, "attention.qkv", "queries, keys and values", (heads * head_dim + kv_heads * (head_dim + value_dim),), tp)
        if tape.how.qkv == "split":
            q, k, v = (Value(name, q.dtype, tp, (tape.run.tokens, *shape)) for name, shape in (("queries", query), ("keys", key), ("values", value)))
    else:
        q = tape.linear(x, "attention.q", "queries", (2 * heads, head_dim) if query_gate else query, tp)
        if shared_keys:
            k, v = (tape.elsewhere(name, q.dtype, tp, (tape.run.tokens, *shape)) for name, shape in (("keys", key), ("values", value)))
        else:
            k = tape.linear(x, "attention.k", "keys", key, tp)
            v = k if keys_as_values else tape.linear(x, "attention.v", "values", value, tp)
    if qk_norm != "none":
        kind = qk_norm_kind or ("layer" if qk_norm_bias else "rms")
        whole = qk_norm == "full"
        q = tape.norm(q.viewed("queries before their norm", (heads * head_dim,) if whole else query), "q norm", kind, "queries")
        if not shared_keys:
            k = tape.norm(k.viewed("keys before their norm", (kv_heads * head_dim,) if whole else key), "k norm", kind, "keys")
    if value_norm and not shared_keys:
        v = tape.norm(v.viewed("values before their norm", value), "v norm", qk_norm_kind or "rms", "values", weight=False)
    if rotary:
        turned = rotated(tape, (q, query), (k, key))
        q, k = (turned[0], k) if shared_keys else turned
    if rotary_tables and tape.how.rotary == "shared":
        tape.small("sines and cosines", x.dtype, 1, (tape.run.tokens // tape.run.micro_batch, rotary_tables))
    context = core(
        tape, q, k, v, heads=heads, head_dim=head_dim, value_dim=value_dim, grouped=kv_heads < heads, softmax=softmax, soft_cap=soft_cap,
        dropout=dropout,
    )  # fmt: skip
    if query_gate:
        gate = Value("sigmoid of the gate", context.dtype, tp, context.shape)
        context = tape.product(context, gate, "attention output, gated")
    return leaving(tape, tape.linear(context, "attention.out", "attention result", (out or x.shape[-1],), tape.run.sequence), residual_dropout)


def core(
    tape: Tape, q: Value, k: Value, v: Value, *, heads: int, head_dim: int, value_dim: int, grouped: bool, softmax: str, soft_cap: bool, dropout: bool
) -> Value:  # fmt: skip
    """softmax(q·k)·v by the kernel of the run; selective recomputation keeps what goes in and computes it again."""
    run = tape.run
    again = tape.region("core_attn", q, k, v)
    if tape.autocast:
        q, k, v = tape.cast(q, tape.compute), tape.cast(k, tape.compute), tape.cast(v, tape.compute)
    if grouped and run.kernel in tape.how.expands:
        k = Value("keys repeated for every head", k.dtype, run.tp, (run.tokens, heads, head_dim))
        v = Value("values repeated for every head", v.dtype, run.tp, (run.tokens, heads, value_dim))
    out = Value("attention output", q.dtype, run.tp, (run.tokens, heads, value_dim))
    if run.kernel in FUSED_KERNELS:
        for x in (q, k, v):
            tape.keep(x)
        statistics = Value("softmax statistics", FULL, run.tp, (run.tokens, heads))
        tape.keep_operator(statistics)
        tape.keep(statistics)
        tape.keep_operator(out)
        if not again:
            tape.keep(out)
    else:
        if run.micro_batch > 1 and tape.how.qkv == "as_written":
            q, k, v = _in_order(q, (heads, head_dim)), _in_order(k, (heads, head_dim)), _in_order(v, (heads, value_dim))
        _unfused(tape, q, k, v, (run.tokens, heads, run.seq), softmax, soft_cap, dropout)
    if again:
        tape.rebuilding = False
    return out


def _in_order(x: Value, shape: Shape) -> Value:
    """An operand of a batched product: a part of a larger tensor is copied, so that one sequence follows the other."""
    return x if x.base.shape[1:] == shape else Value(f"part of {x.name}", x.dtype, x.divisor, (x.shape[0], *shape))


def _unfused(tape: Tape, q: Value, k: Value, v: Value, scores: Shape, softmax: str, soft_cap: bool, dropout: bool) -> None:
    """Scores, softmax and the product with the values as operations of their own. PyTorch's ``math`` kernel works in fp32 throughout."""
    compute, tp = q.dtype, tape.run.tp
    math = tape.run.kernel == "math"
    if math:
        q, k, v = tape.cast(q, FULL), tape.cast(k, FULL), tape.cast(v, FULL)
    tape.keep(q)
    tape.keep(k)
    if soft_cap:
        tape.small("capped scores", q.dtype, tp, scores)
    full = math or tape.autocast or (softmax if tape.how.softmax == "as_written" else tape.how.softmax) == FULL
    probabilities = Value("softmax output", FULL if full else compute, tp, scores)
    tape.keep(probabilities)
    if not math:
        probabilities = tape.cast(probabilities, compute)
    if dropout:
        probabilities = tape.dropout(probabilities, "attention dropout")
    tape.keep(probabilities)
    tape.keep(v)


def rotated(tape: Tape, *projections: tuple[Value, Shape], dim: int = 0) -> list[Value]:
    """Queries and keys turned by their positions: new tensors; the sines and cosines are the model's or, in some code, the layer's own.

    ``dim``: how many numbers of a head are turned, where not all are.
    """
    run = tape.run
    if tape.how.rotary == "each_layer":
        head_dim = dim or projections[0][1][-1]
        tape.small("sines and cosines", run.compute, 1, (2 * len(projections), run.tokens // run.micro_batch, head_dim))
    named = zip(("queries", "keys"), projections, strict=True)
    return [Value(name, tape.wide, run.tp, (run.tokens, *shape)) for name, (_, shape) in named]


def entering(tape: Tape, x: Value) -> Value:
    """What a layer's first products read: under sequence parallelism gathered from all ranks, and kept so or only as this rank's share."""
    if x.divisor > 1 and tape.how.sequence_input == "kept_whole":
        return Value(f"{x.name}, gathered", x.dtype, 1, x.shape)
    return x


def leaving(tape: Tape, x: Value, dropout: bool) -> Value:
    """What goes to the residual addition."""
    return tape.dropout(x, f"{x.name.split()[0]} residual dropout") if dropout else x
