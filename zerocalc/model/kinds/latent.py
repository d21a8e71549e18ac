"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1): its tensors, and its forward
pass up to the residual addition.
"""

from __future__ import annotations

from zerocalc.model.kind import Facts, Kind
from zerocalc.model.kinds.attention_inputs import rotated
from zerocalc.model.kinds.scores import Scores, core
from zerocalc.model.module import ParameterRow, linear, replicated
from zerocalc.model.trace import FULL, Tape, Value


def latent_projections(
    *,
    hidden: int,
    heads: int,
    q_lora_rank: int,
    kv_lora_rank: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
    bias: bool = False,
    out_bias: bool | None = None,
    head_gate: bool = False,
) -> tuple[ParameterRow, ...]:
    """The tensors of latent attention: low ranks for queries and for keys and values, each normed.
    ``head_gate``: a gate for each head's result.
    """
    query = heads * (nope_dim + rope_dim)
    if q_lora_rank:
        rows = (
            *linear("attention.q_down", q_lora_rank, hidden, bias=bias, split="none"),
            replicated("attention.q_norm.weight", q_lora_rank),
            *linear("attention.q_up", query, q_lora_rank),
        )
    else:
        rows = linear("attention.q", query, hidden)
    return (
        *rows,
        *linear("attention.kv_down", kv_lora_rank + rope_dim, hidden, bias=bias, split="none"),
        replicated("attention.kv_norm.weight", kv_lora_rank),
        *linear("attention.kv_up", heads * (nope_dim + value_dim), kv_lora_rank),
        *(linear("attention.gate", heads, hidden) if head_gate else ()),
        *linear(
            "attention.out",
            hidden,
            heads * value_dim,
            bias=bias if out_bias is None else out_bias,
            split="rows",
        ),
    )


def latent(
    tape: Tape,
    x: Value,
    *,
    heads: int,
    q_lora_rank: int,
    kv_lora_rank: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
    rotary: bool = True,
    dropout: bool = False,
    head_gate: bool = False,
) -> Value:
    """The forward pass of latent attention; ``rotary`` and ``dropout`` (on the scores) change no
    tensor of its own.

    Every rank of tensor parallelism computes the low ranks; heads are divided. Queries and keys are
    put together from their two parts into new tensors, and values are a view of what they are
    expanded with.
    """
    tp, tokens, hidden = tape.run.tp, tape.run.tokens, x.shape[-1]
    head_dim = nope_dim + rope_dim
    if q_lora_rank:
        low = tape.linear(
            x, "attention.q_down", "low-rank queries", (q_lora_rank,), tape.run.sequence
        )
        low = tape.entering(tape.norm(low, "q norm", "rms", "low-rank queries, normed"))
        q = tape.linear(low, "attention.q_up", "queries", (heads, head_dim), tp)
    else:
        q = tape.linear(tape.entering(x), "attention.q", "queries", (heads, head_dim), tp)
    both = tape.linear(
        x,
        "attention.kv_down",
        "low-rank keys and values",
        (kv_lora_rank + rope_dim,),
        tape.run.sequence,
    )
    low = tape.entering(
        tape.norm(
            both.viewed("low-rank keys and values", (kv_lora_rank,)),
            "kv norm",
            "rms",
            "low-rank keys and values, normed",
        ),
    )
    expanded = tape.linear(
        low, "attention.kv_up", "keys and values", (heads, nope_dim + value_dim), tp
    )
    k = Value("keys", expanded.dtype, tp, (tokens, heads, head_dim))
    if rotary:
        q, k = rotated(tape, (q, q.shape[1:]), (k, k.shape[1:]), dim=rope_dim)
    context = core(
        tape,
        q,
        k,
        expanded.viewed("values", (heads, value_dim)),
        Scores(heads, head_dim, value_dim, dropout=dropout),
    )
    if head_gate:
        tape.linear(x, "attention.gate", "gate", (heads,), tp)
        tape.small("sigmoid of the gate (fp32)", FULL, tp, (tokens, heads))
        gate = Value("sigmoid of the gate", context.dtype, tp, (tokens, heads))
        tape.product(gate, context, "attention output, gated")
        context = tape.like(context, "attention output, gated")
    return tape.linear(context, "attention.out", "attention result", (hidden,), tape.run.sequence)


def facts(*, heads: int, nope_dim: int, rope_dim: int, value_dim: int) -> Facts:
    """Latent attention makes a key and a value for every head."""
    return {"attends": (heads, heads, nope_dim + rope_dim, value_dim)}


MLA = Kind(
    component="attention",
    sizes=("hidden", "heads", "kv_lora_rank", "nope_dim", "rope_dim", "value_dim"),
    weights=latent_projections,
    facts=facts,
    forward=latent,
    norms=("attention",),
)
