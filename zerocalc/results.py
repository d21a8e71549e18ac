"""What an answer is made of: the JSON contract as Python objects, field for field."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from zerocalc.details import Detailed, Details, PipelineStages, TensorShare
from zerocalc.ledger import MOMENTS, STATE_KINDS, AnyRatio, Kind, Moment, Term, record
from zerocalc.schedule import (
    CPU_TRAFFIC,
    NETWORK_FABRICS,
    NVME_TRAFFIC,
    OPERATIONS,
    AnyFormula,
    Collective,
    Placement,
)
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

# Passed on: views take what a plan's entries are made of from here, as they do its records.
__all__ = [
    "CPU_TRAFFIC",
    "MOMENTS",
    "NETWORK_FABRICS",
    "NVME_TRAFFIC",
    "OPERATIONS",
    "STATE_KINDS",
    "Collective",
    "Details",
    "Job",
    "Kind",
    "Model",
    "Moment",
    "PipelineStages",
    "Placement",
    "TensorShare",
    "Term",
    "record",
]

SCHEMA_VERSION = 1

Verdict = Literal["fits", "does_not_fit", "unknown"]


@record
class AtPeak:
    """The peak of one GPU's memory by purpose; the three parts sum to it. What is unknown is in
    none of them.
    """

    states_bytes: int
    """Weights, gradients and optimizer states at the peak [bytes]."""
    activations_bytes: int
    """Saved activations, checkpoints and logits at the peak [bytes]."""
    other_bytes: int
    """Everything else at the peak: buckets, all-gathered parameters, CUDA context [bytes]."""


@record
class GpuMemory:
    """One GPU's memory."""

    states_bytes: int
    """All model states, whenever they are alive: the paper's figure [bytes]."""
    peak_bytes: int
    """The largest of ``moments`` [bytes]."""
    peak_moment: Moment
    """The first moment at which the peak is reached."""
    moments: dict[Moment, int]
    """Bytes in use at each moment of a step."""
    at_peak: AtPeak
    """The peak by purpose."""
    largest_at_peak: dict[str, int]
    """The largest terms at the peak, largest first: name to bytes."""
    activations_known: bool
    """Whether activations are counted; they are not for a parameter count only, or without a
    sequence length.
    """
    reserved_bytes: int
    """The peak and what fragmentation adds [bytes]: compared with the usable memory."""
    unknown: tuple[str, ...]
    """What is in use too and in no figure, by name."""
    terms: tuple[Term, ...]
    """Every amount of memory on the GPU."""

    def bytes_of(self, kinds: Container[str], at: Moment | None = None) -> int:
        """Bytes of all terms of some kinds, or of those that are alive at a moment."""
        return sum(
            [t.bytes for t in self.terms if t.kind in kinds and (at is None or at in t.moments)]
        )


@record
class HostMemory:
    """CPU memory or NVMe capacity that one node uses for its GPUs."""

    bytes_per_node: int
    """What is used at least [bytes]."""
    high_bytes_per_node: int
    """What is used at most, with the rounding of pinned allocations, whose terms are of kind
    fragmentation [bytes].
    """
    capacity_bytes: int | None
    """What the node has [bytes]; ``None`` if unknown."""
    terms: tuple[Term, ...]
    """Every amount of memory on this tier, for the whole node."""

    @property
    def lacking_bytes(self) -> int:
        """What the node lacks at least [bytes]; 0 if it suffices or its capacity is unknown."""
        return (
            0 if self.capacity_bytes is None else max(0, self.bytes_per_node - self.capacity_bytes)
        )


@record
class Memory:
    """Memory by tier."""

    gpu: GpuMemory
    """Per GPU."""
    cpu: HostMemory | None
    """Per node; ``None`` if nothing is offloaded to the CPU."""
    nvme: HostMemory | None
    """Per node; ``None`` if nothing is offloaded to NVMe."""


@record
class Communication:
    """Traffic of one rank in one optimizer step."""

    volume_params: float
    """The paper's volume: data-parallel elements sent, as the number of ranks grows without bound,
    per parameter of the rank. 2 for DDP, ZeRO-1 and ZeRO-2, 3 for ZeRO-3; more under gradient
    accumulation; 0 on one rank.
    """
    ratio_to_dp: float | None
    """``volume_params`` relative to stage 0; ``None`` if that sends nothing."""
    sent_bytes_per_gpu: int
    """Bytes that the rank sends to other GPUs, by ring algorithms; the known part, if ``unknown``
    is not empty.
    """
    inter_node_bytes_per_gpu: int | None
    """Of which inter-node [bytes]."""
    inter_node_bytes_per_card: int | None
    """Inter-node bytes that each NIC of a node sends; ``None`` if the number of NICs is unknown."""
    host_bytes_per_gpu: int
    """Bytes copied between the GPU and CPU memory, both ways."""
    nvme_bytes_per_gpu: int
    """Bytes copied between the rank's CPU memory and NVMe, both ways."""
    unknown: tuple[str, ...]
    """What is sent too and in no figure, by name."""
    collectives: tuple[Collective, ...]
    """Every collective and copy."""
    placements: tuple[Placement, ...]
    """For each of ``collectives``, which of its bytes are intra-node and which inter-node."""


@record
class TimePart:
    """One part of a step's time, with its formula."""

    name: str
    """Name of the part, or of a collective."""
    seconds: float
    """Its time [s]."""
    formula: AnyRatio
    """The formula that gives ``seconds``."""
    inputs: dict[str, int | float]
    """The formula's inputs by name, in SI units and bytes."""
    source: str
    """Where the formula is from."""


