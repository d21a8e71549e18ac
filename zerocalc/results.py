"""What an answer is made of: the JSON contract as Python objects, field for field."""

from __future__ import annotations

from typing import Literal

from zerocalc.ledger import AnyRatio, Moment, Term, record
from zerocalc.schedule import AnyFormula, Collective, Placement
from zerocalc.spec.job import Job

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
    first; ``None`` where all stages count alike.
    """

    name: str
    stage: int
    memory: Memory
    communication: Communication
    time: Timing | None
    fits: bool | None
    pipeline_stage: int | None = None


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
class Plan:
    """The whole answer."""

    schema_version: int
    job: Job
    candidates: tuple[Estimate, ...]
    verdict: Verdict
    recommended: Recommendation | None
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    suggestions: tuple[str, ...]
