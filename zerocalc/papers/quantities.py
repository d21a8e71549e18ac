"""What tables in papers show, computed anew: by the program itself where it computes the thing,
else by the paper's closed form.

A table's file names a quantity and its inputs; each function here is one quantity and gives plain
SI numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

from zerocalc.estimator import estimate
from zerocalc.formulas import estimators, published, published_activations
from zerocalc.formulas.formula import Written
from zerocalc.ledger import STATE_KINDS, Term, record
from zerocalc.model.build import architecture
from zerocalc.model.counting import count_parameters
from zerocalc.model.module import layout
from zerocalc.results import Estimate
from zerocalc.schedule import OPERATIONS, Collective
from zerocalc.spec.cluster import Cluster
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.vocab_parallel import SOURCE as ENDS_SOURCE

TRIAL_PARAMETERS = 10**9
"""For each GPU, of a model whose bytes a parameter are asked for: what is rounded up is lost in so
many.
"""
MEGATRON_VOCAB = 51200
"""[Meg] §5.1 and [SP] §6: the vocabulary of all their models."""
Recompute = Literal["none", "selective", "full"]


@record
class Ours:
    """A recomputed value, the formula it stands for, and what that formula gives where the value
    was counted instead.
    """

    value: Fraction
    formula: str | None
    closed: Fraction | None = None


def _by(formula: Written[..., Any], **inputs: float) -> Ours:
    return Ours(Fraction(formula(**inputs)), formula.text)


def bare(parameters: int, gpus: int, **parts: Any) -> Job:
    """A job of so many parameters without an architecture."""
    return Job.model_validate(
        {"model": {"params": parameters}, **{"cluster": {"gpus": gpus}, **parts}}
    )


def layered(
    shape: dict[str, int],
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
    **zero: bool,
) -> Job:
    """A job of one model replica, its attention keeping its scores as in [SP].

    ``shape``: ``layers``, ``hidden``, ``heads``, ``seq``, ``micro_batch``, ``tp``.
    """
    return Job.model_validate(
        {
            "model": _gpt(shape["layers"], shape["hidden"], shape["heads"], shape["seq"]),
            "cluster": Cluster(gpus=shape["tp"]),
            "training": {
                "seq": shape["seq"],
                "micro_batch": shape["micro_batch"],
                "recompute": recompute,
                "attention": "eager",
            },
            "parallel": {"tp": shape["tp"], "sequence_parallel": sequence_parallel},
            "zero": zero,
        }
    )


def _gpt(layers: int, hidden: int, heads: int, seq: int) -> Model:
    return Model.model_validate(
        {
            "kind": "gpt2",
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "vocab": MEGATRON_VOCAB,
            "positions": seq,
        }
    )


def states(*, parameters: int, shards: int, stage: int) -> Ours:
    """Bytes of model states per GPU."""
    value = estimate(bare(parameters, shards), stage).memory.gpu.states_bytes
    return Ours(Fraction(value), published.STATES[stage].text)


def weights(*, parameters: int) -> Ours:
    """Bytes of the 16-bit weights."""
    terms = estimate(bare(parameters, 1), 0).memory.gpu.terms
    return Ours(Fraction(_bytes(terms, "weights")), "2·Ψ")


def fused_buffer(*, parameters: int, gpus: int) -> Ours:
    """Bytes of a fused fp32 buffer as large as the model."""
    answer = estimate(bare(parameters, gpus, zero={"buffers": "fused"}), 0)
    return Ours(Fraction(_bytes(answer.memory.gpu.terms, "buffers")), "4·Ψ")


def _bytes(terms: tuple[Term, ...], kind: str) -> int:
    return sum(term.bytes for term in terms if term.kind == kind)


def largest_model(*, memory: int, shards: int, stage: int, model_parallel: int = 1) -> Ours:
    """Parameters of the largest model whose states fit, split evenly over ``model_parallel``
    GPUs.
    """
    value = published.max_model(memory_bytes=memory, shards=shards, stage=stage) * model_parallel
    return Ours(
        Fraction(value), published.LARGEST[stage].text + ("·mp" if model_parallel > 1 else "")
    )


def volume(*, parameters: int, shards: int, stage: int) -> Ours:
    """Data-parallel elements per parameter and step, as the ranks grow without bound."""
    return Ours(
        Fraction(estimate(bare(parameters, shards), stage).communication.volume_params),
        f"{3 if stage == 3 else 2}·Ψ",
    )


def _of_layers(answer: Estimate) -> list[Collective]:
    """What tensor-parallel ranks send of the layers, which is all that [ZeRO] counts."""
    return [
        c for c in answer.communication.collectives if c.group == "tp" and c.source != ENDS_SOURCE
    ]


def _checkpointed(shape: dict[str, int], **zero: bool) -> Estimate:
    return estimate(layered(shape, recompute="full", **zero), 0)


def tensor_parallel_calls(**shape: int) -> Ours:
    """All-reduces per layer and micro-batch with checkpointing."""
    calls = sum(c.count for c in _of_layers(_checkpointed(shape)) if c.op == "all_reduce")
    return Ours(Fraction(calls, shape["layers"]), None)


def tensor_parallel_elements(**shape: int) -> Ours:
    """Elements of those all-reduces, in units of b·s·h."""
    return Ours(
        _per_token(_of_layers(_checkpointed(shape)), shape), published.tensor_parallel_volume.text
    )


def partitioned_elements(**shape: int) -> Ours:
    """Elements of P_a's all-gather per layer and micro-batch, in units of b·s·h."""
    return Ours(_partitioned(shape), published.partitioned_activations_volume.text)


