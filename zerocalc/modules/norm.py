"""LayerNorm and RMSNorm, as fused kernels run them: the input is kept, the statistics are too small to count ([SP] §4.1)."""

from zerocalc.modules.base import Layout, Module, ParameterRow
from zerocalc.spec.model import Dimensions


def norm(name: str, d: Dimensions, bias: bool, run: Layout | None) -> Module:
    """A norm over the hidden size; LayerNorm has a bias, RMSNorm has none."""
    parameters: list[ParameterRow] = [(f"{name}.weight", (d.hidden,), False)]
    if bias:
        parameters.append((f"{name}.bias", (d.hidden,), False))
    kept = ((f"{name} input", run.compute, run.sequence, (run.tokens, d.hidden), False),) if run else ()
    return Module(name, "norms", tuple(parameters), kept)
