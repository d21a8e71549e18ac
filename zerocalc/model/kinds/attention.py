"""Self-attention, multi-head or grouped-query: its tensors, and its forward pass up to the residual
addition.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from zerocalc.model.module import ParameterRow, linear
from zerocalc.model.trace import FULL, MASK, Shape, Tape, Value

QkNorm = Literal["none", "head", "full", "heads"]

ONE_PRODUCT = frozenset({"fused", "split"})
"""One product for queries, keys and values, of which they are views, or from which they are copied.
"""
FINISHING = frozenset({"joined", "gate", "gate_width", "inner_norm"})
"""Values that speak of what happens to the heads' results before the last product."""
FUSED_KERNELS = frozenset({"flash", "efficient"})
"""Kernels that keep the softmax's log-sum-exp, one fp32 per head and token, and no scores (arXiv
2205.14135, algorithm 1).
"""


def projections(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    out: int | None = None,
    q_bias: bool = False,
    k_bias: bool = False,
    v_bias: bool = False,
    out_bias: bool = False,
    qk_norm: QkNorm = "none",
    qk_norm_bias: bool = False,
    fused: bool = False,
    transposed: bool = False,
    sinks: bool = False,
    query_gate: bool = False,
    keys_as_values: bool = False,
    shared_keys: bool = False,
) -> tuple[ParameterRow, ...]:
    """The tensors of multi-head or grouped-query attention.

    ``fused`` makes one tensor of q, k and v, whose bias is then ``q_bias``. ``qk_norm``: over one
    ``head`` (a vector of head_dim for q, one for k), over the ``full`` q and k, or over each of the
    ``heads`` on its own. ``sinks``: one learned score a head. ``query_gate``: the product that
    yields queries yields a gate of the result too. ``keys_as_values``: one product for both;
    ``shared_keys``: both are another layer's.
    """
    value_dim = value_dim or head_dim
    query, key, value = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
    rows: list[ParameterRow]
    if fused:
        rows = [
            *linear(
                "attention.qkv", query + key + value, hidden, bias=q_bias, transposed=transposed
            )
        ]
    else:
        rows = [
            *linear(
                "attention.q",
                2 * query if query_gate else query,
                hidden,
                bias=q_bias,
                transposed=transposed,
            ),
        ]
        if not shared_keys:
            rows += linear("attention.k", key, hidden, bias=k_bias, transposed=transposed)
        if not shared_keys and not keys_as_values:
            rows += linear("attention.v", value, hidden, bias=v_bias, transposed=transposed)
    rows += linear(
        "attention.out", out or hidden, heads * value_dim, bias=out_bias, transposed=transposed
    )
    if qk_norm != "none":
        q_shape, k_shape = {
            "head": ((head_dim,), (head_dim,)),
            "full": ((query,), (key,)),
            "heads": ((heads, head_dim), (kv_heads, head_dim)),
        }[qk_norm]
        for part in ("weight", "bias") if qk_norm_bias else ("weight",):
            rows.append((f"attention.q_norm.{part}", q_shape, False))
            if not shared_keys:
                rows.append((f"attention.k_norm.{part}", k_shape, False))
    if sinks:
        rows.append(("attention.sinks", (heads,), False))
    return tuple(rows)


def attend(
    tape: Tape,
    x: Value,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    out: int | None = None,
    softmax: str = "fp32",
    soft_cap: bool = False,
    clamped: bool = False,
    sinks: bool = False,
    sink_gate: bool = False,
    dropout: bool = False,
    residual_dropout: bool = False,
    query_gate: bool = False,
    value_norm: bool = False,
    differential: bool = False,
    dynamic_mask: int = 0,
    **values: Any,
) -> Value:
    """The forward pass of multi-head or grouped-query attention.

    ``softmax``: the dtype in which the class computes unfused scores, fp32 or compute's, or
    ``fp32_scores``, with queries and keys that are cast before their product, or ``shifted``,
    compute's with the largest score subtracted first. ``soft_cap``, ``clamped``: an operation
    bounds scores. ``dropout``: on the scores. ``sink_gate``: sinks scale the result instead of
    being scores. ``query_gate``: a sigmoid of what comes with the queries does. ``value_norm``:
    values are normed too, without a weight. ``differential``: the difference of two results.
    ``dynamic_mask``: the values decide what is masked, from so many positions on. Other values:
    `_projected`, `_positioned`, `_finished`.
    """
    value_dim = value_dim or head_dim
    x = entering(tape, x)
    q, k, v = _projected(
        tape,
        x,
        (heads, head_dim),
        (kv_heads, head_dim),
        (kv_heads, value_dim),
        query_gate=query_gate,
        **values,
    )
    if value_norm and not values.get("shared_keys"):
        before = v.viewed("values before their norm", (kv_heads, value_dim))
        v = tape.norm(before, "v norm", values.get("qk_norm_kind") or "rms", "values", weight=False)
    if values.get("repeated") and tape.how.qkv == "as_written":
        kv_heads = heads
    q, k = _positioned(tape, x, q, k, (heads, head_dim), (kv_heads, head_dim), **values)
    grouped = kv_heads < heads and not (kv_heads == 1 and _many_views(tape))
    if dynamic_mask:
        v = _dynamic_mask(tape, v, (kv_heads, value_dim), dynamic_mask)
    attended = _differential if differential else core
    context = attended(
        tape,
        q,
        k,
        v,
        heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        grouped=grouped,
        softmax=softmax,
        soft_cap=soft_cap or clamped,
        sinks=sinks and not sink_gate,
        dropout=dropout,
    )
    if sink_gate and tape.run.kernel == "eager":
        context = _sink_gate(tape, context, heads)
    if query_gate:
        context = tape.product(
            context,
            Value("sigmoid of the gate", context.dtype, tape.run.tp, context.shape),
            "attention output, gated",
        )
    if not FINISHING.isdisjoint(values):
        context = _finished(tape, x, context, heads * value_dim, **values)
    return leaving(
        tape,
        tape.linear(
            context, "attention.out", "attention result", (out or x.shape[-1],), tape.run.sequence
        ),
        residual_dropout,
    )


