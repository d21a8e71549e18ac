"""Ours beside runs that others measured on GPUs: one table, each line with the settings under which
it was compared. README.md and docs/accuracy.md hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import mean, median
from typing import NamedTuple

import fit_runs
import public_runs
import published_runs
import throughput
from run_rows import rows

from zerocalc.estimator import estimate
from zerocalc.spec.job import Job

HEADER = [
    "| measured by | figure | settings | rows | median error | 90 % within | largest | mean |",
    "|---|---|---|---:|---:|---:|---:|---:|",
]
DEFAULT, FRAGMENTED = "default", "`--no-defragment`"
SETTINGS = {DEFAULT: True, FRAGMENTED: False}
"""Whether fragmentation is ignored, by what the table calls it."""
WORKSPACES = "`--workspaces`"
ALLOCATED = {
    ("Megatron-LM CI", "steady"): WORKSPACES,
    ("Megatron-LM CI", "peak"): WORKSPACES,
    ("SimuMax B200", "peak"): WORKSPACES,
    ("published: Megatron-Bridge", "peak"): WORKSPACES,
    ("published: torchtune", "peak"): DEFAULT,
}
"""Sources of allocated memory that are no other source's rows again, and their settings."""


class Line(NamedTuple):
    """A source's figure under some settings, and our signed errors."""

    source: str
    figure: str
    settings: str
    errors: list[float]


def with_fragmentation(job: Job, ignored: bool) -> Job:
    """The job with allocator fragmentation ignored, or at its default share."""
    zero = {**job.zero.model_dump(), "defragment": ignored}
    return Job.model_validate({**job.model_dump(), "zero": zero})


def allocated() -> Iterator[Line]:
    """Allocated memory."""
    for (source, figure), settings in ALLOCATED.items():
        errors = [
            each.error
            for each in public_runs.all_predictions()[0]
            if (each.source, each.figure) == (source, figure)
        ]
        yield Line(source.removeprefix("published: "), f"allocated, {figure}", settings, errors)


def reserved() -> Iterator[Line]:
    """Reserved memory, under both settings."""
    for settings, ignored in SETTINGS.items():
        errors: dict[str, list[float]] = {}
        for each in published_runs.reserved(partial(with_fragmentation, ignored=ignored)):
            errors.setdefault(each.source.removeprefix("published: "), []).append(each.error)
        yield from [Line(name, "reserved, peak", settings, found) for name, found in errors.items()]


def times() -> Iterator[Line]:
    """Step times, and what follows from them."""
    steps = throughput.steps()
    for source in dict.fromkeys(step.source for step in steps):
        own = [step for step in steps if step.source == source]
        yield Line(source, own[0].figure, DEFAULT, [step.error for step in own])


def misfits(ignored: bool) -> int:
    """Runs that fitted, of which we say that they do not."""
    jobs = [with_fragmentation(fit_runs.job(row), ignored) for row in rows("llmfoundry")]
    return sum(estimate(job).fits is not True for job in jobs)


def table() -> list[str]:
    """The table, line by line."""
    lines = list(HEADER)
    for line in (*allocated(), *sorted(reserved(), key=lambda each: each.source), *times()):
        rising = sorted(abs(error) for error in line.errors)
        high = public_runs.percentile(rising, 0.9)
        shares = [f"{100 * share:.1f} %" for share in (median(rising), high, rising[-1])]
        shares.append(f"{100 * mean(line.errors):+.1f} %")
        named = f"{line.source} | {line.figure} | {line.settings}"
        lines.append(f"| {named} | {len(rising)} | {' | '.join(shares)} |")
    for settings, ignored in SETTINGS.items():
        found = f"{len(rows('llmfoundry'))} | {misfits(ignored)} called misfits"
        lines.append(f"| llm-foundry | runs that fitted | {settings} | {found} | | | |")
    return lines
