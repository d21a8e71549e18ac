"""The cheapest changes that make something fit which does not: each is a job of its own that was
estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from operator import le

from zerocalc.answers.changes import fitting, line
from zerocalc.frameworks import program_of
from zerocalc.ledger import record
from zerocalc.results import Estimate, cheapest
from zerocalc.sharding.rank import shares
from zerocalc.spec.base import FieldError
from zerocalc.spec.checks import check_job
from zerocalc.spec.job import Job

COSTS, TENSOR_PARALLEL = 5, 3
"""Kinds of changes, the dearer ones last: one sequence at a time, another stage, recomputation,
tensor parallelism, GPUs.
"""
MOST_SHOWN = 2
MOST_TRIES = 60
"""Estimates made for one answer: some milliseconds."""
MOST_GPUS_TRIED = 2**20
MANY_GPUS = (MOST_GPUS_TRIED, 2**14, 2**8)
"""Numbers of GPUs of which one does where any does: of what is rounded up for each, more of them
may hold more.
"""
RECOMPUTE = ("none", "selective", "full")


@record
class Change:
    """A job with something changed: the flags that say so, and what each kind of change costs, so
    that two can be compared.
    """

    flags: tuple[str, ...]
    job: Job
    stages: tuple[int, ...]
    costs: tuple[int, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """How much is changed: the number of kinds of changes, then the dearer kinds last."""
        return (sum(cost > 0 for cost in self.costs), *reversed(self.costs))


@record
class Found:
    """A change after which something fits, and what that is."""

    change: Change
    best: Estimate


def suggestions(job: Job, activations_known: bool) -> list[str]:
    """At most two changes for a job of which nothing fits, in flags; none of them asks for all that
    the other does and more. ``activations_known``: whether what layers save is counted, so that
    less of it can be asked for.
    """
    search = _Search()
    changes = sorted(_with_these_gpus(job, activations_known), key=lambda c: c.size)
    # Where not even all that saves memory helps, less of it is not tried.
    most = {change.costs[TENSOR_PARALLEL]: change for change in changes}.values()
    for_free = any(search.best(change.job, change.stages[-1:]) for change in most)
    for change in changes if for_free else ():
        if len(search.found) < MOST_SHOWN:
            search.attempt(change)
    alone = Change((), job, job.stages, (0,) * COSTS)
    if len(search.found) < MOST_SHOWN:
        search.attempt_more_gpus(alone, search.fewest_gpus(alone))
    if not for_free and changes:
        gpus = search.fewest_gpus(
            changes[-1]
        )  # with all that saves memory; then the smallest change that does with as many
        for change in changes:
            if len(search.found) < MOST_SHOWN:
                search.attempt_more_gpus(change, gpus)
    return [
        line(found.change.job, found.change.flags, found.best, job.stages) for found in search.found
    ]


class _Search:
    """Tries changes until it has made `MOST_TRIES` estimates."""

    def __init__(self) -> None:
        self.tries = 0
        self.found: list[Found] = []

    def attempt(self, change: Change) -> None:
        """Keep a change after which something fits, unless one that asks for no more of anything is
        kept already.
        """
        if any(all(map(le, found.change.costs, change.costs)) for found in self.found):
            return
        best = self.best(change.job, change.stages)
        if best is not None:
            self.found.append(Found(change, best))

    def attempt_more_gpus(self, change: Change, gpus: int | None) -> None:
        """The same for a change together with so many GPUs."""
        if (
            gpus is not None
            and gpus % change.job.model_parallel == 0
            and gpus % change.job.expert_ranks == 0
        ):
            job = _changed(change.job, "cluster", gpus=gpus)
            self.attempt(
                Change(
                    (*change.flags, f"--gpus {gpus}"),
                    job,
                    change.stages,
                    (*change.costs[:-1], gpus),
                )
            )

    def best(self, job: Job, stages: tuple[int, ...]) -> Estimate | None:
        """The cheapest of the stages that fit, if any does; the last one takes least, and when it
        does not fit the others are not tried.
        """
        if self.tries + len(stages) > MOST_TRIES or not _stands(job):
            return None
        held = shares(job)
        last = fitting(job, held, stages[-1:])
        self.tries += 1
        if last is None:
            return None
        self.tries += len(stages) - 1
        other = fitting(job, held, stages[:-1])
        return last if other is None else cheapest([other, last])

    def fewest_gpus(self, change: Change) -> int | None:
        """The smallest number of GPUs with which a changed job fits: by doubling, then whole nodes
        in between.
        """
        job, last = change.job, change.stages[-1:]

        def fits(gpus: int) -> bool:
            return self.best(_changed(job, "cluster", gpus=gpus), last) is not None

        upper = job.cluster.gpus
        padded = any(program_of(job.framework.like).pads(stage) != "none" for stage in last)
        if not any(
            fits(upper * max(1, many // upper)) for many in (MANY_GPUS if padded else MANY_GPUS[:1])
        ):
            return None  # what does not fit is not divided among GPUs
        while not fits(upper):
            if upper > MOST_GPUS_TRIED or self.tries >= MOST_TRIES:
                return None
            upper *= 2
        step = math.lcm(job.model_parallel, job.expert_ranks, job.cluster.gpus_per_node)
        if upper <= job.cluster.gpus_per_node:
            return upper
        low, high = upper // 2 // step, -(-upper // step)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle * step) else (middle, high)
        return min(upper, high * step)


def _stands(job: Job) -> bool:
    """Whether a changed job's parts go together."""
    try:
        check_job(job)
    except FieldError:
        return False
    return True


