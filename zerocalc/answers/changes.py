"""A job with something changed: what fits then, and the line that says so."""

from __future__ import annotations

from collections.abc import Iterable

from zerocalc.estimator import estimate_with_assumptions
from zerocalc.quantities import format_gib
from zerocalc.results import Estimate, cheapest, display_name
from zerocalc.sharding.rank import Share
from zerocalc.spec.job import Job


def fitting(job: Job, held: list[Share], stages: Iterable[int]) -> Estimate | None:
    """The cheapest candidate of some ZeRO stages that fits, as far as is known; ``None`` where none
    does. ``held``: the job's `shares`.
    """
    answers = [estimate_with_assumptions(job, stage, held)[0] for stage in stages]
    found = [answer for answer in answers if answer.fits is not False]
    return cheapest(found) if found else None


def line(job: Job, flags: Iterable[str], best: Estimate, asked: tuple[int, ...]) -> str:
    """The changes as flags, and what fits then: ``job`` is the changed one, ``asked`` are the
    stages that were asked for.
    """
    stage = () if best.stage in asked else (f"--stage {best.stage}",)
    gpu = best.memory.gpu
    missing = ", ".join(gpu.unknown or ["pinned-buffer rounding"])
    known = "" if best.fits else f", not counting {missing}"
    even = " on an even share of the pipeline" if job.even_share else ""
    return (
        f"{' '.join((*stage, *flags))}: {display_name(best.name)} fits{even} in "
        f"{format_gib(gpu.reserved_bytes)}{known}"
    )
