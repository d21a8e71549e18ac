"""Activations, checkpoints and logits, from what the modules save."""

from __future__ import annotations

import math

from zerocalc.formulas.activations import (
    checkpoint_bytes,
    chunks_by_width,
    chunks_in_flight,
    gathered_buffer_bytes,
    gradient_bytes,
    head_bytes,
    hidden_bytes,
    host_checkpoint_bytes,
    interleaved_bytes,
    logits_bytes,
    micro_batches_in_flight,
    once_bytes,
    saved_bytes,
    shared_buffer_bytes,
)
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import MOMENTS, Block, Kind, Moment, Term, block, replaced, span, term
from zerocalc.memory.layer_backward import layer_instants, most_saving
from zerocalc.memory.saved import Saved
from zerocalc.model.architecture import Architecture, products, widest
from zerocalc.model.kinds.attention import FUSED_KERNELS, ONE_PRODUCT
from zerocalc.model.module import Module
from zerocalc.model.trace import MERGED
from zerocalc.sharding.gather_units import pipeline_split
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

THROUGHOUT = span("forward", "backward_end")
UNTIL_BACKWARD = span("forward", "backward_start")
BACKWARD = span("backward_start", "backward_end")
HEAD = span("forward", "loss")
GRADIENTS = (
    "of activation gradients only the MLP pre-activation's is counted; kernel workspaces are not"
)
FROZEN = "frozen parameters: activations counted as if all were trained"
COMPONENT_SUFFIX = " activations"
"""A layer's activation terms are named by component."""
CHECKPOINTS = "full recomputation, [SP] §5"
STAGES = "equal pipeline stages: each counts embedding and logits"
IN_BACKWARD = "the largest layer is taken as the one in backward"


def activations(job: Job, rank: Rank, arch: Architecture) -> Block:
    """What one micro-batch of an architecture that says what it saves keeps from forward for
    backward, times the micro-batches in flight.
    """
    terms = _layers(job, arch, rank.tokens) + _ends(job, arch)
    if arch.after:
        terms += _loss(job, arch, rank.tokens)
    if job.implementation.placeholder_gradients:
        terms += _placeholders(job, arch)
    if job.implementation.stage_inputs and job.parallel.pp > 1:
        terms += _stage_inputs(job, arch, rank.tokens)
    if job.implementation.shared_buffer:
        terms += _shared_buffer(job, arch, rank.tokens)
    assumptions = [
        f"layers of {job.implementation.name}: {job.implementation.title or 'as its file says'}",
        GRADIENTS,
    ]
    if rank.total_trainable < rank.total and not arch.frozen:
        assumptions.append(FROZEN)
    if len(arch.groups) > 1:
        assumptions.append(IN_BACKWARD)
    if pipeline_split(job) > 1:
        assumptions.append(STAGES)
    return block(terms, (), tuple(assumptions))


def saved(job: Job, rank: Rank, arch: Architecture) -> Saved:
    """The activations of a rank, by the instant of a step."""
    modules = most_saving(arch)
    rebuilt = any(module.rebuilt_bytes for module in modules)
    if rebuilt and job.training.recompute == "full":
        stored = _checkpoints(job, modules, 1)
        each = ceil_div(stored.bytes, in_flight(job)) if stored.tier == "gpu" else 0
    else:
        each = kept_bytes(modules)
    parallel = job.parallel
    split = parallel.tp if parallel.sequence_parallel else 1
    stream = term(
        "layer input",
        "activations",
        MOMENTS,
        hidden_bytes,
        tokens=rank.tokens,
        hidden=ceil_div(arch.hidden * arch.streams, split),
        bytes_per_element=DTYPE_BYTES[job.recipe.compute],
    )
    made = activations(job, rank, arch)
    return Saved(made, each, stream, lambda: layer_instants(job, arch, rank.tokens))


def layers_suffix(arch: Architecture, count: int) -> str:
    """What follows a component in the name of the term for ``count`` layers that are alike."""
    return COMPONENT_SUFFIX if len(arch.groups) == 1 else f"{COMPONENT_SUFFIX} of {count} layers"


def kept_bytes(modules: tuple[Module, ...]) -> int:
    """Bytes that modules keep for one micro-batch."""
    return sum([module.kept_bytes for module in modules])


def in_flight(job: Job) -> int:
    """Micro-batches that a stage holds at once, the first unless told otherwise, or chunks of
    layers, each of one micro-batch, under interleaving.
    """
    parallel, micro_batches = job.parallel, job.training.accumulation
    stages, earlier = parallel.pp, (parallel.pipeline_stage or 1) - 1
    if parallel.interleave == 1:
        return micro_batches_in_flight.function(
            pipeline_parallel=stages - earlier, micro_batches=micro_batches
        )
    return chunks_in_flight.function(
        pipeline_parallel=stages,
        earlier_stages=earlier,
        interleave=parallel.interleave,
        micro_batches=micro_batches,
    )