def partitioned_share(**shape: int) -> Ours:
    """P_a's elements over tensor parallelism's."""
    return Ours(
        _partitioned(shape) / _per_token(_of_layers(_checkpointed(shape)), shape),
        "b·s·h/(12·b·s·h)",
    )


def _partitioned(shape: dict[str, int]) -> Fraction:
    answer = _checkpointed(shape, partition_activations=True)
    return _per_token([c for c in _of_layers(answer) if c.op == "all_gather"], shape)


def _per_token(collectives: list[Collective], shape: dict[str, int]) -> Fraction:
    elements = sum(
        OPERATIONS[c.op].volume * c.tensor_bytes // DTYPE_BYTES[c.dtype] * c.count
        for c in collectives
    )
    return Fraction(
        elements, shape["layers"] * shape["micro_batch"] * shape["seq"] * shape["hidden"]
    )


def host_copies(**shape: int) -> Ours:
    """Bytes that P_a+cpu moves over PCIe, over the bytes of the checkpoints that it stores."""
    moved = _checkpointed(
        shape, partition_activations=True, cpu_checkpointing=True
    ).communication.host_bytes_per_gpu
    stored = _bytes(
        _checkpointed(shape, partition_activations=True).memory.gpu.terms, "checkpoints"
    )
    return Ours(Fraction(moved, stored), None)


def checkpoints(*, partitioned: bool = False, **shape: int) -> Ours:
    """Bytes of stored checkpoints per GPU while backward starts."""
    terms = _checkpointed(shape, partition_activations=partitioned).memory.gpu.terms
    value = sum(t.bytes for t in terms if t.kind == "checkpoints" and "backward_start" in t.moments)
    return Ours(Fraction(value), "2·b·s·h·L/t" if partitioned else "2·b·s·h·L")


def activations(**shape: int) -> Ours:
    """[ZeRO]'s estimate of all activations."""
    return _by(published.transformer_activations, **shape)


def parameters(*, layers: int, hidden: int) -> Ours:
    """Parameters of the layers alone."""
    return _by(published.transformer_parameters, layers=layers, hidden=hidden)


def states_both_gradients(*, layers: int, hidden: int) -> Ours:
    """Bytes of all model states with 16-bit and fp32 gradients."""
    count = published.transformer_parameters(layers=layers, hidden=hidden)
    value = estimate(bare(count, 1, recipe="mixed-adam-both-grads"), 0).memory.gpu.states_bytes
    return Ours(Fraction(value), published.model_state_bytes.text)


def node_activations(
    *, layers: int, hidden: int, heads: int, seq: int, micro_batch: int, gpus_per_node: int
) -> Ours:
    """Bytes of all activations of a node's GPUs, nothing recomputed, by [Inf]'s count."""
    formula = published.activation_working_memory
    layer = formula(
        micro_batch=micro_batch, seq=seq, checkpoint_interval=1, hidden=hidden, heads=heads
    )
    return Ours(Fraction(layer * layers * gpus_per_node), "b·s·L·(16·h + 2·a·s)·G")


def node_checkpoints(*, layers: int, hidden: int, seq: int, batch: int) -> Ours:
    """Bytes of a node's checkpoints for ``batch`` sequences, one checkpoint a layer."""
    return _by(
        published.activation_checkpoint_bytes,
        micro_batch=batch,
        seq=seq,
        hidden=hidden,
        layers=layers,
        checkpoint_interval=1,
    )


