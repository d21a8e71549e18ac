"""How a batch is run: sequence length, micro-batches, activation checkpointing, attention."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, StrictBool

from zerocalc.quantities import Count, Fraction, Whole
from zerocalc.spec.base import Spec, listed
from zerocalc.spec.implementation import Kernel

RecomputedModule = Literal["core_attn", "mlp", "moe"]
"""Megatron's names (--recompute-modules): softmax(q·kᵀ)·v, or everything in an MLP or a mixture of
experts but its input.
"""


class Training(Spec):
    """One optimizer step: ``accumulation`` micro-batches of ``micro_batch`` sequences of ``seq``
    tokens on each data-parallel rank.
    """

    seq: Whole | None = None
    """Sequence length [tokens]. Default: not given, and then activations, FLOPs and time are
    unknown.
    """
    micro_batch: Whole = 1
    """Sequences per data-parallel rank in one forward and backward pass. Default: 1. Activations
    and FLOPs grow with it.
    """
    accumulation: Whole = 1
    """Gradient accumulation steps: micro-batches per optimizer step. Default: 1. Changes traffic
    and time per step, gradient buffers, and the pipeline's micro-batches in flight.
    """
    recompute: Literal["none", "selective", "operators", "full"] = "none"
    """Activation checkpointing. ``none`` saves every activation; ``selective`` recomputes
    ``recompute_modules``; ``operators`` saves only attention's output and every n-th matmul's
    (``kept_product`` of the implementation); ``full`` saves only the input of each layer.
    """
    recompute_every: Whole = 1
    """Recompute one layer in this number, for ``recompute`` full and operators. Default: 1, every
    layer.
    """
    recompute_modules: Annotated[tuple[RecomputedModule, ...], BeforeValidator(listed)] = (
        "core_attn",
    )
    """What ``recompute`` selective recomputes. Default: core_attn."""
    kernel_efficiency: Fraction | None = None
    """Fraction of the dense peak that kernels reach while they run. Default: the GPU's. Changes
    compute time.
    """
    tokens: Count | None = None
    """Tokens of the whole training run. Default: not given; with it, days and GPU-hours are
    estimated.
    """
    reentrant: StrictBool = False
    """Whether recomputation runs a layer's whole forward pass (torch.utils.checkpoint with
    use_reentrant), not only up to the last tensor that backward needs. Default: no. Changes the
    order of stage 3's gathers.
    """
    attention: Kernel = "flash"
    """Attention kernel: PyTorch's ``flash``, ``efficient`` and ``math`` kernels of
    scaled_dot_product_attention, or ``eager``, unfused operations. Changes what attention saves
    for backward: unfused, the scores too.
    """
