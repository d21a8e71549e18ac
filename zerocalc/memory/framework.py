"""What a framework holds beside states and activations, as its rows say."""

from __future__ import annotations

from zerocalc.formulas.buffers import beyond_bytes, held_bytes
from zerocalc.ledger import ACTIVATION_KINDS, EMPTY, Block, Moment, Term, block, span, term
from zerocalc.modules.rank import Rank
from zerocalc.spec.framework import FrameworkStage, Holding
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

END: Moment = "backward_end"
FULL = "fp32"


def held(job: Job, rank: Rank, behaviour: FrameworkStage, activations: Block) -> Block:
    """The rows of a stage, for one rank; ``activations`` are what the end of backward holds beside them."""
    if not behaviour.holds:
        return EMPTY
    terms: list[Term] = []
    last: list[tuple[Holding, int]] = []
    full = job.trained_recipe.gradient_dtype == FULL
    for row in behaviour.holds:
        if row.where and full:
            continue
        elements, shards, size = _inputs(job, rank, row)
        copies = row.copies * (row.if_overlapped if job.overlaps(behaviour.stage) else 1)
        if not elements:
            continue
        if row.after_layers:
            last.append((row, held_bytes(elements=elements, shards=shards, bytes_per_element=size, copies=copies)))
        else:
            moments = span(row.first, row.last)
            terms.append(term(row.name, row.kind, moments, held_bytes, elements=elements, shards=shards, bytes_per_element=size, copies=copies))
    if last:
        passing = {row.name for row in behaviour.holds if row.last == END and not row.after_layers}
        working = sum([t.bytes for t in terms if END in t.moments and t.name in passing])
        working += sum([t.bytes for t in activations.terms if END in t.moments and t.kind in ACTIVATION_KINDS])
        names = " and ".join([row.name for row, _ in last])
        entry = term(
            f"{names}, beyond the last layer's backward", last[0][0].kind, (END,), beyond_bytes,
            reduction_bytes=sum([amount for _, amount in last]), working_bytes=working,
        )  # fmt: skip
        if entry.bytes:
            terms.append(entry)
    return block(terms, (), (job.framework.note,) if job.framework.note else ())


def _inputs(job: Job, rank: Rank, row: Holding) -> tuple[int, int, int]:
    """Elements, shards and bytes an element of a row."""
    elements = rank.part(row.of)
    if row.largest is not None:
        most: int = getattr(job.zero, row.largest)
        elements = most if row.whole else min(elements, most * (rank.shards if row.sharded else 1))
    shards = rank.shards if row.sharded else 1
    return elements, shards, DTYPE_BYTES[job.dtype_of(row.dtype)]