def state_working_memory(*, hidden: int) -> Ours:
    """Bytes of the largest linear's weights and gradients."""
    return _by(published.model_state_working_memory, hidden=hidden)


def activation_working_memory(*, hidden: int, heads: int, seq: int, micro_batch: int) -> Ours:
    """Bytes of one layer's activations."""
    return _by(
        published.activation_working_memory,
        micro_batch=micro_batch,
        seq=seq,
        checkpoint_interval=1,
        hidden=hidden,
        heads=heads,
    )


def kept_on_gpu(*, parameters: int, away: str) -> Ours:
    """Bytes per parameter on the one GPU there is, with gradients, the optimizer or both on the
    host.
    """
    answer = estimate(
        bare(
            parameters,
            1,
            zero={"stage": 2, "offload_optimizer": "cpu" if away == "both" else "none"},
        )
    )
    left = sum(
        term.bytes
        for term in answer.memory.gpu.terms
        if term.kind in STATE_KINDS and term.kind != away
    )
    return Ours(Fraction(left, parameters), "16·Ψ less what is away")


def reduced_by(*, parameters: int, away: str) -> Ours:
    """How many times less that is than with all on the GPU."""
    return Ours(16 / kept_on_gpu(parameters=parameters, away=away).value, None)


def host_traffic(*, parameters: int, gpus: int) -> Ours:
    """Bytes per parameter of a GPU's share that cross its host link in a step, gradients and
    optimizer on the host.
    """
    sent = estimate(
        bare(parameters, gpus, zero={"stage": 2, "offload_optimizer": "cpu"})
    ).communication.host_bytes_per_gpu
    return Ours(Fraction(sent * gpus, parameters), "2·Ψ + 2·Ψ")


def largest_on_node(
    *, memory: int, gpus: int, stage: int, optimizer: str = "none", params: str = "none"
) -> Ours:
    """Parameters of the largest model whose states fit the tier, of ``memory`` bytes for all GPUs
    of a node, that holds most of them.
    """
    trial = TRIAL_PARAMETERS * gpus
    zero = {"stage": stage, "offload_optimizer": optimizer, "offload_params": params}
    held = estimate(
        bare(
            trial,
            gpus,
            cluster={"gpus": gpus, "gpus_per_node": gpus, "nvme_capacity": "1PB"},
            zero=zero,
        )
    ).memory
    tier = held.nvme or (held.cpu if params == "cpu" else None)
    return Ours(
        Fraction(memory * trial, tier.bytes_per_node if tier else held.gpu.states_bytes * gpus),
        None,
    )


def gpt_parameters(*, layers: int, hidden: int, heads: int, seq: int) -> Ours:
    """Parameters, counted tensor by tensor."""
    value = count_parameters(_gpt(layers, hidden, heads, seq)).total
    return Ours(Fraction(value), None)


def gpt_parameters_closed(*, layers: int, hidden: int, heads: int, seq: int) -> Ours:
    """Parameters by [Meg]'s formula, which knows no heads."""
    return _by(
        published.gpt_parameters, layers=layers, hidden=hidden, vocab=MEGATRON_VOCAB, seq=seq
    )


@record
class Technique:
    """How [SP] cuts or drops activations: tensor and sequence parallelism or neither, and what is
    recomputed.
    """

    tensor: bool
    sequence: bool
    recompute: Recompute


TECHNIQUES = {
    "none": Technique(False, False, "none"),
    "tp": Technique(True, False, "none"),
    "tp+sp": Technique(True, True, "none"),
    "tp+selective": Technique(True, False, "selective"),
    "tp+sp+selective": Technique(True, True, "selective"),
    "full": Technique(True, False, "full"),
}