def _spread(job: Job, name: str, kind: Kind, amount: int, layers: int) -> Term:
    """What ``layers`` layers keep, ``amount`` bytes each, on the first stage."""
    pipeline, interleave = pipeline_split(job), job.parallel.interleave
    if interleave == 1:
        return term(
            name,
            kind,
            UNTIL_BACKWARD,
            saved_bytes,
            bytes_per_layer=amount,
            layers=layers,
            pipeline_parallel=pipeline,
            micro_batches_in_flight=in_flight(job),
        )
    return term(
        name,
        kind,
        UNTIL_BACKWARD,
        interleaved_bytes,
        bytes_per_layer=amount,
        layers=layers,
        pipeline_parallel=pipeline,
        interleave=interleave,
        chunks_in_flight=in_flight(job),
    )


def _layers(job: Job, arch: Architecture, tokens: int) -> list[Term]:
    """What every layer keeps until its backward, and what the layer in backward computes again."""
    terms: list[Term] = []
    again = largest = waiting = 0
    flying = in_flight(job)
    for count, modules in arch.groups:
        rebuilt = sum([module.rebuilt_bytes for module in modules])
        again, largest = max(again, rebuilt), max(largest, rebuilt + kept_bytes(modules))
        if rebuilt and job.training.recompute == "full":
            group = [_checkpoints(job, modules, count)]
        else:
            group = _by_component(job, modules, count, layers_suffix(arch, count))
        terms += group
        waiting += sum([t.bytes for t in group if t.tier == "gpu"]) // flying
    kept = largest - again
    if job.zero.partition_activations:
        again, kept, what = largest, 0, "layer with its gathered input"
    else:
        selective = job.training.recompute == "selective"
        what = (
            "attention"
            if selective and job.training.recompute_modules == ("core_attn",)
            else "modules"
            if selective
            else "layer"
        )
    if again:
        terms.append(_once(f"recomputed {what}", "activations", BACKWARD, again, 1))
    if kept:
        checkpoint = terms[0].kind == "checkpoints"
        name = (
            f"{'first' if len(arch.groups) == 1 else 'largest'} layer's "
            f"{'checkpoint' if checkpoint else 'activations'}"
        )
        terms.append(
            _once(name, "checkpoints" if checkpoint else "activations", ("backward_end",), kept, 1)
        )
    terms += _merged(arch) if arch.frozen else []
    width = max([widest(modules) for _, modules in arch.groups])
    if width:
        terms.append(_gradients(job, arch, tokens, width))
    if flying > 1 and waiting:
        terms.append(
            _once(
                "other micro-batches in flight",
                "activations",
                ("backward_end",),
                waiting,
                flying - 1,
            )
        )
    return terms


def _merged(arch: Architecture) -> list[Term]:
    """The gradient of the sum of experts' weights and their adapter: as large as the sum, and gone
    once the adapter has its own.
    """
    sums = [
        saved.bytes
        for _, modules in arch.groups
        for module in modules
        for saved in module.saved
        if saved.name.endswith(MERGED)
    ]
    return (
        [_once("gradient of a weight with its adapter", "activations", BACKWARD, max(sums), 1)]
        if sums
        else []
    )


def _gradients(job: Job, arch: Architecture, tokens: int, width: int) -> Term:
    """The gradients in the layer that is in backward."""
    parallel = job.parallel
    return term(
        "gradients in a layer's backward",
        "activations",
        BACKWARD,
        gradient_bytes,
        tokens=tokens,
        hidden=arch.hidden,
        sequence_parallel=parallel.tp if parallel.sequence_parallel else 1,
        width=width,
        tensor_parallel=parallel.tp,
        bytes_per_element=DTYPE_BYTES[job.recipe.compute],
    )


def _by_component(job: Job, modules: tuple[Module, ...], count: int, suffix: str) -> list[Term]:
    """One term for each component of layers that are alike."""
    sizes: dict[str, int] = {}
    for module in modules:
        sizes[module.component] = sizes.get(module.component, 0) + module.kept_bytes
    return [
        _spread(job, f"{component}{suffix}", "activations", amount, count)
        for component, amount in sizes.items()
        if amount
    ]