@record
class Figure:
    """One figure that follows from a step's time, with its formula."""

    name: str
    """Name of the figure, as in a plan's table."""
    value: float
    """Its value, in the unit that its name says."""
    formula: AnyFormula | AnyRatio
    """The formula that gives ``value``."""
    inputs: dict[str, int | float]
    """The formula's inputs by name, in SI units and bytes."""
    source: str
    """Where the formula is from."""


@record
class Timing:
    """The estimated time of one optimizer step, its FLOPs, and what follows from them."""

    step_seconds: float
    """Compute, exposed communication, pipeline bubble and optimizer step together [s]."""
    compute_seconds: float
    """Forward and backward compute on one GPU, recomputation included [s]."""
    communication_seconds: float
    """All communication, overlapped or not [s]."""
    exposed_communication_seconds: float
    """Communication that compute does not hide [s]."""
    unhidable_communication_seconds: float
    """Communication during which nothing computes, however fast the network is [s]."""
    bubble_seconds: float
    """The pipeline bubble [s]."""
    update_seconds: float
    """The optimizer step [s]."""
    model_flops_per_step: int
    """FLOPs of the model on all GPUs together, without recomputation."""
    hardware_flops_per_step: int
    """FLOPs on all GPUs together, with recomputation."""
    mfu: float
    """Model FLOPs utilisation: fraction of the GPUs' dense peak."""
    hfu: float
    """Hardware FLOPs utilisation: the same with recomputation."""
    tokens_per_second: float
    """Tokens trained per second on all GPUs together."""
    hidden_above_bytes_per_second_per_node: float | None
    """Bandwidth of a node's NICs together above which compute hides all communication that can be
    hidden [bytes/s]; ``None`` if none of that is inter-node, or intra-node traffic alone takes
    longer than compute.
    """
    days: float | None
    """Duration of the whole run [days]; ``None`` if its tokens are not given."""
    gpu_hours: float | None
    """GPU-hours of the whole run; ``None`` if its tokens are not given."""
    parts: tuple[TimePart, ...]
    """The four parts of ``step_seconds``, then each collective on its own."""
    figures: tuple[Figure, ...]
    """What follows from the step's time, and its FLOPs."""


@record
class Estimate:
    """One candidate: a job at one ZeRO stage. ``pipeline_stage``: whose figures these are, 1 the
    first; ``None`` where all stages count alike. ``rank_parameters``: Ψ of one rank [elements],
    its part under tensor, pipeline and expert parallelism, before ZeRO shards it.
    """

    name: str
    """ddp, zero-1, zero-2 or zero-3."""
    stage: int
    """The ZeRO stage, 0 (DDP) to 3."""
    memory: Memory
    """Memory of one GPU, and of one node's CPU and NVMe."""
    communication: Communication
    """Traffic of one GPU in one step."""
    time: Timing | None
    """Time of one step; ``None`` without a GPU whose figures are known, or without FLOPs."""
    fits: bool | None
    """Whether the memory suffices; ``None`` if that is unknown."""
    pipeline_stage: int | None
    rank_parameters: int


def display_name(name: str) -> str:
    """A stage's name for people: ``ZeRO-3`` for ``zero-3``.

    >>> display_name("zero-3"), display_name("ddp")
    ('ZeRO-3', 'DDP')
    """
    return name.upper() if name == "ddp" else name.replace("zero", "ZeRO")


def cheapest(candidates: list[Estimate]) -> Estimate:
    """The candidate that sends the fewest bytes per GPU; of equal ones the lowest stage.

    Raises `ValueError` for an empty list.
    """
    return min(candidates, key=lambda c: (c.communication.sent_bytes_per_gpu, c.stage))


@record
class Recommendation:
    """The candidate to take, and why."""

    name: str
    """Name of the candidate."""
    why: tuple[str, ...]
    """The reasons, one sentence each; the first says so if only model states are known."""


@record
class Parameters:
    """The model's parameters [elements]: all of them, adapters included; those that are trained;
    and those that one token passes through, ``None`` for a bare number of parameters.

    ``shards`` is N_d: how many ranks hold the same parameters, over which ZeRO shards states.
    """

    total: int
    trainable: int
    active: int | None
    shards: int


@record
class Plan(Detailed):
    """The whole answer. ``state_bytes_per_parameter``: what a recipe takes for each parameter
    before sharding [bytes], by kind of state; empty where that depends on shapes or on what is
    frozen.
    """

    schema_version: int
    """Version of the JSON contract; adding keys does not change it."""
    job: Job
    """The job, with defaults filled in."""
    candidates: tuple[Estimate, ...]
    """An estimate for each ZeRO stage, in rising order."""
    verdict: Verdict
    """Whether a candidate fits."""
    recommended: Recommendation | None
    """The candidate to use; ``None`` if the capacity is unknown or no candidate can fit."""
    assumptions: tuple[str, ...]
    """What the figures rest on, one sentence each."""
    notes: tuple[str, ...]
    """What to know about the answer, one sentence each."""
    suggestions: tuple[str, ...]
    """What to change so that the job fits, one sentence each; empty if it does."""
    parameters: Parameters
    state_bytes_per_parameter: dict[Kind, float]

    @property
    def chosen(self) -> Estimate | None:
        """The candidate that is recommended."""
        name = self.recommended.name if self.recommended is not None else None
        return next((c for c in self.candidates if c.name == name), None)