def saved_by_layer(
    technique: str, *, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> int:
    """Bytes that one layer keeps for backward, summed over the tensors that its modules save."""
    how = TECHNIQUES[technique]
    shape = {
        "layers": 1,
        "hidden": hidden,
        "heads": heads,
        "seq": seq,
        "micro_batch": micro_batch,
        "tp": tp if how.tensor else 1,
    }
    job = layered(shape, how.sequence, how.recompute)
    arch = architecture(job.model, layout(job, seq), job.implementation)
    return sum(module.kept_bytes for module in arch.layer) if arch else 0


def closed_layer(
    technique: str, *, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> int:
    """The same by [SP]'s formula."""
    formula, more = published_activations.LAYER[technique]
    given = {"heads": heads, "tensor_parallel": tp}
    return formula(
        seq=seq, micro_batch=micro_batch, hidden=hidden, **{name: given[name] for name in more}
    )


def layer_activations(
    *, technique: str, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> Ours:
    """Bytes kept by one layer, the modules' tensors beside the closed form."""
    shape = {"hidden": hidden, "heads": heads, "seq": seq, "micro_batch": micro_batch, "tp": tp}
    counted = saved_by_layer(technique, **shape)
    return Ours(
        Fraction(counted),
        published_activations.LAYER[technique][0].text,
        Fraction(closed_layer(technique, **shape)),
    )


def layer_share(
    *, technique: str, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> Ours:
    """A layer's activations over those under tensor parallelism alone."""
    shape = {"hidden": hidden, "heads": heads, "seq": seq, "micro_batch": micro_batch, "tp": tp}
    return Ours(Fraction(saved_by_layer(technique, **shape), saved_by_layer("tp", **shape)), None)


def first_stage_activations(
    *,
    technique: str,
    layers: int,
    hidden: int,
    heads: int,
    seq: int,
    micro_batch: int,
    tp: int,
    pp: int,
    interleave: int,
) -> Ours:
    """Bytes of all layers' activations on the first pipeline stage, embedding and output aside."""
    formula = published_activations.first_stage_layers
    held = (
        formula(layers=layers, pipeline_parallel=pp, interleave=interleave)
        if interleave > 1
        else layers
    )
    layer = saved_by_layer(
        technique, hidden=hidden, heads=heads, seq=seq, micro_batch=micro_batch, tp=tp
    )
    return Ours(
        layer * Fraction(held).limit_denominator(pp * interleave),
        f"A·{formula.text}" if interleave > 1 else "A·L",
    )


def megatron_states(*, layers: int, hidden: int, tp: int, pp: int) -> Ours:
    """Bytes of model states per GPU at 18 per parameter of the layers, one replica."""
    count = published.transformer_parameters(layers=layers, hidden=hidden)
    job = bare(count, tp * pp, recipe="megatron", parallel={"tp": tp, "pp": pp})
    return Ours(Fraction(estimate(job, 0).memory.gpu.states_bytes), "⌈12·L·h²/(t·p)⌉·18")


def selective_saving(*, hidden: int, heads: int, seq: int, micro_batch: int) -> Ours:
    """Share of a layer's activations that selective recomputation drops, counted over tensors."""
    shape = {"hidden": hidden, "heads": heads, "seq": seq, "micro_batch": micro_batch, "tp": 1}
    kept, whole = saved_by_layer("tp+selective", **shape), saved_by_layer("none", **shape)
    return Ours(1 - Fraction(kept, whole), published_activations.selective_saving.text)


def selective_overhead(*, layers: int, hidden: int, seq: int) -> Ours:
    """FLOPs that selective recomputation adds, as a share."""
    return _by(
        published_activations.selective_overhead,
        seq=seq,
        hidden=hidden,
        vocab=MEGATRON_VOCAB,
        layers=layers,
    )


def estimator(
    *,
    tier: Literal["gpu", "host"],
    stage: int,
    offload: str,
    zero_init: bool,
    older: bool = False,
    parameters: int,
    largest_layer: int,
    gpus_per_node: int,
    nodes: int,
) -> Ours:
    """Bytes by one of the estimators' formulas, per GPU or per node."""
    if older and (tier, stage, offload) == ("gpu", 2, "none"):
        formula = estimators.stage2_gpu_older
    else:
        formula = getattr(estimators.ESTIMATORS[stage, offload, zero_init], tier)
    value = estimators.evaluate(
        formula,
        parameters=parameters,
        largest_layer=largest_layer,
        gpus_per_node=gpus_per_node,
        nodes=nodes,
    )
    return Ours(Fraction(value), formula.text)


QUANTITIES: dict[str, Callable[..., Ours]] = {
    quantity.__name__: quantity
    for quantity in (
        *(
            states,
            weights,
            fused_buffer,
            largest_model,
            volume,
            tensor_parallel_calls,
            tensor_parallel_elements,
            partitioned_elements,
        ),
        *(
            partitioned_share,
            host_copies,
            checkpoints,
            activations,
            parameters,
            states_both_gradients,
            node_activations,
            node_checkpoints,
        ),
        *(
            state_working_memory,
            activation_working_memory,
            gpt_parameters,
            gpt_parameters_closed,
            layer_activations,
            layer_share,
        ),
        *(
            first_stage_activations,
            megatron_states,
            selective_saving,
            selective_overhead,
            estimator,
        ),
        *(kept_on_gpu, reduced_by, host_traffic, largest_on_node),
    )
}
"""What a table's file can name."""
