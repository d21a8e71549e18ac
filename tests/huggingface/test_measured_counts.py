"""Thirty-three classes of transformers, built on the meta device: every tensor's shape, the largest
leaf module, the largest block, all exact.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from zerocalc.huggingface.config import model_from_config
from zerocalc.model.build import architecture
from zerocalc.model.counting import count_parameters
from zerocalc.model.module import Module

MEASURED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "measured_params.json").read_text("utf-8")
)["models"]


def shapes(modules: Iterable[Module]) -> Counter[tuple[int, ...]]:
    return Counter(row.shape for module in modules for row in module.parameter_rows)


def built(tensors: dict[str, list[int]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(shape) for shape in tensors.values())


@pytest.mark.parametrize("name", MEASURED)
def test_figures_of_the_built_class(name: str) -> None:
    known = MEASURED[name]
    counts = count_parameters(model_from_config(known["config"], name))
    assert (counts.total, counts.active) == (known["total"], known["active"])
    assert (counts.largest_leaf, counts.largest_block) == (
        known["largest_leaf"],
        known["largest_block"],
    )


@pytest.mark.parametrize("name", MEASURED)
def test_every_tensor_of_the_built_class(name: str) -> None:
    known = MEASURED[name]
    arch = architecture(model_from_config(known["config"], name))
    assert arch is not None
    blocks = [(block["count"], built(block["tensors"])) for block in known["blocks"]]
    assert [(count, shapes(modules)) for count, modules in arch.groups] == blocks
    outside = dict(known["embedding_tensors"])
    outside |= {tensor: [size] for tensor, size in known["outside"].items()}
    if known["head"]:
        outside["head"] = next(iter(known["embedding_tensors"].values()))
    assert shapes((*arch.before, *arch.after)) == built(outside)


@pytest.mark.parametrize("name", MEASURED)
def test_the_kept_figures_agree_with_each_other(name: str) -> None:
    known = MEASURED[name]
    for block in known["blocks"]:
        assert (
            sum(math.prod(shape) for shape in block["tensors"].values())
            == sum(block["children"].values())
            == block["params"]
        )
    inside = sum(block["count"] * block["params"] for block in known["blocks"])
    assert inside + known["outside_total"] == known["total"]


def test_all_thirty_three_are_here() -> None:
    assert len(MEASURED) == 33