def _projected(
    tape: Tape,
    x: Value,
    query: Shape,
    key: Shape,
    value: Shape,
    *,
    fused: bool = False,
    repeated: bool = False,
    copied: bool = False,
    memory: bool = False,
    bounded: bool = False,
    query_gate: bool = False,
    keys_as_values: bool = False,
    shared_keys: bool = False,
    **_: object,
) -> tuple[Value, Value, Value]:
    """Queries, keys and values. ``repeated``: these two for every head, whatever the kernel;
    ``copied``: out of one product (``fused``).

    ``memory``: keys and values are those of the encoder's output, which is kept once for all
    layers. ``bounded``: all three by an operation that keeps what goes in.
    """
    tp, tokens = tape.run.tp, tape.run.tokens
    as_written = tape.how.qkv == "as_written"
    if tape.how.qkv in ONE_PRODUCT or (fused and as_written):
        width = query[0] * query[1] + key[0] * (key[1] + value[1])
        q = k = v = tape.linear(x, "attention.qkv", "queries, keys and values", (width,), tp)
        if tape.how.qkv == "split":
            q = Value("queries", q.dtype, tp, (tokens, *query))
        if tape.how.qkv == "split" or (copied and as_written):
            k, v = (
                Value("keys", k.dtype, tp, (tokens, *key)),
                Value("values", v.dtype, tp, (tokens, *value)),
            )
        if bounded and as_written:
            tape.keep(q)
            q = k = v = tape.like(q, "queries, keys and values, bounded")
    else:
        q = tape.linear(
            x, "attention.q", "queries", (2 * query[0], query[1]) if query_gate else query, tp
        )
        if shared_keys:
            turned, values = (
                Value("keys", tape.wide, tp, (tokens, *key)),
                Value("values", q.dtype, tp, (tokens, *value)),
            )
            return q, tape.elsewhere(turned), tape.elsewhere(values)
        if memory:
            x = tape.elsewhere(tape.stream("encoder output", x.shape[-1]))
        k = tape.linear(x, "attention.k", "keys", key, tp)
        v = k if keys_as_values else tape.linear(x, "attention.v", "values", value, tp)
        if bounded and as_written:
            for part in (q, k, v):
                tape.keep(part)
            q, k, v = (
                tape.like(q, "queries, bounded"),
                tape.like(k, "keys, bounded"),
                tape.like(v, "values, bounded"),
            )
    if repeated and as_written and key[0] < query[0]:
        k, v = _expanded(tape, k, v, query[0], key[1], value[1])
    return q, k, v


