"""What some implementations hold besides activations: buffers that last, and stages' inputs."""

from __future__ import annotations

import math

from zerocalc.formulas.activations import (
    gathered_buffer_bytes,
    hidden_bytes,
    once_bytes,
    shared_buffer_bytes,
)
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import Kind, Moment, Term, span, term
from zerocalc.model.architecture import Architecture, products
from zerocalc.model.kinds.attention_inputs import ONE_PRODUCT
from zerocalc.model.kinds.scores import FUSED_KERNELS
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES


def once(name: str, kind: Kind, moments: tuple[Moment, ...], amount: int, in_flight: int) -> Term:
    """``amount`` bytes of one micro-batch, for each that is in flight."""
    return term(
        name,
        kind,
        moments,
        once_bytes,
        bytes_per_micro_batch=amount,
        micro_batches_in_flight=in_flight,
    )


def placeholders(job: Job, arch: Architecture) -> list[Term]:
    """One tensor in compute's dtype for each shape of the layers' weights."""
    fused = job.implementation.qkv in ONE_PRODUCT
    shapes = {
        shape
        for _, modules in arch.groups
        for shape in products(modules, attention=fused, gated=job.implementation.gated == "fused")
    }
    amount = sum([math.prod(shape) for shape in shapes])
    held = hidden_bytes.function(
        tokens=1,
        hidden=ceil_div(amount, job.parallel.tp),
        bytes_per_element=DTYPE_BYTES[job.recipe.compute],
    )
    return [once("gradient placeholders", "buffers", span("forward", "step"), held, 1)]


def stage_inputs(job: Job, arch: Architecture, tokens: int) -> list[Term]:
    """What a stage received last for each of its chunks, and the gradient of it: of the same size;
    the model's first chunk receives nothing.
    """
    parallel = job.parallel
    chunks = parallel.interleave - (1 if parallel.pipeline_stage in (None, 1) else 0)
    if not chunks:
        return []
    share = ceil_div(tokens, parallel.tp) if parallel.sequence_parallel else tokens
    kept = hidden_bytes.function(
        tokens=share, hidden=arch.hidden, bytes_per_element=DTYPE_BYTES[job.recipe.compute]
    )
    return [
        once("last stage inputs and their gradients", "activations", ("step",), kept, 2 * chunks)
    ]


def shared_buffers(job: Job, arch: Architecture, tokens: int) -> list[Term]:
    """One buffer for gathered sequences, and for scores where no kernel computes them."""
    parallel, training, name, moments = (
        job.parallel,
        job.training,
        "shared buffer",
        span("forward", "step"),
    )
    gathered, size = tokens if parallel.sequence_parallel else 0, DTYPE_BYTES[job.recipe.compute]
    if training.attention in FUSED_KERNELS or not training.seq:
        if not gathered:
            return []
        return [
            term(
                name,
                "buffers",
                moments,
                gathered_buffer_bytes,
                gathered_tokens=gathered,
                hidden=arch.hidden,
                bytes_per_element=size,
            )
        ]
    buffer = term(
        name,
        "buffers",
        moments,
        shared_buffer_bytes,
        gathered_tokens=gathered,
        hidden=arch.hidden,
        micro_batch=training.micro_batch,
        heads=max(job.model.head_counts, default=0),
        tensor_parallel=parallel.tp,
        scored_tokens=training.seq,
        bytes_per_element=size,
    )
    return [buffer] if buffer.bytes else []
