"""LayerNorm and RMSNorm: their tensors. What they keep is an operation of the tape's, since norms
stand inside other modules too.
"""

from __future__ import annotations

from zerocalc.model.module import ParameterRow


def norm_weights(*, dim: int, bias: bool = False, weight: bool = True) -> tuple[ParameterRow, ...]:
    """The tensors of a norm over ``dim`` numbers."""
    rows: tuple[ParameterRow, ...] = (("norm.weight", (dim,), False),) if weight else ()
    return (*rows, ("norm.bias", (dim,), False)) if bias else rows
