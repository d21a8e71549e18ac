"""The one list of units: what a sharded stage gathers, uses and frees together. Memory and traffic both read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.modules.layers import Architecture
from zerocalc.spec.job import Job

if TYPE_CHECKING:
    from zerocalc.modules.lora import Adapters

Place = Literal["embedding", "layer", "head", "whole"]


@record
class Unit:
    """``count`` units of ``elements`` parameters each on one model-parallel rank; ``known`` is false where units of a bare Ψ are not.

    ``adapters`` are LoRA's parameters in each of them, beside ``elements``.
    """

    name: str
    place: Place
    elements: int
    count: int
    known: bool = True
    adapters: int = 0


def units(job: Job, arch: Architecture | None, rank_parameters: int, adapters: Adapters | None = None) -> tuple[Unit, ...]:
    """The units of one rank; their elements (and adapters) sum to the rank's parameters where it is split evenly.

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
    in_layer = adapters.groups if adapters is not None else (0,) * len(arch.group_elements)
    alike: dict[tuple[int, int], int] = {}  # groups may differ in what they recompute alone
    for (count, amount), adapter in zip(arch.group_elements, in_layer, strict=True):
        alike[amount, adapter] = alike.get((amount, adapter), 0) + count
    for (amount, adapter), count in sorted(alike.items(), key=lambda group: -group[0][0]):
        layers += _cut("layer", "layer", ceil_div(count * amount, split), ceil_div(count, parallel.pp), ceil_div(adapter, parallel.tp))
    ends = (adapters.before, adapters.after) if adapters is not None else (0, 0)
    return (
        Unit("embedding", "embedding", ceil_div(arch.before_elements, split), 1, adapters=ceil_div(ends[0], split)),
        *layers,
        Unit("head", "head", ceil_div(arch.after_elements, split), 1, adapters=ceil_div(ends[1], split)),
    )


def _cut(name: str, place: Place, total: int, count: int, adapters: int = 0) -> tuple[Unit, ...]:
    """``total`` elements as ``count`` units that differ by at most one element; ``adapters`` in each."""
    small, larger = divmod(total, count)
    if not larger:
        return (Unit(name, place, small, count, adapters=adapters),)
    return (Unit(name, place, small + 1, larger, adapters=adapters), Unit(name, place, small, count - larger, adapters=adapters))
