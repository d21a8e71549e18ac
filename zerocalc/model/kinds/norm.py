"""LayerNorm and RMSNorm: their tensors. What they save is an operation of the tape's, since other
modules have norms inside too.
"""

from __future__ import annotations

from typing import Literal, get_args

from zerocalc.ledger import record
from zerocalc.model.kind import NORMS, PRECISIONS, Facts, Kind
from zerocalc.model.module import ParameterRow, replicated

Reads = Literal["result", "stream", "sum", "layer", "inside"]


@record
class Norm:
    """The values of a norm over ``dim`` numbers."""

    dim: int
    bias: bool = False
    weight: bool = True
    kind: str = ""
    """How it is computed (`NormKind`); unless given, LayerNorm where it has a bias, else
    RMSNorm.
    """
    reads: Reads | None = None
    """The ``stream``; the ``result`` of a mixer before it is added; the ``sum`` of both, which it
    replaces; what the ``layer`` reads, where another mixer reads it too. ``inside``: a mixer norms
    with it (``inner_norm``). Unless given, its name says whether it belongs to the mixer before it.
    """
    input: Literal["fp32", "compute"] = "compute"
    """The dtype to which the stream is cast first, if that is fp32."""


def norm_weights(n: Norm) -> tuple[ParameterRow, ...]:
    """The tensors of a norm."""
    rows = (replicated("norm.weight", n.dim),) if n.weight else ()
    return (*rows, replicated("norm.bias", n.dim)) if n.bias else rows


def facts(n: Norm) -> Facts:
    """Hugging Face's layers list norms without biases behind attention and MLP; layers that list
    norms in the order of the forward pass have biases in them.
    """
    return {"listed_last": n.weight and not n.bias}


NORM = Kind(
    component="norms",
    values=Norm,
    sizes=("dim",),
    weights=norm_weights,
    facts=facts,
    role="norm",
    words={"kind": NORMS, "input": PRECISIONS, "reads": get_args(Reads)},
)
