"""LayerNorm and RMSNorm, as fused kernels run them: the input is kept, the statistics are too small to count ([SP] §4.1)."""

from zerocalc.modules.base import Layout, Module, Parameter, saved
from zerocalc.spec.model import Dimensions


def norm(name: str, d: Dimensions, bias: bool, run: Layout | None) -> Module:
    """A norm over the hidden size; LayerNorm has a bias, RMSNorm has none."""
    parameters = [Parameter(f"{name}.weight", (d.hidden,))]
    if bias:
        parameters.append(Parameter(f"{name}.bias", (d.hidden,)))
    kept = (saved(f"{name} input", run.compute, run.sequence, (run.tokens, d.hidden)),) if run else ()
    return Module(name, "norms", tuple(parameters), kept)
