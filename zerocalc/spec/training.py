"""How a batch is run: sequence length, micro-batches, recomputation, attention kernel."""

from typing import Literal

from zerocalc.spec.base import Spec
from zerocalc.units import Whole


class Training(Spec):
    """One optimizer step: ``accumulation`` micro-batches of ``micro_batch`` sequences of ``seq`` tokens per data-parallel rank."""

    seq: Whole | None = None
    micro_batch: Whole = 1
    accumulation: Whole = 1
    recompute: Literal["none", "selective", "full"] = "none"
    attention: Literal["flash", "eager"] = "flash"
