"""The output projection; the logits themselves are counted with the loss, since they come and go."""

from zerocalc.modules.base import Layout, Module
from zerocalc.spec.model import Dimensions, Model


def head(model: Model, d: Dimensions, run: Layout | None) -> Module:
    """The head; tied to the embedding it has no parameters of its own. With a layout, also its saved input ([SP] §4.3)."""
    parameters = () if model.tied_embeddings else (("head.weight", (d.vocab, d.hidden), True),)
    kept = (("head input", run.compute, run.sequence, (run.tokens, d.hidden), False),) if run else ()
    return Module("head", "head", parameters, kept)
