"""Activations, checkpoints and logits, from what the modules save."""

from __future__ import annotations

from zerocalc.formulas.activations import checkpoint_bytes, host_checkpoint_bytes, logits_bytes, micro_batches_in_flight, once_bytes, saved_bytes
from zerocalc.ledger import Block, Kind, Moment, Term, block, replaced, span, term
from zerocalc.modules.base import Module
from zerocalc.modules.layers import Architecture
from zerocalc.modules.rank import Rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

THROUGHOUT = span("forward", "backward_end")
UNTIL_BACKWARD = span("forward", "backward_start")
BACKWARD = span("backward_start", "backward_end")
HEAD = span("forward", "loss")
AT_FORWARD = span("forward", "forward")
AT_LOSS = span("loss", "loss")
LOSS_DTYPE = "fp32"
"""The cross-entropy works on fp32 logits ([SP] §4.3)."""

ASSUMPTION = "fused norms keep their input, MLPs what goes into each operation; gradients of activations and workspaces are not counted"
FROZEN = "frozen parameters: activations counted as if all were trained"
COMPONENT_SUFFIX = " activations"
"""A layer's activation terms are named by component."""
STAGES = "pipeline stages even: each counts embedding and logits"


def activations(job: Job, rank: Rank) -> Block:
    """What one micro-batch keeps from forward for backward, times the micro-batches in flight; unknown without dimensions or length."""
    arch = rank.arch
    if arch is None or not arch.saves:
        return block((), ("activations", "logits"))
    in_flight = micro_batches_in_flight.function(pipeline_parallel=job.parallel.pp, micro_batches=job.training.accumulation)
    terms = _recomputed(job, arch, in_flight) if job.training.recompute == "full" else _kept(job, arch, in_flight)
    terms += _ends(job, arch, rank.tokens, in_flight)
    assumptions = [ASSUMPTION]
    if rank.total_trainable < rank.total:
        assumptions.append(FROZEN)
    if job.parallel.pp > 1:
        assumptions.append(STAGES)
    return block(terms, (), tuple(assumptions))


def kept_bytes(modules: tuple[Module, ...]) -> int:
    """Bytes that modules save for one micro-batch without recomputation."""
    return sum([module.kept_bytes(selective=False) for module in modules])


def _kept(job: Job, arch: Architecture, in_flight: int) -> list[Term]:
    """No or selective recomputation: every layer keeps its tensors until its backward."""
    selective = job.training.recompute == "selective"
    pipeline = job.parallel.pp
    by_component: dict[str, int] = {}
    for module in arch.layer:
        by_component[module.component] = by_component.get(module.component, 0) + module.kept_bytes(selective)
    terms = [
        term(
            f"{component}{COMPONENT_SUFFIX}", "activations", UNTIL_BACKWARD, saved_bytes,
            bytes_per_layer=amount, layers=arch.layers, pipeline_parallel=pipeline, micro_batches_in_flight=in_flight,
        )
        for component, amount in by_component.items()
    ]  # fmt: skip
    layer = sum(by_component.values())
    terms.append(_once("first layer's activations", "activations", ("backward_end",), layer, 1))
    rebuilt = sum([module.rebuilt_bytes() for module in arch.layer]) if selective else 0
    if rebuilt:
        terms.append(_once("recomputed attention", "activations", BACKWARD, rebuilt, 1))
    if in_flight > 1:
        terms.append(
            _waiting(saved_bytes(bytes_per_layer=layer, layers=arch.layers, pipeline_parallel=pipeline, micro_batches_in_flight=1), in_flight)
        )
    return terms


def _recomputed(job: Job, arch: Architecture, in_flight: int) -> list[Term]:
    """Full recomputation: each layer keeps its input, and the layer in backward is rebuilt."""
    zero, parallel = job.zero, job.parallel
    layer_input = arch.layer[0].saved[0]
    partitions = parallel.tp if zero.partition_activations else layer_input.divisor
    whole_input = layer_input.bytes * layer_input.divisor
    inputs = {"checkpoint_bytes": whole_input, "partitions": partitions, "layers": arch.layers, "pipeline_parallel": parallel.pp}
    stored = term("checkpoints", "checkpoints", UNTIL_BACKWARD, checkpoint_bytes, **inputs, micro_batches_in_flight=in_flight)
    terms: list[Term] = []
    layer = kept_bytes(arch.layer)
    if zero.cpu_checkpointing:
        on_host = term(
            "checkpoints on the host", "checkpoints", UNTIL_BACKWARD, host_checkpoint_bytes,
            checkpoint_bytes=stored.bytes, gpus_per_node=min(job.cluster.gpus_per_node, job.cluster.gpus),
        )  # fmt: skip
        terms.append(replaced(on_host, tier="cpu", assumption=f"{job.cluster.gpus_per_node} GPUs per node"))
    else:
        terms.append(stored)
    if zero.partition_activations:
        terms.append(_once("recomputed layer with its gathered input", "activations", BACKWARD, layer, 1))
    else:
        terms.append(_once("recomputed layer", "activations", BACKWARD, layer - layer_input.bytes, 1))
        terms.append(_once("first layer's checkpoint", "checkpoints", ("backward_end",), layer_input.bytes, 1))
    if in_flight > 1 and not zero.cpu_checkpointing:
        terms.append(_waiting(checkpoint_bytes(**inputs, micro_batches_in_flight=1), in_flight))
    return terms


def _waiting(per_micro_batch: int, in_flight: int) -> Term:
    """Under 1F1B the other micro-batches in flight still hold theirs when the first one's backward ends."""
    return _once("other micro-batches in flight", "activations", ("backward_end",), per_micro_batch, in_flight - 1)


def _ends(job: Job, arch: Architecture, tokens: int, in_flight: int) -> list[Term]:
    """What is kept outside the layers: embedding, final norm, head, logits."""
    terms = []
    before, after = kept_bytes(arch.before), kept_bytes(arch.after)
    if before:
        terms.append(_once("embedding activations", "activations", THROUGHOUT, before, in_flight))
    terms.append(_once("final norm and head inputs", "activations", HEAD, after, 1))
    compute, tp = job.recipe.compute, job.parallel.tp
    copies = [(f"logits ({LOSS_DTYPE})", HEAD, LOSS_DTYPE), ("logits' gradient", AT_LOSS, compute)]
    if compute != LOSS_DTYPE:
        copies.insert(0, (f"logits ({compute})", AT_FORWARD, compute))
    terms += [
        term(name, "logits", moments, logits_bytes, tokens=tokens, vocab=arch.vocab, tensor_parallel=tp, bytes_per_element=DTYPE_BYTES[dtype])
        for name, moments, dtype in copies
    ]
    return terms


def _once(name: str, kind: Kind, moments: tuple[Moment, ...], amount: int, in_flight: int) -> Term:
    return term(name, kind, moments, once_bytes, bytes_per_micro_batch=amount, micro_batches_in_flight=in_flight)