def _checkpoints(job: Job, modules: tuple[Module, ...], count: int) -> Term:
    """The input of each of some layers, all that full recomputation keeps of them: split over
    tensor-parallel ranks (P_a), or moved to the host.
    """
    zero, parallel = job.zero, job.parallel
    layer_input = modules[0].saved[0]
    partitions = parallel.tp if zero.partition_activations else layer_input.divisor
    whole = layer_input.bytes * layer_input.divisor
    if parallel.interleave > 1:
        stored = _spread(job, "checkpoints", "checkpoints", ceil_div(whole, partitions), count)
    else:
        stored = term(
            "checkpoints",
            "checkpoints",
            UNTIL_BACKWARD,
            checkpoint_bytes,
            checkpoint_bytes=whole,
            partitions=partitions,
            layers=count,
            pipeline_parallel=pipeline_split(job),
            micro_batches_in_flight=in_flight(job),
        )
    if not zero.partition_activations:
        stored = replaced(
            stored,
            source=CHECKPOINTS
            if partitions == 1
            else f"{CHECKPOINTS}; sequence parallelism, [SP] §4.2.2",
        )
    if not zero.checkpoints_on_host:
        return stored
    on_host = term(
        "checkpoints on the CPU",
        "checkpoints",
        UNTIL_BACKWARD,
        host_checkpoint_bytes,
        checkpoint_bytes=stored.bytes,
        gpus_per_node=job.cluster.gpus_of_a_node,
    )
    return replaced(on_host, tier="cpu", assumption=f"{job.cluster.gpus_per_node} GPUs per node")


def _ends(job: Job, arch: Architecture) -> list[Term]:
    """What is kept outside the layers: embedding, final norm, head. Interleaved, the embedding's
    chunk has p + p − 1 micro-batches in flight.
    """
    terms = []
    pipeline, micro_batches = job.parallel.pp, job.training.accumulation
    flying = (
        in_flight(job) if job.parallel.interleave == 1 else min(2 * pipeline - 1, micro_batches)
    )
    before, after = kept_bytes(arch.before), kept_bytes(arch.after)
    if before:
        names = {name for module in arch.before for name, *_ in module.saved_rows}
        terms.append(
            _once(
                names.pop() if len(names) == 1 else "embedding activations",
                "activations",
                THROUGHOUT,
                before,
                flying,
            )
        )
    if after:
        terms.append(_once("final norm and head inputs", "activations", HEAD, after, 1))
    return terms


def _loss(job: Job, arch: Architecture, tokens: int) -> list[Term]:
    """The logits, and what the loss makes of them."""
    loss, tp, compute = job.loss, job.parallel.tp, job.recipe.compute
    chunks = (
        chunks_by_width(tokens=tokens, vocab=arch.vocab, hidden=arch.hidden)
        if loss.by_width
        else loss.chunks
    )
    holding = {
        "always",
        "frozen" if arch.frozen else "trained",
        "fp32" if compute == "fp32" else "16-bit",
    }
    terms = []
    for row in loss.rows:
        if row.when not in holding:
            continue
        size = DTYPE_BYTES[compute if row.dtype == "compute" else row.dtype]
        if row.of == "weight":
            entry = term(
                row.name,
                "logits",
                row.moments,
                head_bytes,
                vocab=arch.vocab,
                hidden=arch.hidden,
                tensor_parallel=tp,
                bytes_per_element=size,
            )
        elif row.of == "hidden":
            entry = term(
                row.name,
                "logits",
                row.moments,
                hidden_bytes,
                tokens=tokens,
                hidden=arch.hidden,
                bytes_per_element=size,
            )
        else:
            part = ceil_div(tokens, chunks if row.of == "chunk" else 1)
            entry = term(
                row.name,
                "logits",
                row.moments,
                logits_bytes,
                tokens=part,
                vocab=arch.vocab,
                tensor_parallel=tp,
                bytes_per_element=size,
            )
        terms.append(entry)
    return terms


def _placeholders(job: Job, arch: Architecture) -> list[Term]:
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
    return [_once("gradient placeholders", "buffers", span("forward", "step"), held, 1)]


def _stage_inputs(job: Job, arch: Architecture, tokens: int) -> list[Term]:
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
        _once("last stage inputs and their gradients", "activations", ("step",), kept, 2 * chunks)
    ]


def _shared_buffer(job: Job, arch: Architecture, tokens: int) -> list[Term]:
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


def _once(name: str, kind: Kind, moments: tuple[Moment, ...], amount: int, in_flight: int) -> Term:
    return term(
        name,
        kind,
        moments,
        once_bytes,
        bytes_per_micro_batch=amount,
        micro_batches_in_flight=in_flight,
    )
