"""Self-attention, multi-head or grouped-query: its forward pass up to the residual addition."""

from __future__ import annotations

import math
from typing import get_args

from zerocalc.model.kind import NORMS, PRECISIONS, Kind
from zerocalc.model.kinds.attention_inputs import ONE_PRODUCT, positioned, projected
from zerocalc.model.kinds.attention_values import (
    Attention,
    Gate,
    Kernels,
    QkNorm,
    Softmax,
    facts,
    projections,
)
from zerocalc.model.kinds.scores import FUSED_KERNELS, Scores, core, differential
from zerocalc.model.trace import FULL, MASK, Shape, Tape, Value

__all__ = ["ATTENTION", "FUSED_KERNELS", "ONE_PRODUCT"]


def attend(tape: Tape, x: Value, a: Attention) -> Value:
    """The forward pass of multi-head or grouped-query attention."""
    x = tape.entering(x)
    q, k, v = projected(tape, x, a)
    if a.value_norm and not a.shared_keys:
        before = v.viewed("values before their norm", a.value)
        v = tape.norm(before, "v norm", a.qk_norm_kind or "rms", "values", weight=False)
    kv_heads = a.heads if a.repeated and tape.how.qkv == "as_written" else a.kv_heads
    value_dim = a.value[1]
    q, k = positioned(tape, x, q, k, (kv_heads, a.head_dim), a)
    if a.dynamic_mask:
        v = _dynamic_mask(tape, v, (kv_heads, value_dim), a.dynamic_mask)
    scores = Scores(
        a.heads,
        a.head_dim,
        value_dim,
        grouped=kv_heads < a.heads and not (kv_heads == 1 and _many_views(tape)),
        softmax=a.softmax,
        bounded=a.soft_cap or a.clamped,
        sinks=a.sinks and not a.sink_gate,
        dropout=a.dropout,
    )
    context = (differential if a.differential else core)(tape, q, k, v, scores)
    context = _finished(tape, x, context, a)
    width, sequence = (a.out or x.shape[-1],), tape.run.sequence
    result = tape.linear(context, "attention.out", "attention result", width, sequence)
    return tape.leaving(result, a.residual_dropout)


def _finished(tape: Tape, x: Value, context: Value, a: Attention) -> Value:
    """What happens to the heads' results before the last product."""
    if a.sink_gate and tape.run.kernel == "eager":
        context = _sink_gate(tape, context, a.heads)
    if a.query_gate:
        gate = Value("sigmoid of the gate", context.dtype, tape.run.tp, context.shape)
        context = tape.product(context, gate, "attention output, gated")
    if a.joined and tape.run.kernel == "flash" and tape.how.qkv == "as_written":
        context = tape.like(context, "attention output, token by token")
    width = a.heads * a.value[1]
    if a.gate:
        context = _gated(tape, x, context, a.gate, a.gate_width or width)
    if a.inner_norm:
        before = context.viewed("attention output", (width,))
        context = tape.norm(before, "inner norm", a.inner_norm, "attention output, normed")
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
    projection = tape.linear(x, "attention.gate", "attention gate", (width,), tape.run.tp)
    tape.keep(context)
    if gate == "softplus":
        tape.keep(tape.cast(projection, FULL))
    tape.keep(tape.like(projection, f"{gate} of the attention gate"))
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


ATTENTION = Kind(
    component="attention",
    sizes=("hidden", "heads", "kv_heads", "head_dim"),
    values=Attention,
    weights=projections,
    facts=facts,
    forward=attend,
    norms=("attention",),
    words={
        "qk_norm": get_args(QkNorm),
        "qk_norm_kind": NORMS,
        "inner_norm": NORMS,
        "gate": get_args(Gate),
        "softmax": get_args(Softmax),
        "rotary_dtype": PRECISIONS,
        "kernels": get_args(Kernels),
    },
)
