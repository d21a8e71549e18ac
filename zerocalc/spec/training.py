"""How a batch is run: sequence length, micro-batches, recomputation, attention kernel."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, StrictBool

from zerocalc.quantities import Count, Fraction, Whole
from zerocalc.spec.base import Spec, listed
from zerocalc.spec.implementation import Kernel

RecomputedModule = Literal["core_attn", "mlp", "moe"]
"""Megatron's names (--recompute-modules): softmax(q·k)·v, or all of an MLP or a mixture of experts
but its input.
"""


class Training(Spec):
    """One optimizer step: ``accumulation`` micro-batches of ``micro_batch`` sequences of ``seq``
    tokens per data-parallel rank.

    ``kernel_efficiency``: the share of the dense peak that kernels reach while they compute;
    ``None`` takes the GPU's. ``tokens``: of the whole run. ``reentrant``: recomputation runs a
    layer's forward pass to its end (torch.utils.checkpoint with use_reentrant), not only as far as
    is needed.
    """

    seq: Whole | None = None
    micro_batch: Whole = 1
    accumulation: Whole = 1
    recompute: Literal["none", "selective", "operators", "full"] = "none"
    recompute_every: Whole = 1
    recompute_modules: Annotated[tuple[RecomputedModule, ...], BeforeValidator(listed)] = (
        "core_attn",
    )
    kernel_efficiency: Fraction | None = None
    tokens: Count | None = None
    reentrant: StrictBool = False
    attention: Kernel = "flash"
