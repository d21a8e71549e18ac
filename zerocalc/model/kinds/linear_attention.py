"""Linear attention, block by block (MiniMax-01, arXiv 2501.08313 §2.2): its tensors, and its
forward pass up to the residual addition.

Source: transformers 5.24.0, models/minimax/modeling_minimax.py, which runs it in PyTorch's
operations.
"""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.model.kind import ACTIVATIONS, Kind
from zerocalc.model.kinds.mlp import activate
from zerocalc.model.module import ParameterRow, linear, replicated
from zerocalc.model.trace import Tape, Value


@record
class BlockAttention:
    """The values of linear attention in blocks of ``block`` positions."""

    hidden: int
    heads: int
    head_dim: int
    block: int
    activation: str = "silu"


def block_weights(a: BlockAttention) -> tuple[ParameterRow, ...]:
    """The tensors of linear attention in blocks: one product for queries, keys and values, a gate
    of the normed result.
    """
    inner = a.heads * a.head_dim
    return (
        *linear("attention.qkv", 3 * inner, a.hidden),
        *linear("attention.gate", inner, a.hidden),
        replicated("attention.norm.weight", inner),
        *linear("attention.out", a.hidden, inner, split="rows"),
    )


def attend_in_blocks(tape: Tape, x: Value, a: BlockAttention) -> Value:
    """The forward pass of linear attention: scores inside blocks, and a state of keys times values
    between them.
    """
    run, tp, hidden, inner = tape.run, tape.run.tp, x.shape[-1], a.heads * a.head_dim
    x = tape.entering(x)
    both = activate(
        tape,
        tape.linear(x, "attention.qkv", "activation's input", (3 * inner,), tp),
        a.activation,
        "queries, keys and values",
    )
    if run.micro_batch == 1:
        tape.keep(both)  # of several sequences each block's part is copied
    sequence = run.tokens // run.micro_batch
    starts = range(0, sequence, a.block)
    for start in starts:
        first, last = start == 0, start == starts[-1]
        _block(
            tape,
            both.dtype,
            (a.heads, a.head_dim),
            min(a.block, sequence - start),
            first=first,
            last=last,
        )
    result = Value("results of all blocks", both.dtype, tp, (run.tokens, inner))
    normed = tape.cast(
        tape.norm(result, "inner norm", "rms", "attention output, normed"), tape.wide
    )  # its weight is of the model's dtype
    tape.linear(x, "attention.gate", "attention gate", (inner,), tp)
    gated = tape.product(
        Value("sigmoid of the gate", both.dtype, tp, normed.shape),
        normed,
        "attention output, gated",
    )
    return tape.linear(gated, "attention.out", "attention result", (hidden,), run.sequence)


def _block(
    tape: Tape, dtype: str, each: tuple[int, int], positions: int, *, first: bool, last: bool
) -> None:
    """One block: the first one's state is zero, which needs no gradient, and nobody reads the state
    after the last.
    """
    sequences, tp = tape.run.micro_batch, tape.run.tp
    heads, head_dim = each
    part = (sequences * positions, heads, head_dim)
    copies = sequences > 1
    for name in ("queries", "keys", "values") if copies else ():
        tape.small(f"{name} of a block", dtype, tp, part)
    tape.small("scores of a block, decayed", dtype, tp, (sequences * positions, heads, positions))
    tape.small("state before a block", dtype, tp, (sequences, heads, head_dim, head_dim))
    if not first:
        tape.small("queries of a block, decayed", dtype, tp, part)
    if last:
        return
    tape.small("keys of a block, decayed", dtype, tp, part)
    if copies:
        tape.small("values of a block, for the state", dtype, tp, part)
    if not first:
        tape.small("decay of the state", tape.wide, tp, (heads,))


LINEAR_ATTENTION = Kind(
    component="attention",
    values=BlockAttention,
    sizes=("hidden", "heads", "head_dim", "block"),
    weights=block_weights,
    forward=attend_in_blocks,
    norms=("attention",),
    words={"activation": ACTIVATIONS},
)
