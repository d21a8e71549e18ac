"""LayerNorm and RMSNorm: their tensors. What they save is an operation of the tape's, since other
modules have norms inside too.
"""

from __future__ import annotations

from zerocalc.model.kind import NORMS, PRECISIONS, Facts, Kind
from zerocalc.model.module import ParameterRow, replicated


def norm_weights(*, dim: int, bias: bool = False, weight: bool = True) -> tuple[ParameterRow, ...]:
    """The tensors of a norm over ``dim`` numbers."""
    rows: tuple[ParameterRow, ...] = (replicated("norm.weight", dim),) if weight else ()
    return (*rows, replicated("norm.bias", dim)) if bias else rows


def facts(*, bias: bool = False, weight: bool = True) -> Facts:
    """Hugging Face's layers list norms without biases behind attention and MLP; layers that list
    norms in the order of the forward pass have biases in them.
    """
    return {"listed_last": weight and not bias}


NORM = Kind(
    component="norms",
    sizes=("dim",),
    weights=norm_weights,
    facts=facts,
    role="norm",
    words={
        "kind": NORMS,
        "input": PRECISIONS,
        "reads": ("result", "stream", "sum", "layer", "inside"),
    },
)
