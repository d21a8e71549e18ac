"""Units that a framework shards, gathers and reduces as a whole: calls, and what is held."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.buckets import grouped
from zerocalc.frameworks.step import Step, Word
from zerocalc.ledger import Term
from zerocalc.schedule import Link, Op
from zerocalc.sharding.gather_units import Unit
from zerocalc.spec.recipe import DTYPE_BYTES

BYTES = "int8"
"""The dtype of what is sent as bytes."""


class ShardedUnits:
    """The units of a rank as FSDP handles them: the layers, and what is outside them.

    A parameter count without an architecture has no known units: all of it is gathered and reduced
    at once. Adapters are part of their layer's unit, or each of their matrices is a unit.
    ``in_place``: a gather writes into the parameters, without an output of its own.
    """

    def __init__(self, step: Step, *, in_place: bool) -> None:
        self.step, self.rank, job = step, step.rank, step.job
        self._parts: dict[tuple[str, bool], int] = {}
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
        self.in_place = in_place
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

    def _part(self, place: str, *, trained: bool = False) -> int:
        """Elements of a part of the rank's parameters."""
        key = (place, trained)
        if key not in self._parts:
            self._parts[key] = self.rank.part(place, trained=trained)
        return self._parts[key]

    @cached_property
    def layer_count(self) -> int:
        """Layers of the rank; 1 where they are not known."""
        return sum([unit.count for unit in self.layers]) or 1

    def hold(self, name: str, place: str, *, copies: int = 1) -> Term | None:
        """Units that are gathered: the one outside the layers, the largest layer, or ``all``."""
        return self.step.hold(name, "gathered", self._part(place), "gather", copies=copies)

    def hold_output(self, place: str) -> Term | None:
        """The output of an all-gather, beside the parameters that are copied out of it; FSDP1
        gathers into the parameters themselves.
        """
        return None if self.in_place else self.hold(f"all-gather output of the {place}", place)

    def hold_prefetched(self, place: str) -> Term | None:
        """A unit that is gathered while another one computes."""
        return self.hold(f"prefetched {place}", place)

    def hold_within(self, name: str, place: str) -> Term | None:
        """A rank's share of gathered units within the smaller group that backward gathers from."""
        group = self.step.zero.secondary_group
        if group is None:
            return None
        return self.step.hold(name, "copies", self._part(place), "gather", group=group)

    def hold_gradients(self, name: str, place: str, word: Word) -> Term | None:
        """Gradients of a unit, rounded up as its parameters are, of what is trained in it."""
        self.step.assume_placed()
        return self.step.hold(name, "buffers", self._part(place, trained=True), word)

    def hold_elements(self, name: str, elements: int, *, copies: int = 1) -> Term | None:
        """Gradients as backward makes them: whole, in the dtype of the gathered parameters."""
        return self.step.hold(name, "buffers", self._trained(elements), "gather", copies=copies)

    def hold_layer_gradients(self, elements: int | None) -> Term | None:
        """The gradients of a layer's weights that there are at an instant: some elements, or all;
        of a layer with adapters, theirs.
        """
        rank = self.rank
        if rank.adapters is not None:
            elements = max([unit.adapters for unit in self.layers], default=0)
        elif elements is None or not rank.placed:
            elements = max([unit.elements for unit in self.layers], default=0)
        return self.hold_elements("layer's gradients", elements)

    def _trained(self, elements: int) -> int:
        """At most what is trained, where it is not known where that is."""
        return elements if self.rank.placed else min(elements, self.rank.trainable)

    @cached_property
    def tied(self) -> bool:
        """Whether embedding and head, both on this rank and trained, share their weight."""
        arch = self.rank.arch
        return arch is not None and arch.tied and self.rank.adapters is None and bool(arch.after)

    @cached_property
    def head_elements(self) -> int:
        """Elements of the gradients of what follows the layers: norms, and a head, tied or not."""
        arch, adapters = self.rank.arch, self.rank.adapters
        if adapters is not None:
            return ceil_div(adapters.after, self.rank.split)
        if arch is None or not arch.after:
            return 0
        own = arch.after_elements + (arch.vocab * arch.hidden if arch.tied else 0)
        return ceil_div(own, self.rank.split)

    @cached_property
    def tied_elements(self) -> int:
        """Elements of the weight that embedding and head share; 0 where they do not."""
        arch = self.rank.arch
        if arch is None or not self.tied:
            return 0
        return ceil_div(arch.vocab * arch.hidden, self.rank.split)

    @cached_property
    def norm_elements(self) -> int:
        """Of `head_elements`, those that are not a tied head's."""
        arch = self.rank.arch
        return 0 if arch is None else ceil_div(arch.after_elements, self.rank.split)

    @cached_property
    def embedding_elements(self) -> int:
        """Elements of the gradients of what is before the layers."""
        arch, adapters = self.rank.arch, self.rank.adapters
        if adapters is not None:
            return ceil_div(adapters.before, self.rank.split)
        return 0 if arch is None else ceil_div(arch.before_elements, self.rank.split)

    def reduced_after_layers(self, layers: int) -> int:
        """Elements of gradients that are reduced once so many layers have run backward."""
        rank = self.rank
        if not rank.placed:
            return rank.trainable if layers > self.layer_count // 2 else 0
        whole = sum([rank.size(unit, trained=True) * unit.count for unit in self.layers])
        head = [rank.size(unit, trained=True) for unit in self.outside if unit.place == "head"]
        return sum(head) + whole * layers // self.layer_count
