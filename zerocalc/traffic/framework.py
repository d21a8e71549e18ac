"""What a framework sends between data-parallel ranks, as its rows say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.zero3_modules import windowed
from zerocalc.model.architecture import on_rank
from zerocalc.schedule import Collective, Link, collective
from zerocalc.sharding.call_order import trained
from zerocalc.sharding.gather_units import pipeline_split
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework import FrameworkStage
from zerocalc.spec.framework_rows import Move
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.buckets import buckets, grouped, merged
from zerocalc.traffic.groups import link
from zerocalc.traffic.hops import in_two_hops

if TYPE_CHECKING:
    from zerocalc.frameworks.zero3_prefetch import Gathers

FIRST_ARRIVAL_BYTES = 2**20
ARRIVAL_BYTES = 25 * 2**20
"""DDP's first bucket, so that reduction starts early, and the others
(torch/nn/parallel/distributed.py: bucket_cap_mb).
"""

BYTES = "int8"
"""Of what is sent as bytes."""


def framework_traffic(job: Job, rank: Rank, behaviour: FrameworkStage) -> list[Collective]:
    """The collectives of a stage's rows in one optimizer step."""
    out: list[Collective] = []
    for move in behaviour.moves:
        over = _over(job, rank, behaviour, move)
        if over.ranks > 1 and job.zero.chosen(move.when, move.unless):
            if move.by == "hops":
                hidden = move.overlapped and job.overlaps(behaviour.stage)
                out += in_two_hops(job, rank, move, _repeats(job, behaviour, move), hidden)
            elif move.by == "window" and (known := windowed(job, rank)) is not None:
                out += _windowed(job, rank, behaviour, move, known)
            else:
                repeats = _repeats(job, behaviour, move)
                out += _sent(
                    job, rank, behaviour, move, over, _parts(job, rank, behaviour, move), repeats
                )
                apart, word = _adapters_apart(job, rank, move)
                if apart:
                    out += _calls(job, rank, behaviour, move, over, apart, repeats, word)
    return out


def _over(job: Job, rank: Rank, behaviour: FrameworkStage, move: Move) -> Link:
    """The ranks of a move: those that share one copy of the states, those that hold the same share,
    or those of a secondary copy.

    Where windows decide and the modules are not known, all of backward is gathered from the
    secondary copy, if there is one.
    """
    group, source = job.zero.secondary_group, job.framework.source
    shards = job.reducing(behaviour.stage) if rank.group == "dp" else rank.shards
    if move.over == "replicas":
        return link(job, rank.group, job.replicas, source, apart=shards)
    near = move.over == "secondary" or (move.by == "window" and move.moment == "backward")
    return link(job, rank.group, group if group is not None and near else shards, source)


def _calls(
    job: Job,
    rank: Rank,
    behaviour: FrameworkStage,
    move: Move,
    over: Link,
    parts: Iterable[tuple[str, int, int]],
    repeats: int,
    word: str = "",
) -> list[Collective]:
    dtype = job.dtype_of(word or move.dtype)
    size = DTYPE_BYTES[dtype]
    shards = rank.shards if move.over == "replicas" else 1
    hidden = move.overlapped and job.overlaps(behaviour.stage)
    return [
        collective(
            over,
            move.moment,
            move.op,
            f"{name} {move.what}".strip(),
            dtype,
            ceil_div(elements, shards) * size,
            count * repeats,
            hidden,
        )
        for name, elements, count in parts
        if elements
    ]


def _windowed(
    job: Job, rank: Rank, behaviour: FrameworkStage, move: Move, known: Gathers
) -> list[Collective]:
    """What windows gather, from all shards; once a tensor has been released in a step, from the
    secondary copy, if there is one.
    """
    group, micro_batches, n = job.zero.secondary_group, job.training.accumulation, rank.shards
    first: list[tuple[str, int, int]] = []
    second: list[tuple[str, int, int]] = []
    for sizes, again, count in known.forward if move.moment == "forward" else known.backward:
        elements = (
            sum([ceil_div(size, n) * n for size in sizes]) if rank.rule == "tensor" else sum(sizes)
        )
        if group is None:
            first.append(("", elements, count * micro_batches))
        elif again:
            second.append(("", elements, count * micro_batches))
        else:
            first.append(("", elements, count))
            second.append(("", elements, count * (micro_batches - 1)))
    source = job.framework.source
    out = _sent(job, rank, behaviour, move, link(job, rank.group, n, source), merged(first))
    if group is not None and group > 1:
        out += _sent(
            job, rank, behaviour, move, link(job, rank.group, group, source), merged(second)
        )
    return out


def _sent(
    job: Job,
    rank: Rank,
    behaviour: FrameworkStage,
    move: Move,
    over: Link,
    parts: list[tuple[str, int, int]],
    repeats: int = 1,
) -> list[Collective]:
    """The calls of a move, and those of the scales that quantised weights need."""
    out = _calls(job, rank, behaviour, move, over, parts, repeats)
    if move.scale_per is None:
        return out
    from zerocalc.formulas.quantisation import scales  # most gathers are of weights as they are

    n = over.ranks
    counts = [
        ("scales of", scales(elements=ceil_div(size, n), scale_per=move.scale_per) * n, count)
        for _, size, count in parts
        if size
    ]
    return out + _calls(job, rank, behaviour, move, over, merged(counts), repeats, "fp32")


def _repeats(job: Job, behaviour: FrameworkStage, move: Move) -> int:
    micro_batches = job.training.accumulation
    if move.per == "reduction":
        return job.reductions(behaviour.sync)
    if move.per == "unshard" and job.framework.pipelines_defer and job.parallel.pp > 1:
        return 1
    return 1 if move.per == "step" else micro_batches


