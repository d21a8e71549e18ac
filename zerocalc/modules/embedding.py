"""Token embedding, and learned positions where the kind has them."""

from zerocalc.modules.attention import MASK
from zerocalc.modules.base import Layout, Module, ParameterRow
from zerocalc.spec.model import Dimensions, Model


def embedding(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """The embedding up to the first layer; with a layout, also its dropout mask ([SP] §4.3)."""
    parameters: list[ParameterRow] = [("embedding.weight", (d.vocab, d.hidden), False)]
    if model.kind == "gpt2":
        parameters.append(("positions.weight", (d.positions, d.hidden), False))
    kept = (("embedding dropout mask", MASK, run.sequence, (run.tokens, d.hidden), False),) if run and model.dropout else ()
    return Module("embedding", "embedding", tuple(parameters), kept)