def _positioned(
    tape: Tape,
    x: Value,
    q: Value,
    k: Value,
    query: Shape,
    key: Shape,
    *,
    qk_norm: QkNorm = "none",
    qk_norm_bias: bool = False,
    qk_norm_kind: str | None = None,
    qk_norm_after: bool = False,
    rotary: bool = True,
    rotary_tables: int = 0,
    rotary_dtype: str = "compute",
    shared_keys: bool = False,
    **_: object,
) -> tuple[Value, Value]:
    """Norms and rotation of queries and keys. ``qk_norm_kind`` without ``qk_norm``: norms without
    weights; ``qk_norm_after``: after the rotation.

    ``rotary_tables``: sines and cosines that each layer makes [a position], in the dtype of its
    input unless ``rotary_dtype`` is fp32.
    """
    if rotary and qk_norm_after:
        q, k = rotated(tape, (q, query), (k, key))
    if qk_norm != "none" or qk_norm_kind is not None:
        kind, weight, whole = (
            qk_norm_kind or ("layer" if qk_norm_bias else "rms"),
            qk_norm != "none",
            qk_norm == "full",
        )
        before = q.viewed("queries before their norm", (math.prod(query),) if whole else query)
        q = tape.norm(before, "q norm", kind, "queries", weight=weight)
        before = k.viewed("keys before their norm", (math.prod(key),) if whole else key)
        k = k if shared_keys else tape.norm(before, "k norm", kind, "keys", weight=weight)
    if rotary and not qk_norm_after:
        turned = rotated(tape, (q, query), (k, key))
        q, k = (turned[0], k) if shared_keys else turned
    if rotary_tables and tape.how.rotary == "shared":
        tape.small(
            "sines and cosines",
            FULL if rotary_dtype == FULL else x.dtype,
            1,
            (tape.run.tokens // tape.run.micro_batch, rotary_tables),
        )
    return q, k


def _finished(
    tape: Tape,
    x: Value,
    context: Value,
    width: int,
    *,
    joined: bool = False,
    gate: str | None = None,
    gate_width: int = 0,
    inner_norm: str | None = None,
    **_: object,
) -> Value:
    """What happens to the heads' results before the last product.

    ``joined``: the rotation joins turned and other parts, after which queries lie head by head, as
    does a flash kernel's result until it is copied. ``gate``: the function of a projection of the
    input, of ``gate_width`` or as wide as the results, that scales these. ``inner_norm``: of them.
    """
    if joined and tape.run.kernel == "flash" and tape.how.qkv == "as_written":
        context = tape.like(context, "attention output, token by token")
    if gate:
        context = _gated(tape, x, context, gate, gate_width or width)
    if inner_norm:
        context = tape.norm(
            context.viewed("attention output", (width,)),
            "inner norm",
            inner_norm,
            "attention output, normed",
        )
    return context


def _many_views(tape: Tape) -> bool:
    """Whether a single key-value head repeated for all heads is not copied: by a batched product of
    several sequences it is.
    """
    run = tape.run
    return tape.how.qkv == "as_written" and (
        run.kernel == "efficient" or (run.kernel == "eager" and run.micro_batch == 1)
    )


def _gated(tape: Tape, x: Value, context: Value, gate: str, width: int) -> Value:
    """The heads' results times a function of a projection of the layer's input; softplus is
    computed in fp32 and keeps what goes in.
    """
    projected = tape.linear(x, "attention.gate", "attention gate", (width,), tape.run.tp)
    tape.keep(context)
    if gate == "softplus":
        tape.keep(tape.cast(projected, FULL))
    tape.keep(tape.like(projected, f"{gate} of the attention gate"))
    return tape.like(context, "attention output, gated")


def _sink_gate(tape: Tape, context: Value, heads: int) -> Value:
    """The heads' results times σ(log-sum-exp of the scores - sink): the scores are kept for the
    log-sum-exp's backward.
    """
    run = tape.run
    tape.small("scores", context.dtype, run.tp, (run.tokens, heads, run.seq))
    tape.small("log-sum-exp of the scores", context.dtype, run.tp, (run.tokens, heads))
    tape.small("sinks' gate", FULL, run.tp, (run.tokens, heads))
    tape.keep(context)
    tape.small("sinks' gate (16-bit)", context.dtype, run.tp, (run.tokens, heads))
    return tape.like(context, "attention output, gated")


def _expanded(
    tape: Tape, k: Value, v: Value, heads: int, head_dim: int, value_dim: int
) -> tuple[Value, Value]:
    tokens, tp = tape.run.tokens, tape.run.tp
    return (
        Value("keys repeated for every head", k.dtype, tp, (tokens, heads, head_dim)),
        Value("values repeated for every head", v.dtype, tp, (tokens, heads, value_dim)),
    )


def core(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    *,
    heads: int,
    head_dim: int,
    value_dim: int,
    grouped: bool,
    softmax: str,
    soft_cap: bool,
    dropout: bool,
    sinks: bool = False,
) -> Value:
    """softmax(q·k)·v by the kernel of the run; selective recomputation keeps what goes in and
    computes it again.
    """
    run = tape.run
    again = tape.region("core_attn", q, k, v)
    if tape.autocast:
        q, k, v = tape.cast(q, tape.compute), tape.cast(k, tape.compute), tape.cast(v, tape.compute)
    if grouped and run.kernel in tape.how.expands:
        k, v = _expanded(tape, k, v, heads, head_dim, value_dim)
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
            if tape.how.context_output == "twice" and run.tokens < run.micro_batch * run.seq:
                tape.small("attention output before it is sent back", out.dtype, run.tp, out.shape)
    else:
        if run.micro_batch > 1 and tape.how.qkv == "as_written":
            q, k, v = (
                _in_order(q, (heads, head_dim)),
                _in_order(k, (heads, head_dim)),
                _in_order(v, (heads, value_dim)),
            )
        _unfused(tape, q, k, v, (run.tokens, heads, run.seq), softmax, soft_cap, sinks, dropout)
    if again:
        tape.rebuilding = False
    return out


def _differential(
    tape: Tape, q: Value, k: Value, v: Value, *, heads: int, value_dim: int, **how: Any
) -> Value:
    """Differential attention (arXiv 2410.05258 §2.1): for each half of the values, repeated, a pass
    over the same queries and keys; of their results side by side one half of the heads less λ times
    the other, normed.
    """
    run = tape.run
    for half in ("first half", "second half"):
        values = Value(
            f"{half} of the values, repeated",
            v.dtype,
            run.tp,
            (run.tokens, heads if v.shape[1:] == q.shape[1:] else v.shape[1], value_dim),
        )
        if half == "second half" and run.kernel == "eager" and run.micro_batch > 1:
            q, k = (
                tape.like(q, "queries, in order once more"),
                tape.like(k, "keys, in order once more"),
            )
        out = core(tape, q, k, values, heads=heads, value_dim=value_dim, **how)
    tape.scale(
        Value(
            "results for both halves of the values",
            out.dtype,
            run.tp,
            (run.tokens, heads, 2 * value_dim),
        ),
        "results times λ",
    )
    difference = Value(
        "difference of the results", out.dtype, run.tp, (run.tokens, heads // 2, 2 * value_dim)
    )
    return tape.norm(difference, "inner norm", "rms_fused", "attention output", weight=False)


def _dynamic_mask(tape: Tape, v: Value, value: Shape, window: int) -> Value:
    """exp(A·softplus(dt(values))), a number for each key, is added to the scores; beyond a
    ``window`` only the largest keep theirs (Doge).
    """
    run, divisor = tape.run, v.divisor
    step = tape.linear(
        v.viewed("values", (math.prod(value),)), "dt_proj", "steps of the mask", value[:1], divisor
    )
    step = tape.cast(step, FULL) if tape.autocast else step
    tape.keep(step)
    for name in ("softplus of the steps", "exp of the steps"):
        tape.keep(tape.like(step, name))
    tape.small("causal mask", MASK, 1, (run.tokens, run.seq))
    if run.seq > window:
        tape.small(
            "mask of what is not among the largest",
            MASK,
            divisor,
            (run.tokens, *value[:1], run.seq),
        )
    return tape.like(v, "values, sequence after sequence") if run.micro_batch > 1 else v


def _in_order(x: Value, shape: Shape) -> Value:
    """An operand of a batched product: a part of a larger tensor is copied, so that one sequence
    follows the other.
    """
    return (
        x
        if x.base.shape[1:] == shape
        else Value(f"part of {x.name}", x.dtype, x.divisor, (x.shape[0], *shape))
    )


def _unfused(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    scores: Shape,
    softmax: str,
    soft_cap: bool,
    sinks: bool,
    dropout: bool,
) -> None:
    """Scores, softmax and the product with the values as operations of their own. PyTorch's
    ``math`` kernel works in fp32 throughout.
    """
    compute, tp = q.dtype, tape.run.tp
    math = tape.run.kernel == "math"
    if math or (softmax == "fp32_scores" and not tape.autocast):
        q, k = tape.cast(q, FULL), tape.cast(k, FULL)
    if math:
        v = tape.cast(v, FULL)
    tape.keep(q)
    tape.keep(k)
    if soft_cap:
        tape.small("capped scores", q.dtype, tp, scores)
    if tape.how.softmax == "as_written":
        if softmax == "shifted":
            tape.small("places of the largest scores", "int64", tp, scores[:2])
        scores = (*scores[:2], scores[2] + sinks)
        wide = softmax in {FULL, "fp32_scores"}
    else:
        wide = tape.how.softmax == FULL
    full = math or tape.autocast or wide
    probabilities = Value("softmax output", FULL if full else compute, tp, scores)
    tape.keep(probabilities)
    if not math:
        probabilities = tape.cast(probabilities, compute)
    if dropout:
        probabilities = tape.dropout(probabilities, "attention dropout")
    tape.keep(probabilities)
    tape.keep(v)


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


def entering(tape: Tape, x: Value) -> Value:
    """What a layer's first products read: under sequence parallelism gathered from all ranks, and
    kept so or only as this rank's share.
    """
    if x.divisor > 1 and tape.how.sequence_input == "kept_whole":
        return Value(f"{x.name}, gathered", x.dtype, 1, x.shape)
    return x


def leaving(tape: Tape, x: Value, dropout: bool) -> Value:
    """What goes to the residual addition."""
    return tape.dropout(x, f"{x.name.split()[0]} residual dropout") if dropout else x
