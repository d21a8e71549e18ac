"""What stands before and after the layers: token embedding, learned positions, output head."""

from __future__ import annotations

from typing import Literal

from zerocalc.ledger import record
from zerocalc.model.kind import PRECISIONS, Kind
from zerocalc.model.module import ParameterRow, linear, replicated, tensor
from zerocalc.model.trace import FULL, Tape, Value


@record
class Embedding:
    """The values of a token embedding."""

    vocab: int
    dim: int
    positions: int = 0
    """Rows of a table of learned positions; 0: there is none."""
    dropout: bool = False
    rotary_dim: int = 0
    """A head's numbers that are turned, once for each kind of layer that has angles of its own."""
    rotary_dtype: Literal["fp32", "compute"] = "compute"
    """The dtype of sines and cosines: fp32, or that of the residual stream."""
    rotary_in_layers: bool = False
    """Each layer computes sines and cosines of its own."""
    own_positions: bool = False
    """Each sequence of a batch has its own (as where images are among the words)."""


@record
class Head:
    """The values of an output projection."""

    vocab: int
    dim: int
    bias: bool = False
    tied: bool = False
    """The weight is the embedding's; a bias is the head's own."""
    soft_cap: bool = False
    """An operation bounds the logits."""


def embedding_tables(e: Embedding) -> tuple[ParameterRow, ...]:
    """The token embedding, and learned positions where there are some."""
    rows = (tensor("embedding.weight", e.vocab, e.dim),)
    return (*rows, replicated("positions.weight", e.positions, e.dim)) if e.positions else rows


def head_weights(h: Head) -> tuple[ParameterRow, ...]:
    """The output projection."""
    return linear("head", h.vocab, h.dim, bias=h.bias)[1 if h.tied else 0 :]


def embed(tape: Tape, x: Value, e: Embedding) -> Value:
    """The residual stream; saved before the layers: a dropout mask ([SP] §4.3), and sines and
    cosines that all layers share.
    """
    run = tape.run
    positions = run.tokens if e.own_positions else run.tokens // run.micro_batch
    if e.dropout:
        tape.dropout(tape.stream("embedding", e.dim), "embedding dropout")
    if e.rotary_dim and tape.how.rotary == "shared" and not e.rotary_in_layers:
        dtype = FULL if e.rotary_dtype == FULL else tape.wide
        tape.small("sines and cosines", dtype, 1, (2, positions, e.rotary_dim))
    if e.rotary_dim and tape.how.rotary == "each_layer":
        tape.small("positions' angles", FULL, 1, (positions, e.rotary_dim))
    return tape.stream(x.name, e.dim)


def project(tape: Tape, x: Value, h: Head) -> Value:
    """The head, up to the logits; these are counted with the loss, since they come and go."""
    x = tape.cast(x, tape.run.compute) if not tape.autocast else x
    out = tape.linear(tape.entering(x), "head", "logits", (h.vocab,), tape.run.tp)
    if h.soft_cap:
        tape.small("capped logits", tape.run.compute, tape.run.tp, out.shape)
    return out


EMBEDDING = Kind(
    component="embedding",
    values=Embedding,
    sizes=("vocab", "dim"),
    weights=embedding_tables,
    forward=embed,
    role="stream",
    words={"rotary_dtype": PRECISIONS},
)
HEAD = Kind(
    component="head",
    values=Head,
    sizes=("vocab", "dim"),
    weights=head_weights,
    forward=project,
)
