"""What leaves the GPU and where it arrives: states and buffers in a node's memory or on its drives,
per node.
"""

from __future__ import annotations

from zerocalc.formulas.buffers import held_bytes
from zerocalc.formulas.formula import ceil_div
from zerocalc.formulas.offload import factor_bytes, node_bytes, page_locked, rounding_bytes
from zerocalc.formulas.states import waiting_bytes
from zerocalc.frameworks.flat_buffer import touched_elements
from zerocalc.ledger import EMPTY, MOMENTS, Block, Term, block, replaced, term
from zerocalc.memory.states import WAITING
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework import FrameworkStage
from zerocalc.spec.framework_offload import Offload
from zerocalc.spec.framework_rows import Holding, Pinned
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.spec.zero import Tier

PLACES: dict[Tier, str] = {"gpu": "", "cpu": " on the host", "nvme": " on drives"}
LOST = "rounding"
THROUGH_HOST = "host memory through which drives are read and written is not counted"
ONE_STAGE = (
    "host memory, drives and the host's step: every rank of a node counted as one of this "
    "pipeline stage, although a node has several"
)
HOST_ALONE = (
    "host memory: what is offloaded, with its buffers; processes, data loaders and loading the "
    "model come on top"
)


def relocated(job: Job, states: Block, stage: int, behaviour: FrameworkStage) -> Block:
    """The state rows of a rank, each where it lies; ``stage``: as which they are sharded."""
    offload = behaviour.offloading
    if offload is None:
        return states
    sharded = tuple(
        row.name
        for row in job.trained_recipe.rows
        if row.kind == "gradients" and stage >= row.sharded_from
    )
    tiers: dict[str, Tier] = {
        "weights": job.zero.tier_of("params"),
        "optimizer": job.zero.tier_of("optimizer"),
    }
    terms: list[Term] = []
    for entry in states.terms:
        tier = (
            tiers["optimizer"]
            if entry.kind == "gradients" and entry.name.startswith(sharded)
            else tiers.get(entry.kind, "gpu")
        )
        if tier != "gpu" and entry.name.endswith(WAITING):
            terms.append(_waiting(entry))
        elif tier == "gpu":
            terms.append(entry)
        elif entry.kind == "weights" and tier == "nvme" and offload.params_in_cpu:
            terms += _split(job, entry, offload.params_in_cpu)
        elif entry.kind != "gradients" or offload.gradients == "moved":
            terms.append(on_node(job, entry, tier))
    if job.parallel.pp > 1 and job.cluster.gpus // job.parallel.pp < job.cluster.gpus_of_a_node:
        return block(terms, states.unknown, (*states.assumptions, HOST_ALONE, ONE_STAGE))
    on_drives = "nvme" in (tiers["weights"], tiers["optimizer"]) and all(
        row.device is None for row in behaviour.holds
    )
    return block(
        terms,
        states.unknown,
        (*states.assumptions, HOST_ALONE, *([THROUGH_HOST] if on_drives else [])),
    )


def _waiting(entry: Term) -> Term:
    """Gradients that wait for their reduction do so on the GPU, whole: the share that each rank
    keeps afterwards lies elsewhere.

    torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py: foreach_reduce copies what it
    has reduced.
    """
    inputs = {name: int(value) for name, value in entry.inputs.items()} | {"share_bytes": 0}
    return term(entry.name, entry.kind, entry.moments, waiting_bytes, entry.assumption, **inputs)


def on_node(job: Job, entry: Term, tier: Tier, bytes_per_rank: int | None = None) -> Term:
    """What a rank keeps, or some bytes of it, for all ranks of a node and on another tier."""
    made = term(
        entry.name + PLACES[tier],
        entry.kind,
        entry.moments,
        node_bytes,
        entry.assumption,
        bytes_per_rank=entry.bytes if bytes_per_rank is None else bytes_per_rank,
        gpus_per_node=job.cluster.gpus_of_a_node,
    )
    return replaced(made, tier=tier, source=entry.source)


