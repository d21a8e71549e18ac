"""Kinds of modules: each record fits its values, and what a stack may say is held to it."""

from __future__ import annotations

from typing import Any

import pytest

import zerocalc as zc
from zerocalc.model.build import architecture
from zerocalc.model.kinds import FILES, kind_of
from zerocalc.spec.base import FieldError

MLP = {"hidden": 8, "ffn": 32}


@pytest.mark.parametrize("name", FILES)
def test_a_kind_speaks_of_its_own_values(name: str) -> None:
    kind = kind_of(name)
    known = kind.known()
    assert {*kind.sizes, *kind.words} <= known.keys()
    assert all(known[size] for size in kind.sizes)
    assert kind.weights.__name__ != "no_tensors" or kind.modules is not None


def stack(type: str, values: dict[str, Any]) -> zc.Model:
    modules = [{"type": type, "name": "it", "values": values}]
    return zc.Model.model_validate({"stack": {"groups": [{"count": 1, "modules": modules}]}})


@pytest.mark.parametrize(
    ("type", "values", "words"),
    [
        ("mlpp", MLP, "it: 'mlpp' is not a kind of module; nearest: mlp, mla"),
        ("mlp", {"hidden": 8}, "mlp it: ffn is missing"),
        ("mlp", MLP | {"ffn": 0}, "mlp it: ffn is 0, not at least 1"),
        ("mlp", MLP | {"ffn": True}, "mlp it: ffn is True, not at least 1"),
        ("mlp", MLP | {"gatd": True}, "mlp it: 'gatd' is not one of its values; nearest: gated"),
        ("mlp", MLP | {"gated": "yes"}, "mlp it: gated is 'yes', not a number"),
        ("norm", {"dim": 8, "input": "bf16"}, "norm it: input is 'bf16', not fp32 or compute"),
        ("norm", {"dim": 8, "input": 1}, "norm it: input is 1, not fp32 or compute"),
        ("altup", {"hidden": 8, "streams": 2}, "altup it: part is missing"),
    ],
)
def test_values_that_a_kind_does_not_take(type: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(FieldError) as error:
        architecture(stack(type, values))
    assert (error.value.path, str(error.value)) == ("model.stack", words)
