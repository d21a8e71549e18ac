"""Scores of queries and keys, and the product with the values, by the kernel of the run."""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.model.trace import FULL, Shape, Tape, Value

FUSED_KERNELS = frozenset({"flash", "efficient"})
"""Kernels that keep the softmax's log-sum-exp, one fp32 per head and token, and no scores (arXiv
2205.14135, algorithm 1).
"""


@record
class Scores:
    """How many heads have scores, and how these are computed."""

    heads: int
    head_dim: int
    value_dim: int
    grouped: bool = False
    """Several heads share a key-value head."""
    softmax: str = "fp32"
    """As in `Attention`."""
    bounded: bool = False
    """An operation bounds the scores."""
    sinks: bool = False
    """Each head has one learned score more."""
    dropout: bool = False


def core(tape: Tape, q: Value, k: Value, v: Value, s: Scores) -> Value:
    """softmax(q·k)·v by the kernel of the run; selective recomputation keeps what goes in and
    computes it again.
    """
    run = tape.run
    again = tape.region("core_attn", q, k, v)
    if tape.autocast:
        q, k, v = tape.cast(q, tape.compute), tape.cast(k, tape.compute), tape.cast(v, tape.compute)
    if s.grouped and run.kernel in tape.how.expands:
        k, v = expanded(tape, k, v, s.heads, s.head_dim, s.value_dim)
    out = Value("attention output", q.dtype, run.tp, (run.tokens, s.heads, s.value_dim))
    if run.kernel in FUSED_KERNELS:
        _fused(tape, (q, k, v), out, again)
    else:
        if run.micro_batch > 1 and tape.how.qkv == "as_written":
            q, k = _in_order(q, (s.heads, s.head_dim)), _in_order(k, (s.heads, s.head_dim))
            v = _in_order(v, (s.heads, s.value_dim))
        _unfused(tape, q, k, v, s)
    if again:
        tape.rebuilding = False
    return out


def differential(tape: Tape, q: Value, k: Value, v: Value, s: Scores) -> Value:
    """Differential attention (arXiv 2410.05258 §2.1): for each half of the values, repeated, a pass
    over the same queries and keys; of their results side by side one half of the heads less λ times
    the other, normed.
    """
    run, heads = tape.run, s.heads
    for half in ("first half", "second half"):
        values = Value(
            f"{half} of the values, repeated",
            v.dtype,
            run.tp,
            (run.tokens, heads if v.shape[1:] == q.shape[1:] else v.shape[1], s.value_dim),
        )
        if half == "second half" and run.kernel == "eager" and run.micro_batch > 1:
            q = tape.like(q, "queries, in order once more")
            k = tape.like(k, "keys, in order once more")
        out = core(tape, q, k, values, s)
    both, width = "results for both halves of the values", 2 * s.value_dim
    tape.scale(Value(both, out.dtype, run.tp, (run.tokens, heads, width)), "results times λ")
    difference = Value(
        "difference of the results", out.dtype, run.tp, (run.tokens, heads // 2, width)
    )
    return tape.norm(difference, "inner norm", "rms_fused", "attention output", weight=False)


def expanded(
    tape: Tape, k: Value, v: Value, heads: int, head_dim: int, value_dim: int
) -> tuple[Value, Value]:
    """Keys and values, repeated for every head."""
    tokens, tp = tape.run.tokens, tape.run.tp
    return (
        Value("keys repeated for every head", k.dtype, tp, (tokens, heads, head_dim)),
        Value("values repeated for every head", v.dtype, tp, (tokens, heads, value_dim)),
    )


def _fused(tape: Tape, read: tuple[Value, ...], out: Value, again: bool) -> None:
    """One kernel: it saves what it reads, the softmax's statistics and its result."""
    run = tape.run
    for x in read:
        tape.keep(x)
    statistics = Value("softmax statistics", FULL, run.tp, out.shape[:2])
    tape.keep_operator(statistics)
    tape.keep(statistics)
    tape.keep_operator(out)
    if again:
        return
    tape.keep(out)
    if tape.how.context_output == "twice" and run.tokens < run.micro_batch * run.seq:
        tape.small("attention output before it is sent back", out.dtype, run.tp, out.shape)


def _in_order(x: Value, shape: Shape) -> Value:
    """An operand of a batched product: a part of a larger tensor is copied, so that one sequence
    follows the other.
    """
    return (
        x
        if x.base.shape[1:] == shape
        else Value(f"part of {x.name}", x.dtype, x.divisor, (x.shape[0], *shape))
    )


def _unfused(tape: Tape, q: Value, k: Value, v: Value, s: Scores) -> None:
    """Scores, softmax and the product with the values as operations of their own. PyTorch's
    ``math`` kernel works in fp32 throughout.
    """
    compute, tp, softmax = q.dtype, tape.run.tp, s.softmax
    scores = (tape.run.tokens, s.heads, tape.run.seq)
    math = tape.run.kernel == "math"
    if math or (softmax == "fp32_scores" and not tape.autocast):
        q, k = tape.cast(q, FULL), tape.cast(k, FULL)
    if math:
        v = tape.cast(v, FULL)
    tape.keep(q)
    tape.keep(k)
    if s.bounded:
        tape.small("capped scores", q.dtype, tp, scores)
    if tape.how.softmax == "as_written":
        if softmax == "shifted":
            tape.small("places of the largest scores", "int64", tp, scores[:2])
        scores = (*scores[:2], scores[2] + s.sinks)
        wide = softmax in {FULL, "fp32_scores"}
    else:
        wide = tape.how.softmax == FULL
    full = math or tape.autocast or wide
    probabilities = Value("softmax output", FULL if full else compute, tp, scores)
    tape.keep(probabilities)
    if not math:
        probabilities = tape.cast(probabilities, compute)
    if s.dropout:
        probabilities = tape.dropout(probabilities, "attention dropout")
    tape.keep(probabilities)
    tape.keep(v)
