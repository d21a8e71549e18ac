"""Activations, checkpoints and logits, from what the modules save."""

from __future__ import annotations

from zerocalc.formulas.activations import (
    checkpoint_bytes,
    chunks_in_flight,
    gradient_bytes,
    hidden_bytes,
    host_checkpoint_bytes,
    interleaved_bytes,
    micro_batches_in_flight,
    saved_bytes,
)
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import MOMENTS, Block, Kind, Term, block, replaced, span, term
from zerocalc.memory.implementation_buffers import (
    once,
    placeholders,
    shared_buffers,
    stage_inputs,
)
from zerocalc.memory.layer_backward import layer_instants, most_saving
from zerocalc.memory.logits import loss_terms
from zerocalc.memory.saved import Saved
from zerocalc.model.architecture import Architecture, widest
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
        terms += loss_terms(job, arch, rank.tokens)
    if job.implementation.placeholder_gradients:
        terms += placeholders(job, arch)
    if job.implementation.stage_inputs and job.parallel.pp > 1:
        terms += stage_inputs(job, arch, rank.tokens)
    if job.implementation.shared_buffer:
        terms += shared_buffers(job, arch, rank.tokens)
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
        terms.append(once(f"recomputed {what}", "activations", BACKWARD, again, 1))
    if kept:
        checkpoint = terms[0].kind == "checkpoints"
        name = (
            f"{'first' if len(arch.groups) == 1 else 'largest'} layer's "
            f"{'checkpoint' if checkpoint else 'activations'}"
        )
        terms.append(
            once(name, "checkpoints" if checkpoint else "activations", ("backward_end",), kept, 1)
        )
    terms += _merged(arch) if arch.frozen else []
    width = max([widest(modules) for _, modules in arch.groups])
    if width:
        terms.append(_gradients(job, arch, tokens, width))
    if flying > 1 and waiting:
        terms.append(
            once(
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
        [once("gradient of a weight with its adapter", "activations", BACKWARD, max(sums), 1)]
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
            once(
                names.pop() if len(names) == 1 else "embedding activations",
                "activations",
                THROUGHOUT,
                before,
                flying,
            )
        )
    if after:
        terms.append(once("final norm and head inputs", "activations", HEAD, after, 1))
    return terms
