"""The MLP: plain (two matrices and GELU) or gated (three matrices and SwiGLU)."""

from zerocalc.modules.attention import MASK
from zerocalc.modules.base import Layout, Module, ParameterRow, SavedRow, linear
from zerocalc.spec.model import Dimensions, Model

PLAIN_INNER = ("gelu input", "down input")
GATED_INNER = ("gate", "up", "activated gate", "down input")
"""What is saved between the matrices, each of it ffn wide."""


def mlp(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """The MLP from its input to the residual addition; with a layout, also what it saves for backward."""
    rows = matrices(hidden=d.hidden, ffn=d.ffn, gated=model.kind == "llama", bias=bool(model.mlp_bias))
    return Module("mlp", "mlp", rows, _saved(model, d, run) if run else ())


def matrices(
    *, hidden: int, ffn: int, gated: bool = True, bias: bool = False, down_bias: bool | None = None, fused: bool = False, transposed: bool = False,
    out: int | None = None,
) -> tuple[ParameterRow, ...]:  # fmt: skip
    """The tensors of an MLP: two matrices, or three when gated; ``fused`` makes one tensor of gate and up."""
    inner = 2 * ffn if gated and fused else ffn
    rows = linear("mlp.up", inner, hidden, bias=bias, transposed=transposed)
    if gated and not fused:
        rows += linear("mlp.gate", ffn, hidden, bias=bias, transposed=transposed)
    return rows + linear("mlp.down", out or hidden, ffn, bias=bias if down_bias is None else down_bias, transposed=transposed)


def _saved(model: Model, d: Dimensions, run: Layout) -> tuple[SavedRow, ...]:
    n, half, tp = run.tokens, run.compute, run.tp
    inner = (n, d.ffn)
    tensors: list[SavedRow] = [("mlp input", half, run.sequence, (n, d.hidden), False)]
    tensors += [(name, half, tp, inner, False) for name in (GATED_INNER if model.kind == "llama" else PLAIN_INNER)]
    if model.dropout:
        tensors.append(("mlp dropout mask", MASK, run.sequence, (n, d.hidden), False))
    return tuple(tensors)
