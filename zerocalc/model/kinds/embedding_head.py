"""What stands before and after the layers: token embedding, learned positions, output head."""

from __future__ import annotations

from zerocalc.model.kind import PRECISIONS, Kind
from zerocalc.model.module import ParameterRow, linear, replicated, tensor
from zerocalc.model.trace import FULL, Tape, Value


def embedding_tables(*, vocab: int, dim: int, positions: int = 0) -> tuple[ParameterRow, ...]:
    """The token embedding, and learned positions where there are some."""
    rows: tuple[ParameterRow, ...] = (tensor("embedding.weight", vocab, dim),)
    return (*rows, replicated("positions.weight", positions, dim)) if positions else rows


def head_weights(
    *, vocab: int, dim: int, bias: bool = False, tied: bool = False
) -> tuple[ParameterRow, ...]:
    """The output projection. Tied, the weight is the embedding's; a bias is the head's own."""
    return linear("head", vocab, dim, bias=bias)[1 if tied else 0 :]


def embed(
    tape: Tape,
    x: Value,
    *,
    dim: int,
    dropout: bool = False,
    rotary_dim: int = 0,
    rotary_dtype: str = "compute",
    rotary_in_layers: bool = False,
    own_positions: bool = False,
) -> Value:
    """The residual stream, of which are kept before the layers: a dropout mask ([SP] §4.3), and
    sines and cosines that all layers share, in the dtype of the stream.

    ``rotary_dim``: a head's numbers that are turned, once for each kind of layer that has angles of
    its own. ``rotary_in_layers``: each layer makes sines and cosines of its own. ``own_positions``:
    each sequence of a batch has its own (as where images stand among the words).
    """
    run = tape.run
    positions = run.tokens if own_positions else run.tokens // run.micro_batch
    if dropout:
        tape.dropout(tape.stream("embedding", dim), "embedding dropout")
    if rotary_dim and tape.how.rotary == "shared" and not rotary_in_layers:
        tape.small(
            "sines and cosines",
            FULL if rotary_dtype == FULL else tape.wide,
            1,
            (2, positions, rotary_dim),
        )
    if rotary_dim and tape.how.rotary == "each_layer":
        tape.small("positions' angles", FULL, 1, (positions, rotary_dim))
    return tape.stream(x.name, dim)


def project(tape: Tape, x: Value, *, vocab: int, soft_cap: bool = False) -> Value:
    """The head, up to the logits; these are counted with the loss, since they come and go."""
    x = tape.cast(x, tape.run.compute) if not tape.autocast else x
    out = tape.linear(tape.entering(x), "head", "logits", (vocab,), tape.run.tp)
    if soft_cap:
        tape.small("capped logits", tape.run.compute, tape.run.tp, out.shape)
    return out


EMBEDDING = Kind(
    component="embedding",
    sizes=("vocab", "dim"),
    weights=embedding_tables,
    forward=embed,
    role="stream",
    words={"rotary_dtype": PRECISIONS},
)
HEAD = Kind(
    component="head",
    sizes=("vocab", "dim"),
    weights=head_weights,
    forward=project,
)
