"""The MLP: plain (two matrices and GELU) or gated (three matrices and SwiGLU)."""

from zerocalc.modules.attention import MASK
from zerocalc.modules.base import Layout, Module, ParameterRow, SavedRow
from zerocalc.spec.model import Dimensions, Model

PLAIN_INNER = ("gelu input", "down input")
GATED_INNER = ("gate", "up", "activated gate", "down input")
"""What is saved between the matrices, each of it ffn wide."""


def mlp(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """The MLP from its input to the residual addition; with a layout, also what it saves for backward."""
    return Module("mlp", "mlp", _parameters(model, d), _saved(model, d, run) if run else ())


def _parameters(model: Model, d: Dimensions) -> tuple[ParameterRow, ...]:
    weights: list[ParameterRow] = [("mlp.up.weight", (d.ffn, d.hidden), True), ("mlp.down.weight", (d.hidden, d.ffn), True)]
    biases: list[ParameterRow] = [("mlp.up.bias", (d.ffn,), False), ("mlp.down.bias", (d.hidden,), False)]
    if model.kind == "llama":
        weights.append(("mlp.gate.weight", (d.ffn, d.hidden), True))
        biases.append(("mlp.gate.bias", (d.ffn,), False))
    return tuple(weights + biases if model.mlp_bias else weights)


def _saved(model: Model, d: Dimensions, run: Layout) -> tuple[SavedRow, ...]:
    n, half, tp = run.tokens, run.compute, run.tp
    inner = (n, d.ffn)
    tensors: list[SavedRow] = [("mlp input", half, run.sequence, (n, d.hidden), False)]
    tensors += [(name, half, tp, inner, False) for name in (GATED_INNER if model.kind == "llama" else PLAIN_INNER)]
    if model.dropout:
        tensors.append(("mlp dropout mask", MASK, run.sequence, (n, d.hidden), False))
    return tuple(tensors)