def _with_these_gpus(job: Job, known: bool) -> Iterator[Change]:
    """Every combination of: other stages, one sequence at a time, recomputation, tensor parallelism
    in the node; ``known``: whether activations are.
    """
    training = job.training
    able = [
        stage.stage
        for stage in job.framework.stages
        if not job.zero.offloads or job.can_offload(stage)
    ]
    others = tuple(stage for stage in able if stage not in job.stages)
    stages = [((), 0)] + [((), 1)] * bool(others)
    micro = [0, 1] if known and training.micro_batch > 1 else [0]
    now = (
        RECOMPUTE.index(training.recompute)
        if training.recompute in RECOMPUTE
        else RECOMPUTE.index("selective")
    )  # by operator: in between too
    levels = (
        [
            now,
            *([1] if now < 1 and training.attention == "eager" else []),
            *([2] if now < 2 else []),
        ]
        if known
        else [now]
    )
    for (_, wider), single, level, (tp, sequence_parallel) in product(
        stages, micro, levels, _tensor_parallel(job, known)
    ):
        flags: list[str] = []
        changed = job
        if single:
            accumulation = training.accumulation * training.micro_batch
            changed = _changed(changed, "training", micro_batch=1, accumulation=accumulation)
            flags.append(f"--micro-batch 1 --accumulation {accumulation}")
        if level != now:
            changed = _changed(changed, "training", recompute=RECOMPUTE[level])
            flags.append(f"--recompute {RECOMPUTE[level]}")
        split = tp > job.parallel.tp or sequence_parallel != job.parallel.sequence_parallel
        if split:
            changed = _changed(changed, "parallel", tp=tp, sequence_parallel=sequence_parallel)
            flags += [f"--tp {tp}"] * (tp > job.parallel.tp) + ["--sequence-parallel"] * (
                sequence_parallel and not job.parallel.sequence_parallel
            )
        costs = (single, wider, level - now, tp if split else 0, 0)
        if any(costs):
            yield Change(tuple(flags), changed, others if wider else job.stages, costs)


def _tensor_parallel(job: Job, known: bool) -> list[tuple[int, bool]]:
    """The job's own degree, then larger ones in the node that divide GPUs and layers; with sequence
    parallelism where that does something.
    """
    parallel, cluster = job.parallel, job.cluster
    out = [(parallel.tp, parallel.sequence_parallel)]
    if not job.framework.offers("tp"):
        return out
    if parallel.ep > 1 or parallel.etp is not None:
        return out  # what divides experts would have to change with it
    splits = (
        known and not job.zero.partition_activations and job.framework.offers("sequence_parallel")
    )
    if (
        splits
        and parallel.tp > 1
        and not parallel.sequence_parallel
        and job.tokens_on_rank % parallel.tp == 0
    ):
        out.append((parallel.tp, True))
    tp = parallel.tp * 2
    while tp <= cluster.gpus_per_node:
        even = job.tokens_on_rank % tp == 0
        if (
            cluster.gpus % (tp * parallel.pp * parallel.cp) == 0
            and not job.model.undivided(tp, tp)
            and (even or not parallel.sequence_parallel)
        ):
            out.append((tp, (splits and even) or parallel.sequence_parallel))
        tp *= 2
    return out


def _changed(job: Job, part: str, **values: object) -> Job:
    return job.model_copy(update={part: getattr(job, part).model_copy(update=values)})
