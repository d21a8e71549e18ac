"""Model states: the recipe's rows, each divided from its stage on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocalc import formulas
from zerocalc.formulas.states import (
    owner_bytes,
    scale_bytes,
    shard_bytes,
    waiting_bytes,
    whole_bytes,
)
from zerocalc.ledger import MOMENTS, Block, Kind, Moment, Term, block, span, term
from zerocalc.sharding.rank import Rank
from zerocalc.spec.recipe import DTYPE_BYTES, Recipe, StateRow

if TYPE_CHECKING:
    from zerocalc.model.checkpoint_bytes import Stored

UNREDUCED = " (unreduced)"
"""Behind the names of gradients that are kept whole until they are reduced."""
WHILE_COMPUTING = span("forward", "backward_end")
BASE_ASSUMPTIONS = (
    "trained parameters are among those that are not quantised",
    "unquantised parameters are stored in the recipe's dtype (PEFT's "
    "prepare_model_for_kbit_training casts them to fp32)",
)
ADAPTED_ASSUMPTIONS = (
    "unquantised parameters are stored in the recipe's compute dtype (PEFT's "
    "prepare_model_for_kbit_training casts them to fp32)",
)
GATHERED_ASSUMPTIONS = (
    "the quantised base is sharded with its scales (bitsandbytes: quant_storage in the "
    "compute dtype)",
    "all-gathers of the quantised base are counted unquantised: an upper bound of gathered "
    "memory and traffic",
)
BASE = frozenset({"all", "frozen"})
"""What rows of a base's weights cover; adapters beside it have rows of their own."""
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
    waiting_dtype: str | None = None,
    owner_blocks: int | None,
    since: Moment | None = None,
    until: Moment = "step",
    reached: tuple[int, int] | None = None,
    gradients: bool = True,
) -> Block:
    """The state rows of one rank at a stage.

    ``accumulates``: gradients outlive a micro-batch. ``whole_gradients``: kept whole until the last
    backward whatever the stage, because reduction is deferred; in ``waiting_dtype``, if not in
    their own. ``owner_blocks``: into how many blocks the parameters are cut where each block has
    one owner. ``since``, ``until``: the first moment of gradients, where they are not made in
    backward, and the last. ``reached``: elements that are reduced by the start of backward, and
    by its end, where they are reduced one after the other. ``gradients``: whether the recipe's
    rows of them hold.
    """
    terms: list[Term] = []
    shards = rank.shards
    gradient_moments = span(since or ("forward" if accumulates else "backward_end"), until)
    for row in recipe.rows:
        kind, of = row.kind, row.of
        sharded = shards > 1 and stage >= row.sharded_from
        if kind == "copies" and sharded:
            continue  # such copies exist in gathered units only
        if kind == "gradients" and not gradients:
            continue
        elements = rank.shardable(of) if sharded else rank.elements(of)
        if rank.stored is not None and kind == "weights" and of in BASE:
            terms.append(_base(row, rank.stored, rank.split, shards if sharded else 1))
        elif elements:
            moments = (
                gradient_moments
                if kind == "gradients"
                else WHILE_COMPUTING
                if kind == "copies"
                else MOMENTS
            )
            assumption = BARE_ASSUMPTIONS.get(of) if rank.arch is None else None
            blocks = owner_blocks if stage == 3 else None
            parts = [(row.name, moments, elements)]
            if kind == "gradients" and reached is not None and not accumulates:
                parts = _as_reduced(row.name, elements, reached, shards)
            for name, alive, amount in parts:
                divided = shards if sharded else 1
                terms.append(_row(row, kind, alive, assumption, amount, divided, blocks, name))
            if kind == "gradients" and sharded and whole_gradients:
                terms.append(
                    term(
                        row.name + UNREDUCED,
                        kind,
                        span("forward", "backward_end"),
                        waiting_bytes,
                        parameters=rank.elements(of),
                        bytes_per_parameter=DTYPE_BYTES[waiting_dtype or row.dtype],
                        share_bytes=terms[-1].bytes,
                    )
                )
    assumptions = rank.adapters.notes if rank.adapters is not None else ()
    assumptions += (f"recipe {recipe.name}: {recipe.note}",) if recipe.note else ()
    if rank.stored is not None:
        assumptions += (
            f"frozen base in {rank.stored.title}",
            *(BASE_ASSUMPTIONS if rank.adapters is None else ADAPTED_ASSUMPTIONS),
            *rank.stored.assumptions,
            *(GATHERED_ASSUMPTIONS if stage == 3 and shards > 1 else ()),
        )
    return block(terms, (), assumptions + tuple([t.assumption for t in terms if t.assumption]))


def _as_reduced(
    name: str, elements: int, reached: tuple[int, int], shards: int
) -> list[tuple[str, tuple[Moment, ...], int]]:
    """Gradients in the parts in which they are reduced: name, moments, elements; all but the last
    part divide evenly, so that the parts' shards sum to the whole's.
    """
    end = min(elements, reached[1]) // shards * shards
    start = min(end, reached[0]) // shards * shards
    parts = [
        (f"{name} (reduced first)", span("backward_start", "step"), start),
        (name, span("backward_end", "step"), end - start),
        (f"{name} (reduced last)", span("step", "step"), elements - end),
    ]
    return [part for part in parts if part[2]]


def _base(row: StateRow, stored: Stored, model_parallel: int, shards: int) -> Term:
    """The weights of a quantised base: packed bits with all that belongs to them, the rest in the
    row's dtype.
    """
    return term(
        row.name,
        "weights",
        MOMENTS,
        formulas.quantisation.base_bytes,
        quantised_bytes=stored.sizes.total,
        kept_parameters=stored.kept,
        bytes_per_parameter=DTYPE_BYTES[row.dtype],
        model_parallel=model_parallel,
        shards=shards,
    )


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
            name,
            kind,
            moments,
            scale_bytes,
            assumption,
            parameters=elements,
            shards=shards,
            parameters_per_item=per,
            bytes_per_item=size,
        )
    if shards == 1:
        return term(
            name,
            kind,
            moments,
            whole_bytes,
            assumption,
            parameters=elements,
            bytes_per_parameter=size,
        )
    if owner_blocks is not None:
        return term(
            name,
            kind,
            moments,
            owner_bytes,
            assumption,
            parameters=elements,
            blocks=owner_blocks,
            shards=shards,
            bytes_per_parameter=size,
        )
    return term(
        name,
        kind,
        moments,
        shard_bytes,
        assumption,
        parameters=elements,
        shards=shards,
        bytes_per_parameter=size,
    )
