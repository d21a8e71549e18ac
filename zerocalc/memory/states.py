"""Model states: the recipe's rows, each divided from its stage on."""

from __future__ import annotations

from zerocalc.formulas.states import owner_bytes, scale_bytes, shard_bytes, whole_bytes
from zerocalc.ledger import MOMENTS, Block, Moment, Term, block, replaced, span, term
from zerocalc.modules.rank import Rank
from zerocalc.spec.recipe import DTYPE_BYTES, Recipe, StateRow

IN_BACKWARD = span("backward_end", "step")
ACROSS_MICRO_BATCHES = span("forward", "step")
WHILE_COMPUTING = span("forward", "backward_end")
BARE_ASSUMPTIONS = {
    "linear": "all parameters counted as linear weights",
    "matrix": "all parameters counted as matrices inside the layers",
}


def states(recipe: Recipe, rank: Rank, stage: int, *, accumulates: bool, whole_gradients: bool, owner_blocks: int | None) -> Block:
    """The state rows of one rank at a stage.

    ``accumulates``: gradients outlive a micro-batch. ``whole_gradients``: kept whole whatever the stage, because reduction is deferred.
    ``owner_blocks``: into how many blocks the parameters are cut where each block has one owner.
    """
    terms: list[Term] = []
    for row in recipe.rows:
        sharded = stage >= row.sharded_from and rank.shards > 1
        if row.kind == "copies" and sharded:
            continue  # such copies exist in gathered units only
        if row.kind == "gradients" and whole_gradients:
            sharded = False
        elements = -(-rank.count(row.of) // rank.split)
        if elements:
            entry = _row(row, elements, rank.shards if sharded else 1, _moments(row, accumulates), owner_blocks if stage == 3 else None)
            if rank.arch is None and row.of in BARE_ASSUMPTIONS:
                entry = replaced(entry, assumption=BARE_ASSUMPTIONS[row.of])
            terms.append(entry)
    assumptions = (f"recipe {recipe.name}: {recipe.note}",) if recipe.note else ()
    return block(terms, (), assumptions + tuple(t.assumption for t in terms if t.assumption))


def _moments(row: StateRow, accumulates: bool) -> tuple[Moment, ...]:
    if row.kind == "gradients":
        return ACROSS_MICRO_BATCHES if accumulates else IN_BACKWARD
    return WHILE_COMPUTING if row.kind == "copies" else MOMENTS


def _row(row: StateRow, elements: int, shards: int, moments: tuple[Moment, ...], owner_blocks: int | None) -> Term:
    size = DTYPE_BYTES[row.dtype]
    if row.per > 1:
        return term(row.name, row.kind, moments, scale_bytes, parameters=elements, shards=shards, parameters_per_item=row.per, bytes_per_item=size)
    if shards == 1:
        return term(row.name, row.kind, moments, whole_bytes, parameters=elements, bytes_per_parameter=size)
    if owner_blocks is not None:
        return term(row.name, row.kind, moments, owner_bytes, parameters=elements, blocks=owner_blocks, shards=shards, bytes_per_parameter=size)
    return term(row.name, row.kind, moments, shard_bytes, parameters=elements, shards=shards, bytes_per_parameter=size)
