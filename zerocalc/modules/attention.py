"""Self-attention: multi-head, grouped-query or latent; its tensors, and its forward pass up to the residual addition."""

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


def attend(
    tape: Tape, x: Value, *, heads: int, kv_heads: int, head_dim: int, value_dim: int | None = None, out: int | None = None,
    fused: bool = False, qk_norm: QkNorm = "none", qk_norm_bias: bool = False, rotary: bool = True, softmax: str = "fp32", soft_cap: bool = False,
    dropout: bool = False, residual_dropout: bool = False, **_: object,
) -> Value:  # fmt: skip
    """The forward pass of multi-head or grouped-query attention; the last keywords change no tensor of its own.

    ``softmax``: the dtype in which the class computes unfused scores, fp32 or compute's. ``dropout``: on the scores.
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
        q = tape.linear(x, "attention.q", "queries", query, tp)
        k = tape.linear(x, "attention.k", "keys", key, tp)
        v = tape.linear(x, "attention.v", "values", value, tp)
    if qk_norm != "none":
        kind = "layer" if qk_norm_bias else "rms"
        whole = qk_norm == "full"
        q = tape.norm(q.viewed("queries before their norm", (heads * head_dim,) if whole else query), "q norm", kind, "queries")
        k = tape.norm(k.viewed("keys before their norm", (kv_heads * head_dim,) if whole else key), "k norm", kind, "keys")
    if rotary:
        q, k = rotated(tape, (q, query), (k, key))
    context = core(
        tape, q, k, v, heads=heads, head_dim=head_dim, value_dim=value_dim, grouped=kv_heads < heads, softmax=softmax, soft_cap=soft_cap,
        dropout=dropout,
    )  # fmt: skip
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
            if tape.how.context_output == "twice" and run.tokens < run.micro_batch * run.seq:
                tape.small("attention output before it is sent back", out.dtype, run.tp, out.shape)
    else:
        _unfused(tape, q, k, v, (run.tokens, heads, run.seq), softmax, soft_cap, dropout)
    if again:
        tape.rebuilding = False
    return out


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


def rotated(tape: Tape, *projections: tuple[Value, Shape]) -> list[Value]:
    """Queries and keys turned by their positions: new tensors; the sines and cosines are the model's or, in some code, the layer's own."""
    run = tape.run
    if tape.how.rotary == "each_layer":
        head_dim = projections[0][1][-1]
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