def _parts(
    job: Job, rank: Rank, behaviour: FrameworkStage, move: Move
) -> list[tuple[str, int, int]]:
    """(name, elements, calls) of what one round of a move handles."""
    stepped = move.what == "gradients"
    if move.by == "unit" and rank.units[0].known and (rank.placed or not stepped):
        return _by_unit(job, rank, move)
    if move.by == "arrival" and rank.arch is not None and rank.placed:
        return grouped(_arrivals(job, rank))
    if move.by == "tensor" and rank.split == 1:
        return grouped(rank.tensors(move.of, trained=stepped))
    if move.by == "bucket" and (known := trained(job, rank, behaviour.weights_first)) is not None:
        return buckets(job, rank, move, known, overlapped=job.overlaps(behaviour.stage))
    return _of_unknown(job, rank, move)


def _by_unit(job: Job, rank: Rank, move: Move) -> list[tuple[str, int, int]]:
    chosen = [u for u in rank.units if not move.units or u.place in move.units]
    stepped = move.what == "gradients"
    if _each_alone(job, rank):
        return [] if stepped else [(u.name, u.padded or u.elements, u.count) for u in chosen]
    ordered = [
        u
        for u in (chosen if move.moment == "forward" else chosen[::-1])
        if not u.adapters or not _in_two_dtypes(job, move)
    ]
    return [
        (u.name, rank.size(u, trained=stepped) if move.padded else u.elements, u.count)
        for u in ordered
    ]


def _each_alone(job: Job, rank: Rank) -> bool:
    """Whether each matrix of an adapter is a unit of its own."""
    return job.framework.adapters == "each" and rank.adapters is not None and rank.split == 1


def _in_two_dtypes(job: Job, move: Move) -> bool:
    """Whether units are gathered with adapters that are in another dtype than the rest and not cast
    to it: then as bytes.
    """
    return (
        job.model.lora is not None
        and move.what == "weights"
        and move.dtype == "gather"
        and job.trained_recipe.gather != job.gather_dtype
    )


def _adapters_apart(job: Job, rank: Rank, move: Move) -> tuple[list[tuple[str, int, int]], str]:
    """As `_parts`, what is not in the dtype of the others, and its dtype: adapters that are units
    of their own, or units with adapters, as bytes.

    Recomputation gathers adapters, inside their layer, once more before backward does.
    """
    if move.by != "unit" or not rank.units[0].known:
        return [], ""
    own = job.trained_recipe.gather
    if _each_alone(job, rank):
        adapters = rank.tensors("all", trained=True)
        again = (
            move.moment == "backward"
            and move.what == "weights"
            and job.training.recompute == "full"
        )
        times = 2 if again else 1
        sizes = grouped(adapters if move.moment == "forward" else adapters[::-1])
        return [
            ("adapter", elements, count * times) for _, elements, count in sizes
        ], own if move.dtype == "gather" else move.dtype
    if not _in_two_dtypes(job, move):
        return [], ""
    base, added = DTYPE_BYTES[job.gather_dtype], DTYPE_BYTES[own]
    with_adapters = [
        u for u in rank.units if u.adapters and (not move.units or u.place in move.units)
    ]
    return [
        (u.name, (u.padded or u.elements) * base + u.adapters * added, u.count)
        for u in with_adapters
    ], BYTES


def _of_unknown(job: Job, rank: Rank, move: Move) -> list[tuple[str, int, int]]:
    """As `_parts`, where nothing is known but how many parameters there are."""
    of = "trainable" if move.what == "gradients" and move.of == "all" else move.of
    whole = rank.part(of)
    if of in ("all", "trainable") and move.padded:
        whole = rank.shardable(of)
    if move.beyond is not None:
        whole = max(0, whole - getattr(job.zero, move.beyond))
    if move.op == "reduce":  # one call for each owner
        return [("", ceil_div(whole, rank.shards), rank.shards)]
    if move.fitting is not None and move.fitting is not job.zero.contiguous_gradients:
        return []
    if move.by == "bucket":
        full, rest = divmod(whole, job.zero.reduce_bucket_size)
        return [
            ("", elements, count)
            for elements, count in ((job.zero.reduce_bucket_size, full), (rest, 1))
            if count
        ]
    return [("", whole, 1)]


def _arrivals(job: Job, rank: Rank) -> list[int]:
    """Elements of DDP's buckets: tensors as their gradients come, last first, a bucket closed as
    soon as it is full.
    """
    arch = rank.arch
    assert arch is not None
    known = trained(job, rank)
    if known is not None:
        sizes = [known.sizes[number] for number in known.arriving]
    elif rank.adapters is not None:
        sizes = [ceil_div(math.prod(shape), job.parallel.tp) for shape in rank.adapters.shapes][
            ::-1
        ]
    else:
        sizes = [
            on_rank(row, job.parallel.tp)
            for modules in arch.in_order()
            for module in modules
            for row in module.parameter_rows
        ][::-1]
    if pipeline_split(job) > 1:
        sizes = [ceil_div(size, pipeline_split(job)) for size in sizes]
    item = DTYPE_BYTES[job.reduce_dtype]
    buckets, filled, limit = [], 0, FIRST_ARRIVAL_BYTES
    for size in sizes:
        filled += size
        if filled * item >= limit:
            buckets.append(filled)
            filled, limit = 0, ARRIVAL_BYTES
    return [*buckets, filled] if filled else buckets
