"""What a GPU exchanges with its host, and a host with its drives, for states that lie there."""

from __future__ import annotations

from collections.abc import Iterable

from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.flat_buffer import touched_elements
from zerocalc.ledger import Term
from zerocalc.schedule import Collective, Link, Phase, collective
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework import FrameworkStage
from zerocalc.spec.framework_offload import Transfer
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

WAYS = {"down": "to the host", "up": "from the host"}
PASSES: tuple[Phase, ...] = ("forward", "backward")
Part = tuple[Phase, str, int, int]
"""A phase, what is moved, its elements and how often."""


def offload_traffic(
    job: Job, rank: Rank, behaviour: FrameworkStage, across: list[Collective], terms: Iterable[Term]
) -> list[Collective]:
    """Copies of one optimizer step; ``across``: the stage's collectives, ``terms``: what lies
    where.
    """
    offload = behaviour.offloading
    if offload is None:
        return []
    source = offload.source
    gathers = _gathers(job, rank, across)
    link = Link("host", 1, "pcie", source)
    zero, hidden = job.zero, job.overlaps(behaviour.stage)
    optimizer_away, params_away = zero.offload_optimizer != "none", zero.offload_params != "none"
    parts = [
        (part, "up", job.dtype_of(offload.gathers_in), True) for part in gathers if params_away
    ]
    if optimizer_away:
        parts += [
            (_gradients(job, rank, behaviour, row), row.way, job.dtype_of(row.dtype), True)
            for row in offload.transfers
        ]
    if optimizer_away != params_away:
        new: Part = ("step", "weights", ceil_div(rank.shardable("trainable"), rank.shards), 1)
        parts.append((new, "up" if optimizer_away else "down", job.gather_dtype, False))
    out = [
        collective(
            link,
            phase,
            "copy",
            f"{what} {WAYS[way]}",
            dtype,
            elements * DTYPE_BYTES[dtype],
            count,
            beside and hidden,
        )
        for (phase, what, elements, count), way, dtype, beside in parts
        if elements and count
    ]
    return out + _drives(job, behaviour, gathers, list(terms), Link("host", 1, "nvme", source))


def _gradients(job: Job, rank: Rank, behaviour: FrameworkStage, row: Transfer) -> Part:
    """What one row moves."""
    elements = (
        max(touched_elements(job, rank))
        if row.of == "touched"
        else ceil_div(rank.shardable("trainable"), rank.shards)
    )
    there = row.only is None or job.training.accumulation > 1
    return "backward", "gradients", elements, _repeats(job, behaviour, row) if there else 0


def _repeats(job: Job, behaviour: FrameworkStage, row: Transfer) -> int:
    micro_batches = job.training.accumulation
    if row.per == "reduction":
        return job.reductions(behaviour.sync)
    return {"step": 1, "micro_batch": micro_batches, "later": micro_batches - 1}[row.per]


def _gathers(job: Job, rank: Rank, across: list[Collective]) -> list[Part]:
    """A rank's part [elements] of each gather of weights; on one rank, all of them once for each
    pass.
    """
    if rank.shards == 1:
        return [(phase, "weights", rank.parameters, job.training.accumulation) for phase in PASSES]
    calls = [
        c
        for c in across
        if c.op == "all_gather" and c.moment in PASSES and c.what.endswith("weights")
    ]
    return [
        (c.moment, c.what, ceil_div(c.tensor_bytes // DTYPE_BYTES[c.dtype], c.ranks), c.count)
        for c in calls
    ]


def _drives(
    job: Job, behaviour: FrameworkStage, gathers: list[Part], terms: list[Term], link: Link
) -> list[Collective]:
    """Reads and writes of what lies on drives: optimizer states once each in the step, gradients as
    they come, weights whenever they are gathered.
    """
    gpus = job.cluster.gpus_of_a_node
    out: list[Collective] = []

    dtypes = {row.name: job.dtype_of(row.dtype) for row in behaviour.holds} | {
        row.name: row.dtype for row in job.trained_recipe.rows
    }

    for entry in terms:
        if entry.tier != "nvme":
            continue
        own = ceil_div(entry.bytes, gpus)
        name = entry.name.removesuffix(" on drives")

        def copy(
            phase: Phase,
            what: str,
            amount: int,
            count: int,
            overlapped: bool = False,
            dtype: str = dtypes[name],
        ) -> None:
            out.append(collective(link, phase, "copy", what, dtype, amount, count, overlapped))

        if entry.kind == "weights":
            size, whole = DTYPE_BYTES[job.gather_dtype], _whole(entry, terms)
            for phase, what, elements, count in gathers:
                copy(
                    phase,
                    f"{what} from drives",
                    ceil_div(elements * size * entry.bytes, whole),
                    count,
                    overlapped=True,
                )
            copy("step", f"{name} to drives", own, 1)
            continue
        if entry.kind == "gradients":
            copied = behaviour.offloading is not None and behaviour.offloading.gradients == "moved"
            times = job.reductions(behaviour.sync) if copied else 1
            copy("backward", f"{name} to drives", own, times, overlapped=True)
            if times > 1:
                copy("backward", f"{name} from drives", own, times - 1, overlapped=True)
        copy("step", f"{name} from drives", own, 1)
        if entry.kind == "optimizer":
            copy("step", f"{name} to drives", own, 1)
    return out


def _whole(entry: Term, terms: list[Term]) -> int:
    """Bytes of a row wherever it lies."""
    name = entry.name.removesuffix(" on drives")
    return sum(t.bytes for t in terms if t.kind == entry.kind and t.name.startswith(f"{name} on "))
