"""The one list of units: what a sharded stage gathers, uses and frees together. Memory and traffic both read it."""

from __future__ import annotations

from typing import Literal

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.modules.layers import Architecture
from zerocalc.spec.job import Job

Place = Literal["embedding", "layer", "head", "whole"]


@record
class Unit:
    """``count`` units of ``elements`` parameters each on one model-parallel rank; ``known`` is false where units of a bare Ψ are not."""

    name: str
    place: Place
    elements: int
    count: int
    known: bool = True


def units(job: Job, arch: Architecture | None, rank_parameters: int) -> tuple[Unit, ...]:
    """The units of one rank; their elements sum to the rank's parameters where it is split evenly.

    Layers that differ come largest first, since the largest ones decide what gathers hold. A tied head is one unit with the embedding
    and stays gathered from the start of forward to the end of backward.
    """
    if arch is None:
        blocks = job.model.blocks
        if blocks is None:
            return (Unit("whole model", "whole", rank_parameters, 1, known=False),)
        return _cut("block", "layer", rank_parameters, min(blocks, rank_parameters))
    parallel = job.parallel
    split = parallel.tp * parallel.pp
    layers: tuple[Unit, ...] = ()
    for count, amount in sorted(arch.group_elements, key=lambda group: -group[1]):
        layers += _cut("layer", "layer", ceil_div(count * amount, split), ceil_div(count, parallel.pp))
    return (
        Unit("embedding", "embedding", ceil_div(arch.before_elements, split), 1),
        *layers,
        Unit("head", "head", ceil_div(arch.after_elements, split), 1),
    )


def _cut(name: str, place: Place, total: int, count: int) -> tuple[Unit, ...]:
    """``total`` elements as ``count`` units that differ by at most one element."""
    small, larger = divmod(total, count)
    if not larger:
        return (Unit(name, place, small, count),)
    return (Unit(name, place, small + 1, larger), Unit(name, place, small, count - larger))
