"""The MLP: plain (two matrices and GELU) or gated (three matrices and SwiGLU)."""

from zerocalc.modules.attention import MASK
from zerocalc.modules.base import Layout, Module, Parameter, Saved, saved
from zerocalc.spec.model import Dimensions, Model


def mlp(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """The MLP from its input to the residual addition; with a layout, also what it saves for backward."""
    return Module("mlp", "mlp", _parameters(model, d), _saved(model, d, run) if run else ())


def _parameters(model: Model, d: Dimensions) -> tuple[Parameter, ...]:
    weights = [Parameter("mlp.up.weight", (d.ffn, d.hidden), True), Parameter("mlp.down.weight", (d.hidden, d.ffn), True)]
    biases = [Parameter("mlp.up.bias", (d.ffn,)), Parameter("mlp.down.bias", (d.hidden,))]
    if model.kind == "llama":
        weights.append(Parameter("mlp.gate.weight", (d.ffn, d.hidden), True))
        biases.append(Parameter("mlp.gate.bias", (d.ffn,)))
    return tuple(weights + biases if model.mlp_bias else weights)


def _saved(model: Model, d: Dimensions, run: Layout) -> tuple[Saved, ...]:
    n, half, tp = run.tokens, run.compute, run.tp
    tensors = [saved("mlp input", half, run.sequence, (n, d.hidden))]
    inner = (n, d.ffn)
    if model.kind == "llama":
        tensors += [saved(name, half, tp, inner) for name in ("gate", "up", "activated gate", "down input")]
    else:
        tensors += [saved(name, half, tp, inner) for name in ("gelu input", "down input")]
    if model.dropout:
        tensors.append(saved("mlp dropout mask", MASK, run.sequence, (n, d.hidden)))
    return tuple(tensors)
