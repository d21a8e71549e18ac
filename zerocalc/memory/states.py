"""Model states: the recipe's rows, each divided from its stage on."""

from __future__ import annotations

from zerocalc.formulas.states import owner_bytes, scale_bytes, shard_bytes, whole_bytes
from zerocalc.ledger import MOMENTS, Block, Kind, Moment, Term, block, span, term
from zerocalc.modules.rank import Rank
from zerocalc.spec.recipe import DTYPE_BYTES, Recipe, StateRow

WHILE_COMPUTING = span("forward", "backward_end")
BARE_ASSUMPTIONS = {
    "linear": "all parameters counted as linear weights",
    "matrix": "all parameters counted as matrices inside the layers",
}


def states(
    recipe: Recipe,
    rank: Rank,
    stage: int,
    *,
    accumulates: bool,
    whole_gradients: bool,
    owner_blocks: int | None,
    until: Moment = "step",
    late: int = 0,
) -> Block:
    """The state rows of one rank at a stage.

    ``accumulates``: gradients outlive a micro-batch. ``whole_gradients``: kept whole whatever the stage, because reduction is deferred.
    ``owner_blocks``: into how many blocks the parameters are cut where each block has one owner. ``until``: the last moment of
    gradients. ``late``: elements whose gradients are reduced last, after the last layer's backward.
    """
    terms: list[Term] = []
    shards = rank.shards
    gradient_moments = span("forward" if accumulates else "backward_end", until)
    for row in recipe.rows:
        kind, of = row.kind, row.of
        sharded = shards > 1 and stage >= row.sharded_from
        if kind == "copies" and sharded:
            continue  # such copies exist in gathered units only
        if kind == "gradients" and whole_gradients:
            sharded = False
        elements = rank.shardable(of) if sharded else rank.elements(of)
        if elements:
            moments = gradient_moments if kind == "gradients" else WHILE_COMPUTING if kind == "copies" else MOMENTS
            assumption = BARE_ASSUMPTIONS.get(of) if rank.arch is None else None
            if kind == "gradients" and sharded and late and not accumulates:
                elements -= late
                terms.append(_row(row, kind, ("step",), assumption, late, shards, None, name=f"{row.name} reduced last"))
            terms.append(_row(row, kind, moments, assumption, elements, shards if sharded else 1, owner_blocks if stage == 3 else None))
    passed_over = rank.adapters.notes if rank.adapters is not None else ()
    assumptions = passed_over + ((f"recipe {recipe.name}: {recipe.note}",) if recipe.note else ())
    return block(terms, (), assumptions + tuple([t.assumption for t in terms if t.assumption]))


def _row(
    row: StateRow,
    kind: Kind,
    moments: tuple[Moment, ...],
    assumption: str | None,
    elements: int,
    shards: int,
    owner_blocks: int | None,
    name: str = "",
) -> Term:
    name, size, per = name or row.name, DTYPE_BYTES[row.dtype], row.per
    if per > 1:
        return term(
            name, kind, moments, scale_bytes, assumption, parameters=elements, shards=shards, parameters_per_item=per, bytes_per_item=size
        )  # fmt: skip
    if shards == 1:
        return term(name, kind, moments, whole_bytes, assumption, parameters=elements, bytes_per_parameter=size)
    if owner_blocks is not None:
        return term(
            name, kind, moments, owner_bytes, assumption, parameters=elements, blocks=owner_blocks, shards=shards, bytes_per_parameter=size
        )  # fmt: skip
    return term(name, kind, moments, shard_bytes, assumption, parameters=elements, shards=shards, bytes_per_parameter=size)
