"""What an answer is made of: the JSON contract as Python objects, field for field."""

from __future__ import annotations

from typing import Literal

from zerocalc.ledger import Moment, Term, record
from zerocalc.schedule import Collective
from zerocalc.spec.job import Job

SCHEMA_VERSION = 1

Verdict = Literal["fits", "does_not_fit", "unknown"]


@record
class AtPeak:
    """The peak, split; the three sum to it [bytes]. What is not known counts nowhere: `GpuMemory.activations_known` and ``unknown`` say so."""

    states_bytes: int
    activations_bytes: int
    other_bytes: int


@record
class GpuMemory:
    """One GPU's memory [bytes]. ``states_bytes`` sums every state row, whenever it is alive: the paper's figure."""

    states_bytes: int
    peak_bytes: int
    peak_moment: Moment
    moments: dict[Moment, int]
    at_peak: AtPeak
    activations_known: bool
    reserved_bytes: int
    unknown: tuple[str, ...]
    terms: tuple[Term, ...]


@record
class HostMemory:
    """Memory of one node beside its GPUs [bytes]."""

    bytes_per_node: int
    terms: tuple[Term, ...]


@record
class Memory:
    """Memory by tier; a tier that holds nothing is ``None``."""

    gpu: GpuMemory
    cpu: HostMemory | None
    nvme: HostMemory | None


@record
class Communication:
    """Traffic of one optimizer step on one rank: the paper's volume (elements over the rank's parameters) and the ring's bytes.

    ``unknown`` names what is sent too and is in no figure; with any of it ``sent_bytes_per_gpu`` is the known part.
    """

    volume_params: float
    ratio_to_dp: float | None
    sent_bytes_per_gpu: int
    inter_node_bytes_per_gpu: int | None
    host_bytes_per_gpu: int
    unknown: tuple[str, ...]
    collectives: tuple[Collective, ...]


@record
class Estimate:
    """One candidate: a job at one ZeRO stage."""

    name: str
    stage: int
    memory: Memory
    communication: Communication
    time: None
    fits: bool | None


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
