"""What an answer is made of: the JSON contract as Python objects, field for field."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cached_property
from typing import Any, Literal

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
    "Job",
    "Kind",
    "Model",
    "Moment",
    "Placement",
    "Term",
    "record",
]

SCHEMA_VERSION = 1

Verdict = Literal["fits", "does_not_fit", "unknown"]


@record
class AtPeak:
    """The peak, split; the three sum to it [bytes]. What is not known counts nowhere:
    `GpuMemory.activations_known` and ``unknown`` say so.
    """

    states_bytes: int
    activations_bytes: int
    other_bytes: int


@record
class GpuMemory:
    """One GPU's memory [bytes]. ``states_bytes`` sums every state row, whenever it is alive: the
    paper's figure.
    """

    states_bytes: int
    peak_bytes: int
    peak_moment: Moment
    moments: dict[Moment, int]
    at_peak: AtPeak
    largest_at_peak: dict[str, int]
    activations_known: bool
    reserved_bytes: int
    unknown: tuple[str, ...]
    terms: tuple[Term, ...]

    def bytes_of(self, kinds: Container[str], at: Moment | None = None) -> int:
        """Bytes of all terms of some kinds, or of those that are alive at a moment."""
        return sum(
            [t.bytes for t in self.terms if t.kind in kinds and (at is None or at in t.moments)]
        )


@record
class HostMemory:
    """Memory of one node beside its GPUs [bytes]: at least, and at most with what page-locked
    allocations are rounded up by (terms of kind "fragmentation", which count nowhere else);
    ``capacity_bytes`` is what the node has, if that is known.
    """

    bytes_per_node: int
    high_bytes_per_node: int
    capacity_bytes: int | None
    terms: tuple[Term, ...]

    @property
    def lacking_bytes(self) -> int:
        """What is missing at least; 0 where it suffices or the capacity is unknown."""
        return (
            0 if self.capacity_bytes is None else max(0, self.bytes_per_node - self.capacity_bytes)
        )


@record
class Memory:
    """Memory by tier; a tier that holds nothing is ``None``."""

    gpu: GpuMemory
    cpu: HostMemory | None
    nvme: HostMemory | None


@record
class Communication:
    """Traffic of one optimizer step on one rank: the paper's volume (elements over the rank's
    parameters) and the ring's bytes.

    ``unknown`` names what is sent too and is in no figure; with any of it ``sent_bytes_per_gpu`` is
    the known part. ``inter_node_bytes_per_card`` is each network card's part of what a node's GPUs
    send to other nodes, where it is known how many cards there are; ``placements`` say of each of
    the ``collectives`` where its bytes go.
    """

    volume_params: float
    ratio_to_dp: float | None
    sent_bytes_per_gpu: int
    inter_node_bytes_per_gpu: int | None
    inter_node_bytes_per_card: int | None
    host_bytes_per_gpu: int
    nvme_bytes_per_gpu: int
    unknown: tuple[str, ...]
    collectives: tuple[Collective, ...]
    placements: tuple[Placement, ...]


@record
class TimePart:
    """Seconds that a part of a step takes, and the formula that says so."""

    name: str
    seconds: float
    formula: AnyRatio
    inputs: dict[str, int | float]
    source: str


@record
class Figure:
    """A figure that follows from a step's time, as a row of a plan's table names it, and the
    formula that says so.
    """

    name: str
    value: float
    formula: AnyFormula | AnyRatio
    inputs: dict[str, int | float]
    source: str


@record
class Timing:
    """One optimizer step in time [s], its FLOPs on all GPUs, and what follows: utilisation of the
    dense peak, tokens, days. ``parts``: what the step consists of, and each collective by itself;
    ``figures``: what follows.

    ``mfu`` counts the model's FLOPs, ``hfu`` what is computed again too.
    ``unhidable_communication_seconds``: those beside which nothing computes, whatever the network.
    ``hidden_above_bytes_per_second_per_node``: from this bandwidth of a node's network on,
    computing hides all other communication; ``None`` where none of it crosses, or what goes inside
    nodes alone takes longer.
    """

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float
    unhidable_communication_seconds: float
    bubble_seconds: float
    update_seconds: float
    model_flops_per_step: int
    hardware_flops_per_step: int
    mfu: float
    hfu: float
    tokens_per_second: float
    hidden_above_bytes_per_second_per_node: float | None
    days: float | None
    gpu_hours: float | None
    parts: tuple[TimePart, ...]
    figures: tuple[Figure, ...]


@record
class Estimate:
    """One candidate: a job at one ZeRO stage. ``pipeline_stage``: whose figures these are, 1 the
    first; ``None`` where all stages count alike. ``rank_parameters``: Ψ of one rank [elements],
    its part under tensor, pipeline and expert parallelism, before ZeRO shards it.
    """

    name: str
    stage: int
    memory: Memory
    communication: Communication
    time: Timing | None
    fits: bool | None
    pipeline_stage: int | None
    rank_parameters: int


def display_name(name: str) -> str:
    """A stage's name as people write it.

    >>> display_name("zero-3"), display_name("ddp")
    ('ZeRO-3', 'DDP')
    """
    return name.upper() if name == "ddp" else name.replace("zero", "ZeRO")


def cheapest(candidates: list[Estimate]) -> Estimate:
    """The one that sends least; of those that send the same, the one that shards least."""
    return min(candidates, key=lambda c: (c.communication.sent_bytes_per_gpu, c.stage))


@record
class Recommendation:
    """The candidate to take, and why."""

    name: str
    why: tuple[str, ...]


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
class TensorShare:
    """One tensor that a layer saves for backward: its bytes on one rank, and their share of all
    that the layer saves. There are ``layers`` like it.

    ``term`` is the name of the entry that counts it, while not all of the layer is recomputed.
    """

    module: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    divisor: int
    bytes: int
    share: float
    rebuilt: bool
    layers: int
    group: int
    """Which of the groups of layers that are alike it belongs to, 1 the first."""
    term: str


@record
class PipelineStages:
    """Stages ``first`` to ``last`` of a pipeline at one ZeRO stage, each alike [elements and bytes
    per GPU].

    ``in_flight``: micro-batches held at once, or chunks of layers, each of one micro-batch, under
    interleaving. ``activations_bytes`` are those at the peak. ``copied_parameters``: of
    ``parameters``, those of a tied head's own copy of the embedding.
    """

    name: str
    stage: int
    first: int
    last: int
    layers: int
    parameters: int
    copied_parameters: int
    in_flight: int
    states_bytes: int
    activations_bytes: int | None
    peak_bytes: int
    peak_moment: Moment
    fits: bool | None


class Details:
    """What few views show of a plan: made when it is first asked for, of the same model as the
    plan, and kept.

    Sent to another process, it goes with all of it made.
    """

    def __init__(
        self,
        saved_tensors: Callable[[], tuple[TensorShare, ...]],
        pipeline_stages: Callable[[], tuple[PipelineStages, ...]],
        largest_leaf: Callable[[], int | None],
    ) -> None:
        self._saved_tensors, self._pipeline_stages = saved_tensors, pipeline_stages
        self._largest_leaf = largest_leaf

    @cached_property
    def saved_tensors(self) -> tuple[TensorShare, ...]:
        """What one layer of each group of alike layers saves, in order; empty where unknown."""
        return self._saved_tensors()

    @cached_property
    def pipeline_stages(self) -> tuple[PipelineStages, ...]:
        """Stages at each ZeRO stage, alike ones together; empty where an even share is known."""
        return self._pipeline_stages()

    @cached_property
    def largest_leaf(self) -> int | None:
        """Parameters of the largest leaf module [elements]; ``None`` for a bare number."""
        return self._largest_leaf()

    def __getstate__(self) -> dict[str, Any]:
        made = ("saved_tensors", "pipeline_stages", "largest_leaf")
        return {name: getattr(self, name) for name in made}


class Detailed:
    """A result with details that are no field: no document has them, no comparison reads them."""

    __slots__ = ("details",)
    details: Details


@record
class Plan(Detailed):
    """The whole answer. ``state_bytes_per_parameter``: what a recipe takes for each parameter
    before sharding [bytes], by kind of state; empty where that depends on shapes or on what is
    frozen.
    """

    schema_version: int
    job: Job
    candidates: tuple[Estimate, ...]
    verdict: Verdict
    recommended: Recommendation | None
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    suggestions: tuple[str, ...]
    parameters: Parameters
    state_bytes_per_parameter: dict[Kind, float]

    @property
    def chosen(self) -> Estimate | None:
        """The candidate that is recommended."""
        name = self.recommended.name if self.recommended is not None else None
        return next((c for c in self.candidates if c.name == name), None)


@record
class StoredBytes:
    """Bytes of a checkpoint's tensors by ``format`` (a quantisation's, or a dtype): by component,
    and by what they are for.

    ``not_quantised`` are of the tensors kept in ``dtype``; ``codebooks`` also shapes and other
    figures of a tensor. ``adapters`` are LoRA's, in a dtype of their own and in no component.
    """

    format: str
    dtype: str
    components: dict[str, int]
    weights: int
    scales: int
    zero_points: int
    indices: int
    codebooks: int
    not_quantised: int
    adapters: int


@record
class Counts:
    """A model's parameters [elements]: ``active`` is what one token passes through,
    ``largest_leaf`` the largest tensor's module.

    ``total`` is the base and its ``adapters``, which are all that LoRA trains. ``stored_bytes`` is
    what the tensors take as a checkpoint keeps them, scales included, adapters in their own dtype;
    ``None`` where that is not known.
    """

    schema_version: int
    total: int
    trainable: int
    active: int
    components: dict[str, int]
    largest_leaf: int
    largest_block: int
    stored_bytes: int | None
    stored: StoredBytes | None
    notes: tuple[str, ...]
    adapters: int = 0
