"""How a batch is run: sequence length, micro-batches, recomputation, attention kernel."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from zerocalc.spec.base import Spec, listed
from zerocalc.spec.implementation import Kernel
from zerocalc.units import Count, Fraction, Whole

RecomputedModule = Literal["core_attn", "mlp", "moe"]
"""Megatron's names (--recompute-modules): softmax(q·k)·v, or all of an MLP or a mixture of experts but its input."""


KERNEL_EFFICIENCY = 0.55
"""Share of the dense peak that kernels reach while they compute: [SP] Table 5 has 0.53 to 0.57 of an A100's over whole steps of large models."""


class Training(Spec):
    """One optimizer step: ``accumulation`` micro-batches of ``micro_batch`` sequences of ``seq`` tokens per data-parallel rank."""

    seq: Whole | None = None
    micro_batch: Whole = 1
    accumulation: Whole = 1
    recompute: Literal["none", "selective", "operators", "full"] = "none"
    recompute_every: Whole = 1
    recompute_modules: Annotated[tuple[RecomputedModule, ...], BeforeValidator(listed)] = ("core_attn",)
    kernel_efficiency: Fraction = KERNEL_EFFICIENCY
    tokens: Count | None = None
    attention: Kernel = "flash"
