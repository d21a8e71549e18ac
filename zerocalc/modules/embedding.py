"""Token embedding, and learned positions where the kind has them."""

from zerocalc.modules.attention import MASK
from zerocalc.modules.base import Layout, Module, Parameter, saved
from zerocalc.spec.model import Dimensions, Model


def embedding(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """The embedding up to the first layer; with a layout, also its dropout mask ([SP] §4.3)."""
    parameters = [Parameter("embedding.weight", (d.vocab, d.hidden))]
    if model.kind == "gpt2":
        parameters.append(Parameter("positions.weight", (d.positions, d.hidden)))
    kept = (saved("embedding dropout mask", MASK, run.sequence, (run.tokens, d.hidden)),) if run and model.dropout else ()
    return Module("embedding", "embedding", tuple(parameters), kept)