def _split(job: Job, entry: Term, kept_elements: int) -> list[Term]:
    """Weights that go to drives but for so many elements of a rank's share."""
    kept = min(entry.bytes, kept_elements * DTYPE_BYTES[job.gather_dtype])
    parts: tuple[tuple[Tier, int], ...] = (("cpu", kept), ("nvme", entry.bytes - kept))
    return [on_node(job, entry, tier, amount) for tier, amount in parts if amount]


def place_of(job: Job, row: Holding) -> Tier:
    """Where a framework's row lies."""
    return (
        "gpu"
        if row.beside == "gpu"
        else "cpu"
        if row.beside == "host"
        else job.zero.tier_of(row.beside)
    )


def touched_on_node(job: Job, rank: Rank, row: Holding) -> Term:
    """Whole tensors with a part in the shares of a node's ranks, of the node with most of them."""
    each, per_node = touched_elements(job, rank), job.cluster.gpus_of_a_node
    together = max(sum(each[first : first + per_node]) for first in range(0, len(each), per_node))
    together *= max(1, per_node // len(each))
    made = term(
        row.name + PLACES["cpu"],
        row.kind,
        MOMENTS,
        held_bytes,
        elements=together,
        bytes_per_element=DTYPE_BYTES[job.dtype_of(row.dtype)],
        copies=row.copies,
    )
    return replaced(made, tier="cpu")


def rounding(job: Job, rank: Rank, behaviour: FrameworkStage, terms: tuple[Term, ...]) -> Block:
    """What page-locked allocations add on the host: as they are rounded up, or by a factor where
    they are not known.
    """
    offload = behaviour.offloading
    if offload is None:
        return EMPTY
    host = [entry for entry in terms if entry.tier == "cpu" and entry.kind != "checkpoints"]
    if offload.factor > 1:
        entry = term(
            LOST,
            "fragmentation",
            MOMENTS,
            factor_bytes,
            factor=offload.factor,
            host_bytes=sum([t.bytes for t in host]),
        )
        return _on_host([entry])
    pinned = _pinned(job, offload)
    for row in behaviour.holds:
        if row.pinned is not None:
            largest = (
                getattr(job.zero, row.pieces) * DTYPE_BYTES[job.dtype_of(row.dtype)]
                if row.pieces
                else 0
            )
            pinned[row.name + PLACES["cpu"]] = row.pinned, largest
    locked = given = 0
    for held in host:
        if held.name in pinned:
            own, gpus = held.inputs.get("bytes_per_rank"), job.cluster.gpus_of_a_node
            amount = ceil_div(held.bytes, gpus) if own is None else int(own)
            given += amount
            locked += _locked(rank, amount, *pinned[held.name])
    if locked == given:
        return EMPTY
    entry = term(
        LOST,
        "fragmentation",
        MOMENTS,
        rounding_bytes,
        page_locked_bytes=locked,
        bytes_per_rank=given,
        gpus_per_node=job.cluster.gpus_of_a_node,
    )
    return _on_host([entry])


def _on_host(terms: list[Term]) -> Block:
    return block(
        [
            replaced(entry, name=f"{entry.name} of page-locked buffers, at most", tier="cpu")
            for entry in terms
        ]
    )


def _pinned(job: Job, offload: Offload) -> dict[str, tuple[Pinned, int]]:
    """The names of a recipe's page-locked rows on the host."""
    chosen = [
        row
        for row in job.trained_recipe.rows
        if ("master" if row.copies_weights else row.kind) in offload.pinned
    ]
    return {row.name + PLACES["cpu"]: (offload.pinned_by, 0) for row in chosen}


def _locked(rank: Rank, amount: int, by: Pinned, largest: int) -> int:
    """Bytes that the allocations of a rank's ``amount`` take; less than twice as much where their
    sizes are not known.
    """
    if by == "whole":
        full, rest = divmod(amount, largest) if largest else (0, amount)
        return full * page_locked([largest]) + page_locked([rest])
    elements = rank.padded or rank.parameters
    sizes = (
        rank.tensors("all")
        if by == "tensor"
        else [unit.padded or unit.elements for unit in rank.units for _ in range(unit.count)]
    )
    if rank.arch is None or rank.split > 1 or rank.trainable < rank.parameters:
        return 2 * amount
    per_element = amount * rank.shards // elements
    return page_locked([ceil_div(size, rank.shards) * per_element for size in sizes])
