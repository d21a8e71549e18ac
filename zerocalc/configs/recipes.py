"""Recipes by what tools call things: an optimizer, a dtype to compute in, a dtype in which
gradients are kept; and back.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from zerocalc import presets
from zerocalc.spec.recipe import Recipe

DTYPES = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "torch.float16": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "torch.float32": "fp32",
}
"""Dtypes by every name that tools have for them."""
TORCH_NAME = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

WITH_MASTER_WEIGHTS = {
    ("AdamW", "fp32"): "fp32-adam",
    ("AdamW", "16"): "mixed-adam",
    ("Lion", "16"): "lion",
    ("Muon", "16"): "muon",
    ("SGD with momentum", "16"): "sgd-momentum",
    ("SGD", "16"): "sgd",
}
"""16-bit weights beside fp32 ones in the optimizer; or everything in fp32."""
WITH_MASTER_WEIGHTS_ALWAYS = {**WITH_MASTER_WEIGHTS, ("AdamW", "fp32"): "fp32-adam-master"}
"""A second fp32 copy of the weights in the optimizer, whatever the weights are."""
WITH_FP32_WEIGHTS = {("AdamW", "fp32"): "fp32-adam", ("AdamW", "16"): "fsdp-mixed"}
"""fp32 weights, 16-bit copies of them while they are gathered."""
WITHOUT_MASTER_WEIGHTS = {("AdamW", "fp32"): "fp32-adam", ("AdamW", "16"): "pure-bf16-adam"}
"""Everything in one dtype."""
UNDER_AUTOCAST = {("AdamW", "fp32"): "fp32-adam", ("AdamW", "16"): "autocast"}
"""fp32 weights, cast operation by operation."""

Table = dict[str, Any]


def recipe_table(
    recipes: dict[tuple[str, str], str], optimizer: str, compute: str, gradients: str | None = None
) -> Table | None:
    """The recipe of an optimizer, ``None`` where there is none; ``gradients`` is the dtype they are
    kept in where that is another one.
    """
    name = recipes.get((optimizer, "fp32" if compute == "fp32" else "16"))
    if name is None:
        return None
    table = presets.load("recipes", name)
    if gradients is not None and gradients != compute:
        table = _with_gradients(table, gradients)
    return table if compute in ("bf16", "fp32") else _in_fp16(table)


def _with_gradients(table: Table, dtype: str) -> Table:
    """A recipe that keeps gradients in another dtype; the preset where there is one."""
    name = f"{table['name']}-{dtype}-grad"
    if presets.is_preset("recipes", name):
        return presets.load("recipes", name)
    rows = [{**row, "dtype": dtype} if row["kind"] == "gradients" else row for row in table["rows"]]
    return {
        **table,
        "name": name,
        "title": f"{table['title'].partition(':')[0]}, gradients in {dtype}",
        "rows": rows,
    }


def _in_fp16(table: Table) -> Table:
    """A recipe with fp16 in the place of bf16."""

    def swapped(dtype: str) -> str:
        return "fp16" if dtype == "bf16" else dtype

    rows = [{**row, "dtype": swapped(row["dtype"])} for row in table["rows"]]
    changed: Table = {key: swapped(table[key]) for key in ("compute", "gather") if key in table}
    return {
        **table,
        **changed,
        "name": f"{table['name']}-fp16",
        "title": f"{table['title']}; fp16 for bf16",
        "rows": rows,
    }


def recognised(
    recipes: dict[tuple[str, str], str], recipe: Recipe
) -> tuple[str, str, str | None] | None:
    """The optimizer, the dtype of compute, and that of gradients where it is another one, which
    give a recipe; ``None`` where none do.
    """
    kept: tuple[str | None, ...] = (None, "fp32", "bf16")
    for (optimizer, width), gradients in product(recipes, kept):
        for compute in ("fp32",) if width == "fp32" else ("bf16", "fp16"):
            table = recipe_table(recipes, optimizer, compute, gradients)
            if table is not None and _same(Recipe.model_validate(table), recipe):
                return optimizer, compute, gradients if gradients != compute else None
    return None


def _same(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes say the same of training; what they are called does not count."""
    return (one.compute, one.gather, one.autocast, one.rows) == (
        other.compute,
        other.gather,
        other.autocast,
        other.rows,
    )
