"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1): its tensors, and its forward
pass up to the residual addition.
"""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.model.kind import Facts, Kind
from zerocalc.model.kinds.attention_inputs import rotated
from zerocalc.model.kinds.scores import Scores, core
from zerocalc.model.module import ParameterRow, linear, replicated
from zerocalc.model.trace import FULL, Tape, Value


@record
class Latent:
    """The values of latent attention."""

    hidden: int
    heads: int
    q_lora_rank: int
    """Numbers of the low-rank queries; 0: queries are projected at once."""
    kv_lora_rank: int
    nope_dim: int
    """Numbers of a query, and of a key, that are not turned by its position, and of those that
    are (``rope_dim``).
    """
    rope_dim: int
    value_dim: int
    bias: bool = False
    out_bias: bool | None = None
    """Whether the last product has a bias, where that is not as ``bias`` says."""
    head_gate: bool = False
    """A gate for each head's result."""
    rotary: bool = True
    dropout: bool = False
    """On the scores."""

    @property
    def head_dim(self) -> int:
        """Numbers of a query, and of a key."""
        return self.nope_dim + self.rope_dim


def latent_projections(a: Latent) -> tuple[ParameterRow, ...]:
    """The tensors of latent attention: low ranks for queries and for keys and values, each
    normed.
    """
    hidden, rank, low = a.hidden, a.kv_lora_rank, a.q_lora_rank
    query = a.heads * a.head_dim
    if low:
        rows = (
            *linear("attention.q_down", low, hidden, bias=a.bias, split="none"),
            replicated("attention.q_norm.weight", low),
            *linear("attention.q_up", query, low),
        )
    else:
        rows = linear("attention.q", query, hidden)
    return (
        *rows,
        *linear("attention.kv_down", rank + a.rope_dim, hidden, bias=a.bias, split="none"),
        replicated("attention.kv_norm.weight", rank),
        *linear("attention.kv_up", a.heads * (a.nope_dim + a.value_dim), rank),
        *(linear("attention.gate", a.heads, hidden) if a.head_gate else ()),
        *linear(
            "attention.out",
            hidden,
            a.heads * a.value_dim,
            bias=a.bias if a.out_bias is None else a.out_bias,
            split="rows",
        ),
    )


def latent(tape: Tape, x: Value, a: Latent) -> Value:
    """The forward pass of latent attention.

    Every rank of tensor parallelism computes the low ranks; heads are divided. Queries and keys are
    put together from their two parts into new tensors, and values are a view of what they are
    expanded with.
    """
    heads, head_dim, value_dim = a.heads, a.head_dim, a.value_dim
    tp, tokens, hidden = tape.run.tp, tape.run.tokens, x.shape[-1]
    if a.q_lora_rank:
        low = tape.linear(
            x, "attention.q_down", "low-rank queries", (a.q_lora_rank,), tape.run.sequence
        )
        low = tape.entering(tape.norm(low, "q norm", "rms", "low-rank queries, normed"))
        q = tape.linear(low, "attention.q_up", "queries", (heads, head_dim), tp)
    else:
        q = tape.linear(tape.entering(x), "attention.q", "queries", (heads, head_dim), tp)
    both = tape.linear(
        x,
        "attention.kv_down",
        "low-rank keys and values",
        (a.kv_lora_rank + a.rope_dim,),
        tape.run.sequence,
    )
    low = tape.entering(
        tape.norm(
            both.viewed("low-rank keys and values", (a.kv_lora_rank,)),
            "kv norm",
            "rms",
            "low-rank keys and values, normed",
        ),
    )
    expanded = tape.linear(
        low, "attention.kv_up", "keys and values", (heads, a.nope_dim + value_dim), tp
    )
    k = Value("keys", expanded.dtype, tp, (tokens, heads, head_dim))
    if a.rotary:
        q, k = rotated(tape, (q, q.shape[1:]), (k, k.shape[1:]), dim=a.rope_dim)
    context = core(
        tape,
        q,
        k,
        expanded.viewed("values", (heads, value_dim)),
        Scores(heads, head_dim, value_dim, dropout=a.dropout),
    )
    if a.head_gate:
        tape.linear(x, "attention.gate", "gate", (heads,), tp)
        tape.small("sigmoid of the gate (fp32)", FULL, tp, (tokens, heads))
        gate = Value("sigmoid of the gate", context.dtype, tp, (tokens, heads))
        tape.product(gate, context, "attention output, gated")
        context = tape.like(context, "attention output, gated")
    return tape.linear(context, "attention.out", "attention result", (hidden,), tape.run.sequence)


def facts(a: Latent) -> Facts:
    """Latent attention makes a key and a value for every head."""
    return {"attends": (a.heads, a.heads, a.head_dim, a.value_dim)}


MLA = Kind(
    component="attention",
    values=Latent,
    sizes=("hidden", "heads", "kv_lora_rank", "nope_dim", "rope_dim", "value_dim"),
    weights=latent_projections,
    facts=facts,
    forward=latent,
    norms=("attention",),
)
