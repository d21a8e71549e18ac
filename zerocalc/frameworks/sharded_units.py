"""Units that a framework shards, gathers and reduces as a whole: calls, and what is held."""

from __future__ import annotations

from collections.abc import Iterable

from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.buckets import grouped
from zerocalc.frameworks.step import Step, Word
from zerocalc.ledger import Term
from zerocalc.schedule import Link, Op
from zerocalc.sharding.gather_units import Unit
from zerocalc.spec.recipe import DTYPE_BYTES

TRAINED_ANYWHERE = (
    "which parameters are trained is not known: gradients of a layer or tensor counted as if all "
    "of it that can be were, reduced as one"
)
BYTES = "int8"
"""The dtype of what is sent as bytes."""


class ShardedUnits:
    """The units of a rank as FSDP handles them: the layers, and what is outside them.

    A parameter count without an architecture has no known units: all of it is gathered and reduced
    at once. Adapters are part of their layer's unit, or each of their matrices is a unit.
    """

    def __init__(self, step: Step) -> None:
        self.step, self.rank, job = step, step.rank, step.job
        self.known = self.rank.units[0].known
        self.layers = [unit for unit in self.rank.units if unit.place == "layer"]
        self.outside = [unit for unit in self.rank.units if unit.place not in ("layer", "whole")]
        self.last = "root" if job.framework.wraps == "root" else "embedding"
        """The unit whose gradients are reduced when no layer is left in backward."""
        self.each_adapter = (
            job.framework.adapters == "each"
            and self.rank.adapters is not None
            and self.rank.split == 1
        )
        self.adapter_dtype = job.trained_recipe.gather
        self.two_dtypes = job.model.lora is not None and self.adapter_dtype != job.gather_dtype

    @property
    def gathered_again(self) -> list[Unit]:
        """The units that backward gathers: all but a root, or a head, which are still there."""
        return [unit for unit in self.rank.units[::-1] if unit.place in ("layer", "embedding")]

    # Traffic: one call for each unit.

    def gather(self, units: Iterable[Unit], calls: int, *, within: int | None = None) -> None:
        """All-gather units, ``calls`` times each in a step; ``within`` a smaller group of ranks."""
        step = self.step
        over = step.shards if within is None else step.link(within)
        if not self.known:
            whole = self.rank.shardable("all")
            step.send(over, "all_gather", "weights", step.dtype("gather"), whole, calls)
            return
        for unit in units:
            self._gather_unit(unit, over, calls)
        if self.each_adapter:
            self._gather_adapters(over, calls)

    def _gather_unit(self, unit: Unit, over: Link, calls: int) -> None:
        """A unit whose adapters have another dtype is gathered as bytes."""
        dtype, size = self.step.dtype("gather"), unit.padded or unit.elements
        if self.two_dtypes and unit.adapters and not self.each_adapter:
            size = size * DTYPE_BYTES[dtype] + unit.adapters * DTYPE_BYTES[self.adapter_dtype]
            dtype = BYTES
        elif not self.each_adapter:
            size += unit.adapters
        self.step.send(over, "all_gather", f"{unit.name} weights", dtype, size, unit.count * calls)

    def _gather_adapters(self, over: Link, calls: int) -> None:
        """Recomputation gathers adapters, inside their layer, once more before backward does."""
        step, sizes = self.step, self.rank.tensors("all", trained=True)
        forward = step.phase == "forward"
        calls *= 2 if not forward and step.job.training.recompute == "full" else 1
        for size, count in grouped(sizes if forward else sizes[::-1]):
            step.send(
                over, "all_gather", "adapter weights", self.adapter_dtype, size, count * calls
            )

    def reduce(self, op: Op, over: Link, *, shards: int = 1) -> None:
        """Reduce all gradients, unit by unit from the last one on, or a rank's share of ``shards``
        of them. What is trained in no known unit is reduced at once.
        """
        step, dtype = self.step, self.step.dtype("reduce")
        for name, size, count in self._gradients():
            what = f"{name} gradients".strip()
            step.send(over, op, what, dtype, ceil_div(size, shards), count * step.reductions)

    def _gradients(self) -> list[tuple[str, int, int]]:
        rank = self.rank
        if not self.known or not rank.placed:
            return [("", rank.shardable("trainable"), 1)]
        if self.each_adapter:
            sizes = grouped(rank.tensors("all", trained=True)[::-1])
            return [("adapter", size, count) for size, count in sizes]
        return [(u.name, rank.size(u, trained=True), u.count) for u in rank.units[::-1]]

    # Memory: the largest unit at a place decides.

    def hold(self, name: str, place: str, *, copies: int = 1) -> Term | None:
        """Units that are gathered: the one outside the layers, the largest layer, or ``all``."""
        return self.step.hold(name, "gathered", self.rank.part(place), "gather", copies=copies)

    def hold_within(self, name: str, place: str) -> Term | None:
        """A rank's share of gathered units within the smaller group that backward gathers from."""
        group = self.step.zero.secondary_group
        if group is None:
            return None
        return self.step.hold(name, "copies", self.rank.part(place), "gather", group=group)

    def hold_gradients(self, name: str, place: str, word: Word) -> Term | None:
        """Whole gradients of a unit, of what is trained in it."""
        if not self.rank.placed:
            self.step.assume(TRAINED_ANYWHERE)
        return self.step.hold(name, "buffers", self.rank.part(place, trained=True), word)
