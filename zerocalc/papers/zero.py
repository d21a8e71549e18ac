"""What [ZeRO]'s tables and figures show: states, the largest model, volumes, and activation
checkpoints.
"""

from __future__ import annotations

from fractions import Fraction

from zerocalc.estimator import estimate
from zerocalc.formulas import published
from zerocalc.papers.jobs import Ours, bare, by, bytes_of, layered
from zerocalc.results import Estimate
from zerocalc.schedule import OPERATIONS, Collective
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.vocab_parallel import SOURCE as ENDS_SOURCE


def states(*, parameters: int, shards: int, stage: int) -> Ours:
    """Bytes of model states per GPU."""
    value = estimate(bare(parameters, shards), stage).memory.gpu.states_bytes
    return Ours(Fraction(value), published.STATES[stage].text)


def weights(*, parameters: int) -> Ours:
    """Bytes of the 16-bit weights."""
    terms = estimate(bare(parameters, 1), 0).memory.gpu.terms
    return Ours(Fraction(bytes_of(terms, "weights")), "2·Ψ")


def fused_buffer(*, parameters: int, gpus: int) -> Ours:
    """Bytes of a fused fp32 buffer as large as the model."""
    answer = estimate(bare(parameters, gpus, zero={"buffers": "fused"}), 0)
    return Ours(Fraction(bytes_of(answer.memory.gpu.terms, "buffers")), "4·Ψ")


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
    stored = bytes_of(
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
    return by(published.transformer_activations, **shape)


def parameters(*, layers: int, hidden: int) -> Ours:
    """Parameters of the layers alone."""
    return by(published.transformer_parameters, layers=layers, hidden=hidden)


QUANTITIES = (
    states,
    weights,
    fused_buffer,
    largest_model,
    volume,
    tensor_parallel_calls,
    tensor_parallel_elements,
    partitioned_elements,
    partitioned_share,
    host_copies,
    checkpoints,
    activations,
    parameters,
)
"""What a table's file can name."""
