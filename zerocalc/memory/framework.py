"""What a framework holds beside states and activations, as its rows say."""

from __future__ import annotations

from zerocalc.formulas.buffers import (
    beyond_bytes,
    held_bytes,
    held_in_group_bytes,
    held_share_bytes,
    touched,
)
from zerocalc.frameworks.zero3_modules import windowed
from zerocalc.ledger import ACTIVATION_KINDS, EMPTY, Block, Moment, Term, block, span, term
from zerocalc.memory.live import live, more_within
from zerocalc.sharding.call_order import trained
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework import FrameworkStage
from zerocalc.spec.framework_rows import Holding
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

END: Moment = "backward_end"
ANYWHERE = (
    "which parameters are trained is not known: gradients of a layer or tensor counted as if "
    "all of it that can be were, reduced as one"
)
UNFOLLOWED = (
    "windows over modules to come are not followed for this model: what is gathered at "
    "once is taken as its bound, and backward as gathering all "
    "that is beyond max_reuse_distance; what is really sent can be less, or up to all of it more"
)
FULL = "fp32"


def held(job: Job, rank: Rank, behaviour: FrameworkStage, activations: Block) -> Block:
    """The rows of a stage, for one rank; ``activations`` are what the end of backward holds beside
    them.
    """
    if not behaviour.holds:
        return EMPTY
    accumulates, overlaps = job.training.accumulation > 1, job.overlaps(behaviour.stage)
    halves = job.trained_recipe.gradient_dtype != FULL
    deferred = accumulates and job.defers
    there = {
        None: True,
        "accumulated": accumulates,
        "overlapped": overlaps and not accumulates,
        "16-bit gradients": halves,
        "deferred": deferred,
        "reduced at once": not deferred,
    }
    terms: list[Term] = []
    last: list[tuple[Holding, int]] = []
    for row in behaviour.holds:
        if (
            not there[row.only]
            or not job.zero.chosen(row.when, row.unless)
            or not _on_device(job, row)
        ):
            continue
        if row.of == "touched":
            from zerocalc.memory.offload import (
                touched_on_node,  # most frameworks' rows lie on the GPU
            )

            terms.append(touched_on_node(job, rank, row))
            continue
        elements, shards, size = _inputs(job, rank, row)
        copies = row.copies * (row.if_overlapped if overlaps else 1)
        if elements and row.after_layers:
            last.append(
                (
                    row,
                    held_share_bytes(
                        elements=elements, shards=shards, bytes_per_element=size, copies=copies
                    ),
                )
            )
        elif elements:
            moments = span("forward" if row.accumulated and accumulates else row.first, row.last)
            entry = _entry(row, moments, elements, shards, size, copies)
            terms.append(entry if row.beside == "gpu" else _elsewhere(job, row, entry))
        if row.windowed and (known := windowed(job, rank)) is not None:
            terms += more_within(job, rank, row, known, activations)
    if last:
        passing = {row.name for row in behaviour.holds if row.last == END and not row.after_layers}
        working = sum(
            [t.bytes for t in terms if END in t.moments and t.name in passing and t.tier == "gpu"]
        )
        working += sum(
            [t.bytes for t in activations.terms if END in t.moments and t.kind in ACTIVATION_KINDS]
        )
        names = " and ".join([row.name for row, _ in last])
        entry = term(
            f"{names}, beyond the last layer's backward",
            last[0][0].kind,
            (END,),
            beyond_bytes,
            reduction_bytes=sum([amount for _, amount in last]),
            working_bytes=working,
        )
        if entry.bytes:
            terms.append(entry)
    spread = not rank.placed and any(row.what == "gradients" for row in behaviour.holds)
    notes = [
        job.framework.note,
        ANYWHERE if spread else None,
        UNFOLLOWED if _unfollowed(job, rank, behaviour) else None,
    ]
    return block(terms, (), tuple([note for note in notes if note]))


def _unfollowed(job: Job, rank: Rank, behaviour: FrameworkStage) -> bool:
    """Whether windows decide what is gathered, and the modules to follow them over are not
    known.
    """
    return (
        rank.shards > 1
        and any(row.windowed for row in behaviour.holds)
        and windowed(job, rank) is None
    )


def _entry(
    row: Holding, moments: tuple[Moment, ...], elements: int, shards: int, size: int, copies: int
) -> Term:
    if not row.sharded or shards == 1:
        return term(
            row.name,
            row.kind,
            moments,
            held_bytes,
            elements=elements,
            bytes_per_element=size,
            copies=copies,
        )
    formula = held_share_bytes if row.over == "shards" else held_in_group_bytes
    return term(
        row.name,
        row.kind,
        moments,
        formula,
        elements=elements,
        shards=shards,
        bytes_per_element=size,
        copies=copies,
    )


def _on_device(job: Job, row: Holding) -> bool:
    return row.device is None or (
        row.when is not None and getattr(job.zero, row.when) == row.device
    )


def _elsewhere(job: Job, row: Holding, entry: Term) -> Term:
    """A row that lies where the optimizer or the parameters do, or on the host."""
    from zerocalc.memory.offload import on_node, place_of  # as above

    tier = place_of(job, row)
    return entry if tier == "gpu" else on_node(job, entry, tier)


def _inputs(job: Job, rank: Rank, row: Holding) -> tuple[int, int, int]:
    """Elements, shards and bytes an element of a row."""
    size = DTYPE_BYTES[job.dtype_of(row.dtype)]
    shards = (
        (rank.shards if row.over == "shards" else job.zero.secondary_group or 1)
        if row.sharded
        else 1
    )
    if row.windowed and (known := windowed(job, rank)) is not None:
        return live(known, row.first), shards, size
    if row.elements is not None:
        return row.elements, shards, size
    elements = (
        _edges(job, rank)
        if row.of == "edges"
        else rank.part(row.of, trained=row.what == "gradients")
    )
    if row.largest is not None:
        most: int = getattr(job.zero, row.largest)
        elements = most if row.whole else min(elements, most * shards)
    return elements, shards, size


def _edges(job: Job, rank: Rank) -> int:
    """Elements of gradients at the end of backward beyond a rank's share, on the rank with most of
    them.

    Tensors with a part in the share are kept whole, and the model's first tensor has just got its
    gradient: beside what is kept of it already where gradients accumulate.
    """
    known = trained(job, rank)
    if known is None or rank.shards == 1:
        return 0
    sizes, listed, _ = known
    ordered = [sizes[number] for number in listed]
    share = (rank.flat or sum(ordered)) // rank.shards
    accumulates = job.training.accumulation > 1
    kept = [
        amount + (ordered[0] if accumulates or not first else 0)
        for amount, first in touched(ordered, rank.shards, share)
    ]
    return max(0, max(kept) - share)
