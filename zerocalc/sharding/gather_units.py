"""The one list of units: what a sharded stage gathers, uses and frees together. Memory and traffic
both read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record, replaced
from zerocalc.model.architecture import Architecture, elements, listed_last, shapes
from zerocalc.sharding.padding import Rule, Shape, padded
from zerocalc.spec.job import Job

if TYPE_CHECKING:
    from zerocalc.model.adapters import Adapters

Place = Literal["root", "embedding", "layer", "head", "whole"]


@record
class Unit:
    """``count`` units of ``elements`` parameters each on one model-parallel rank; ``known`` is
    false where units of a bare Ψ are not.

    ``adapters`` are LoRA's parameters in each of them, beside ``elements``.
    """

    name: str
    place: Place
    elements: int
    count: int
    known: bool = True
    adapters: int = 0
    padded: int = 0
    """Elements with what the framework rounds them up by; 0 where it rounds nothing."""


def units(
    job: Job,
    arch: Architecture | None,
    rank_parameters: int,
    adapters: Adapters | None = None,
    tensor_parallel: int | None = None,
) -> tuple[Unit, ...]:
    """The units of one rank; their elements (and adapters) sum to the rank's parameters where it is
    split evenly.

    Layers that differ come largest first, since the largest ones decide what gathers hold. A tied
    head is one unit with the embedding and stays gathered from the start of forward to the end of
    backward.
    """
    if arch is None:
        blocks = job.model.blocks
        if blocks is None:
            return (Unit("whole model", "whole", rank_parameters, 1, known=False),)
        return _cut("block", "layer", rank_parameters, min(blocks, rank_parameters))
    stages = pipeline_split(job)
    before, groups, after = arch.on_rank(tensor_parallel or job.parallel.tp)
    layers: tuple[Unit, ...] = ()
    in_layer = adapters.groups if adapters is not None else (0,) * len(arch.group_elements)
    alike: dict[tuple[int, int], int] = {}  # groups may differ in what they recompute alone
    for (count, amount), adapter in zip(groups, in_layer, strict=True):
        alike[amount, adapter] = alike.get((amount, adapter), 0) + count
    for (amount, adapter), count in sorted(alike.items(), key=lambda group: -group[0][0]):
        layers += _cut(
            "layer",
            "layer",
            ceil_div(count * amount, stages),
            ceil_div(count, stages),
            ceil_div(adapter, job.parallel.tp),
        )
    ends = (adapters.before, adapters.after) if adapters is not None else (0, 0)
    if job.framework.wraps == "root":
        root = Unit(
            "root",
            "root",
            ceil_div(before + after, stages),
            1,
            adapters=ceil_div(sum(ends), job.parallel.tp * stages),
        )
        return (root, *layers) if root.elements else layers
    embedding = Unit(
        "embedding",
        "embedding",
        ceil_div(before, stages),
        1,
        adapters=ceil_div(ends[0], job.parallel.tp * stages),
    )
    head = Unit(
        "head",
        "head",
        ceil_div(after, stages),
        1,
        adapters=ceil_div(ends[1], job.parallel.tp * stages),
    )
    return tuple(
        [unit for unit in (embedding, *layers, head) if unit.elements]
    )  # a pipeline stage may have neither


def pipeline_split(job: Job) -> int:
    """Into how many even shares the pipeline cuts what a rank holds: 1 where one stage is looked at
    and holds just its own.
    """
    return job.parallel.pp if job.parallel.pipeline_stage is None else 1


def rounded_up(
    cut: tuple[Unit, ...],
    arch: Architecture,
    rule: Rule,
    shards: int,
    item_bytes: int,
    adapters: Adapters | None = None,
) -> tuple[Unit, ...]:
    """Units with the elements that a framework makes of them, and of their adapters, tensor by
    tensor.
    """
    before, after = shapes(arch.before), shapes(arch.after)
    by_place: dict[Place, list[Shape]] = {
        "root": before + after,
        "embedding": before,
        "head": after,
    }
    layers = {
        elements(modules): shapes(sorted(modules, key=listed_last)) for _, modules in arch.groups
    }
    found = [
        by_place[u.place] if u.place in by_place else layers[u.elements] for u in cut
    ]  # an end may hold nothing
    up = [
        replaced(u, padded=padded(own, rule, shards, item_bytes))
        for u, own in zip(cut, found, strict=True)
    ]
    if adapters is None:
        return tuple(up)
    each = [
        (
            sum([a.elements for a in part]),
            sum([padded((s,), rule, shards, item_bytes) for a in part for s in a.shapes]),
        )
        for _, part in adapters.parts
    ]
    (_, start), *_, (_, end) = each
    ends = {"root": start + end, "embedding": start, "head": end}
    return tuple(
        [
            replaced(u, adapters=ends[u.place] if u.place in ends else dict(each)[u.adapters])
            for u in up
        ]
    )


def _cut(name: str, place: Place, total: int, count: int, adapters: int = 0) -> tuple[Unit, ...]:
    """``total`` elements as ``count`` units that differ by at most one element; ``adapters`` in
    each.
    """
    small, larger = divmod(total, count)
    if not larger:
        return (Unit(name, place, small, count, adapters=adapters),)
    return (
        Unit(name, place, small + 1, larger, adapters=adapters),
        Unit(name, place, small, count - larger, adapters=adapters),
    )
