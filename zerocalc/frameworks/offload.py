"""States on a node's CPUs or NVMe: where they are, what is pinned, and what crosses the links."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from zerocalc.formulas.buffers import held_bytes
from zerocalc.formulas.formula import ceil_div
from zerocalc.formulas.offload import factor_bytes, node_bytes, page_locked, rounding_bytes
from zerocalc.formulas.states import waiting_bytes
from zerocalc.frameworks.flat_buffer import touched_elements
from zerocalc.frameworks.step import Step, Word
from zerocalc.ledger import MOMENTS, Block, Kind, Term, block, record, replaced, term
from zerocalc.memory.states import UNREDUCED
from zerocalc.schedule import Link, Phase, collective
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.spec.zero import Tier

Pinned = Literal["whole", "unit", "tensor"]
"""Allocations of pinned memory: one, one a unit, one a tensor."""
Way = Literal["down", "up"]
PLACES: dict[Tier, str] = {"gpu": "", "cpu": " on the CPU", "nvme": " on NVMe"}
WAYS: dict[Way, str] = {"down": "to the CPU", "up": "from the CPU"}
PASSES: tuple[Phase, ...] = ("forward", "backward")
ROUNDING = "pinned buffer rounding, at most"
THROUGH_HOST = "CPU buffers for NVMe reads and writes are not counted"
ONE_STAGE = (
    "CPU memory, NVMe and the CPU optimizer step count every rank of a node as one of this "
    "pipeline stage, although a node has several stages"
)
HOST_ALONE = (
    "CPU memory counts offloaded states and their buffers; processes, data loaders and model "
    "loading come on top"
)
Gather = tuple[Phase, str, int, int]
"""A phase, what is moved, its elements and how often."""


@record
class Offloading:
    """How a framework keeps states elsewhere than on the GPU.

    ``gradients``: sharded ones go with the optimizer, or the framework has rows of its own for
    them. ``pinned``: the kinds of a recipe's rows that are pinned on the host, in allocations
    ``by`` the whole, the unit or the tensor. ``factor``: what buffers take on the host at most,
    where allocations are not known. ``gathers_in``: the dtype in which a rank's part of each gather
    comes from the host. ``params_in_cpu``: elements of a rank's share that stay in CPU memory when
    parameters go to NVMe. ``buffers_known``: the host's buffers for NVMe are among the rows.
    """

    source: str
    gradients: Literal["moved", "replaced"] = "moved"
    pinned: tuple[Literal["weights", "gradients", "master"], ...] = ()
    by: Pinned = "whole"
    factor: float = 1.0
    gathers_in: Word = "gather"
    params_in_cpu: int = 0
    buffers_known: bool = False


class Offload:
    """The offloading of one step, where there is some."""

    def __init__(self, step: Step, how: Offloading) -> None:
        self.step, self.how, self.job = step, how, step.job
        self.gpus = step.job.cluster.gpus_of_a_node
        self.tiers: dict[str, Tier] = {
            "weights": step.zero.tier_of("params"),
            "optimizer": step.zero.tier_of("optimizer"),
        }
        self._dtypes: dict[str, str] = {row.name: row.dtype for row in self.job.trained_recipe.rows}
        self._pinned: dict[str, tuple[Pinned, int]] = {
            row.name + PLACES["cpu"]: (how.by, 0)
            for row in self.job.trained_recipe.rows
            if ("master" if row.copies_weights else row.kind) in how.pinned
        }

    # Where states are.

    def place(self, states: Block, as_stage: int) -> Block:
        """The recipe's rows, each on its tier; ``as_stage``: as which they are sharded."""
        if not self.step.zero.offloads:
            return states
        rows = self.job.trained_recipe.rows
        sharded = tuple(
            [r.name for r in rows if r.kind == "gradients" and as_stage >= r.sharded_from]
        )
        terms: list[Term] = []
        for entry in states.terms:
            of_optimizer = entry.kind == "gradients" and entry.name.startswith(sharded)
            kind = "optimizer" if of_optimizer else entry.kind
            terms += self._placed(entry, self.tiers.get(kind, "gpu"))
        return block(terms, states.unknown, (*states.assumptions, *self._assumptions()))

    def _placed(self, entry: Term, tier: Tier) -> list[Term]:
        if tier == "gpu":
            return [entry]
        if entry.name.endswith(UNREDUCED):
            return [_unreduced(entry)]
        if entry.kind == "weights" and tier == "nvme" and self.how.params_in_cpu:
            kept = self.how.params_in_cpu * DTYPE_BYTES[self.job.gather_dtype]
            kept = min(entry.bytes, kept)
            parts: tuple[tuple[Tier, int], ...] = (("cpu", kept), ("nvme", entry.bytes - kept))
            return [self._on_node(entry, where, amount) for where, amount in parts if amount]
        if entry.kind == "gradients" and self.how.gradients == "replaced":
            return []
        return [self._on_node(entry, tier, entry.bytes)]

    def _on_node(self, entry: Term, tier: Tier, bytes_per_rank: int) -> Term:
        """Bytes that a rank keeps on another tier, for all ranks of a node."""
        made = term(
            entry.name + PLACES[tier],
            entry.kind,
            entry.moments,
            node_bytes,
            entry.assumption,
            bytes_per_rank=bytes_per_rank,
            gpus_per_node=self.gpus,
        )
        return replaced(made, tier=tier, source=entry.source)

    def _assumptions(self) -> list[str]:
        several = self.job.parallel.pp > 1 and self.job.cluster.gpus // self.job.parallel.pp
        if several and several < self.gpus:
            return [HOST_ALONE, ONE_STAGE]
        through = "nvme" in self.tiers.values() and not self.how.buffers_known
        return [HOST_ALONE, THROUGH_HOST] if through else [HOST_ALONE]

    # What else is on the host.

    def hold(
        self,
        name: str,
        kind: Kind,
        elements: int,
        word: Word,
        *,
        tier: Tier = "cpu",
        copies: int = 1,
        shards: int = 1,
        pinned: Pinned | None = None,
        pieces: int = 0,
    ) -> None:
        """What a rank keeps on the host, or on another tier, all along. ``pinned``: in which
        allocations of pinned memory, ``pieces``: of at most so many elements.
        """
        entry = self.step.made(name, kind, elements, word, copies=copies, shards=shards)
        if entry is None:
            return
        self._dtypes[name] = self.step.dtype(word)
        if pinned is not None:
            self._pinned[name + PLACES["cpu"]] = pinned, pieces * DTYPE_BYTES[self._dtypes[name]]
        placed = entry if tier == "gpu" else self._on_node(entry, tier, entry.bytes)
        self.step.keep(block([placed]))

    def hold_touched(self, name: str, kind: Kind, word: Word) -> None:
        """Whole tensors with a part in the shares of a node's ranks, of the node with most."""
        each = touched_elements(self.job, self.step.rank)
        nodes = [sum(each[first : first + self.gpus]) for first in range(0, len(each), self.gpus)]
        made = term(
            name + PLACES["cpu"],
            kind,
            MOMENTS,
            held_bytes,
            elements=max(nodes) * max(1, self.gpus // len(each)),
            bytes_per_element=DTYPE_BYTES[self.step.dtype(word)],
            copies=1,
        )
        self._pinned[made.name] = "tensor", 0
        self.step.keep(block([replaced(made, tier="cpu")]))

    # What crosses the links, and what pinned allocations are rounded up by.

    def copy(
        self, phase: Phase, way: Way, what: str, elements: int, dtype: str, calls: int
    ) -> None:
        """Copies between a GPU and its host, hidden behind compute but in the optimizer step."""
        if elements and calls:
            over = Link("host", 1, "pcie", self.how.source)
            hidden = phase != "step" and self.step.overlaps
            size = elements * DTYPE_BYTES[dtype]
            self.step.collectives.append(
                collective(over, phase, "copy", f"{what} {WAYS[way]}", dtype, size, calls, hidden)
            )

    @property
    def share(self) -> int:
        """A rank's share of what is trained [elements]."""
        rank = self.step.rank
        return ceil_div(rank.shardable("trainable"), rank.shards)

    def copy_gradients(self, way: Way, word: Word, calls: int, elements: int | None = None) -> None:
        """A rank's share of the gradients, or other ``elements`` of them, where the optimizer is
        elsewhere.
        """
        if self.tiers["optimizer"] != "gpu":
            amount = self.share if elements is None else elements
            self.copy("backward", way, "gradients", amount, self.step.dtype(word), calls)

    def finish(self) -> None:
        """Bring a rank's part of each gather to the GPU, new weights where they belong, and what is
        on NVMe through the host.
        """
        if not self.step.zero.offloads:
            return
        gathers = self._gathers()
        away = {name: tier != "gpu" for name, tier in self.tiers.items()}
        if away["weights"]:
            dtype = self.step.dtype(self.how.gathers_in)
            for phase, what, elements, calls in gathers:
                self.copy(phase, "up", what, elements, dtype, calls)
        if away["weights"] != away["optimizer"]:
            way: Way = "up" if away["optimizer"] else "down"
            self.copy("step", way, "weights", self.share, self.job.gather_dtype, 1)
        self._nvme(gathers)
        self.step.keep(self._rounding())

    def _gathers(self) -> list[Gather]:
        """A rank's part [elements] of each gather of weights; on one rank, all of them once for
        each pass.
        """
        rank = self.step.rank
        if rank.shards == 1:
            return [
                (phase, "weights", rank.parameters, self.step.micro_batches) for phase in PASSES
            ]
        return [
            (c.moment, c.what, ceil_div(c.tensor_bytes // DTYPE_BYTES[c.dtype], c.ranks), c.count)
            for c in self.step.collectives
            if c.op == "all_gather" and c.moment in PASSES and c.what.endswith("weights")
        ]

    def _nvme(self, gathers: list[Gather]) -> None:
        """Reads and writes: optimizer states once each in the step, gradients as they come, weights
        whenever they are gathered.
        """
        for entry in self.step.spanning:
            if entry.tier != "nvme":
                continue
            name = entry.name.removesuffix(PLACES["nvme"])
            own = ceil_div(entry.bytes, self.gpus)
            if entry.kind == "weights":
                self._nvme_weights(name, entry, gathers)
                self._read_or_write("step", f"{name} to NVMe", name, own, 1)
                continue
            if entry.kind == "gradients":
                moved = self.how.gradients == "moved"
                times = self.step.reductions if moved else 1
                self._read_or_write("backward", f"{name} to NVMe", name, own, times)
                self._read_or_write("backward", f"{name} from NVMe", name, own, times - 1)
            self._read_or_write("step", f"{name} from NVMe", name, own, 1)
            if entry.kind == "optimizer":
                self._read_or_write("step", f"{name} to NVMe", name, own, 1)

    def _nvme_weights(self, name: str, entry: Term, gathers: list[Gather]) -> None:
        size = DTYPE_BYTES[self.job.gather_dtype]
        whole = sum(
            [
                each.bytes
                for each in self.step.spanning
                if each.kind == entry.kind and each.name.startswith(f"{name} on ")
            ]
        )
        for phase, what, elements, calls in gathers:
            amount = ceil_div(elements * size * entry.bytes, whole)
            self._read_or_write(phase, f"{what} from NVMe", name, amount, calls)

    def _read_or_write(self, phase: Phase, what: str, name: str, amount: int, calls: int) -> None:
        if calls:
            over = Link("host", 1, "nvme", self.how.source)
            self.step.collectives.append(
                collective(
                    over, phase, "copy", what, self._dtypes[name], amount, calls, phase != "step"
                )
            )

    def _rounding(self) -> Block:
        """What pinned allocations add: as they are rounded up, or by a factor where they are not
        known.
        """
        host = [t for t in self.step.spanning if t.tier == "cpu"]
        if self.how.factor > 1:
            factor, amount = self.how.factor, sum([t.bytes for t in host])
            made = term(
                ROUNDING, "fragmentation", MOMENTS, factor_bytes, factor=factor, host_bytes=amount
            )
            return block([replaced(made, tier="cpu")])
        locked = given = 0
        for held in host:
            if held.name in self._pinned:
                own = held.inputs.get("bytes_per_rank")
                amount = ceil_div(held.bytes, self.gpus) if own is None else int(own)
                given += amount
                locked += self._locked(amount, *self._pinned[held.name])
        if locked == given:
            return block(())
        made = term(
            ROUNDING,
            "fragmentation",
            MOMENTS,
            rounding_bytes,
            page_locked_bytes=locked,
            bytes_per_rank=given,
            gpus_per_node=self.gpus,
        )
        return block([replaced(made, tier="cpu")])

    def _locked(self, amount: int, by: Pinned, largest: int) -> int:
        """Bytes that the allocations of a rank's ``amount`` take; less than twice as much where
        their sizes are not known.
        """
        rank = self.step.rank
        if by == "whole":
            full, rest = divmod(amount, largest) if largest else (0, amount)
            return full * page_locked([largest]) + page_locked([rest])
        if rank.arch is None or rank.split > 1 or rank.trainable < rank.parameters:
            return 2 * amount
        per_element = amount * rank.shards // (rank.padded or rank.parameters)
        return page_locked(
            [ceil_div(size, rank.shards) * per_element for size in _allocated(self.step, by)]
        )


def _allocated(step: Step, by: Pinned) -> Iterable[int]:
    """Elements of each allocation, before they are sharded."""
    if by == "tensor":
        return step.rank.tensors("all")
    return [unit.padded or unit.elements for unit in step.rank.units for _ in range(unit.count)]


def _unreduced(entry: Term) -> Term:
    """Unreduced gradients stay on the GPU, whole: the shard that each rank keeps afterwards is
    offloaded.

    torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py: foreach_reduce copies what it
    has reduced.
    """
    inputs = {name: int(value) for name, value in entry.inputs.items()} | {"share_bytes": 0}
    return term(entry.name, entry.kind, entry.moments, waiting_bytes, entry.assumption, **inputs)
