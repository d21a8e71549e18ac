"""One training step, moment by moment: what each GPU holds, what arrives, what is freed, what is
sent. Nothing but entries and sums.
"""

from __future__ import annotations

from zerocalc.ledger import GATHERED, MOMENTS, Kind, Moment, Term, record
from zerocalc.results import Estimate
from zerocalc.schedule import Collective, Phase

TITLES: dict[Moment, str] = {
    "load": "model load",
    "forward": "end of forward",
    "loss": "loss and gradient of the logits",
    "backward_start": "start of backward",
    "backward_end": "end of backward",
    "step": "optimizer step",
}
SENT_BY: dict[Moment, Phase] = {"forward": "forward", "backward_end": "backward", "step": "step"}
"""The moment by which the collectives of a phase have run."""

STATE_NAMES: dict[Kind, str] = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
}

QUESTIONS = (
    "What does each GPU hold in forward?",
    "How are gradients computed, reduced and stored?",
    "Who updates the weights, and how does every GPU get them?",
)


@record
class Instant:
    """One moment of one candidate [bytes]."""

    moment: Moment
    title: str
    total_bytes: int
    holds: tuple[Term, ...]
    arrives: tuple[Term, ...]
    frees: tuple[Term, ...]
    sends: tuple[Collective, ...]


def walk(candidate: Estimate) -> list[Instant]:
    """The moments of one step, in order."""
    gpu = candidate.memory.gpu
    terms = [t for t in gpu.terms if t.kind != "fragmentation"]
    out: list[Instant] = []
    before: list[Term] = []
    for moment in MOMENTS:
        now = [t for t in terms if moment in t.moments]
        phase = SENT_BY.get(moment)
        sends = tuple(c for c in candidate.communication.collectives if c.moment == phase)
        arrives = tuple(t for t in now if t not in before)
        frees = tuple(t for t in before if t not in now)
        out.append(
            Instant(moment, TITLES[moment], gpu.moments[moment], tuple(now), arrives, frees, sends)
        )
        before = now
    return out


@record
class Holding:
    """A kind of state on one GPU: its bytes, and into how many parts its largest row is cut (1:
    whole).
    """

    kind: Kind
    name: str
    bytes: int
    parts: int


def holdings(candidate: Estimate, moment: Moment) -> list[Holding]:
    """Weights, gradients and optimizer states alive at a moment."""
    out = []
    for kind, name in STATE_NAMES.items():
        terms = [t for t in candidate.memory.gpu.terms if t.kind == kind and moment in t.moments]
        if terms:
            largest = max(terms, key=lambda t: t.bytes)
            out.append(
                Holding(
                    kind, name, sum(t.bytes for t in terms), int(largest.inputs.get("shards", 1))
                )
            )
    return out


def elsewhere(candidate: Estimate, kinds: frozenset[str]) -> tuple[Term, ...]:
    """States of some kinds in CPU memory or on NVMe, per node."""
    tiers = (candidate.memory.cpu, candidate.memory.nvme)
    return tuple(t for tier in tiers if tier is not None for t in tier.terms if t.kind in kinds)


def copied(candidate: Estimate, phase: Phase) -> tuple[Collective, ...]:
    """Copies between GPUs, CPUs and NVMe in a phase."""
    return tuple(
        c for c in candidate.communication.collectives if c.group == "host" and c.moment == phase
    )


def gathered(candidate: Estimate, moment: Moment) -> tuple[Term, ...]:
    """Units gathered whole at a moment."""
    return tuple(
        t for t in candidate.memory.gpu.terms if t.kind == "gathered" and moment in t.moments
    )


def unknown_gathers(candidate: Estimate) -> bool:
    """Whether units are gathered whose sizes are not known."""
    return GATHERED in candidate.memory.gpu.unknown


def moved(candidate: Estimate, phase: Phase, what: str) -> tuple[Collective, ...]:
    """The data-parallel collectives of a phase that move ``what``."""
    return tuple(
        c
        for c in candidate.communication.collectives
        if c.group == "dp" and c.moment == phase and c.what.endswith(what)
    )
