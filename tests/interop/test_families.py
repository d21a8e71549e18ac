"""Families as data: counts and shapes of every family's default config, and of real configs, exact."""

from __future__ import annotations

import copy
import csv
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocalc import presets
from zerocalc.counting import count_parameters
from zerocalc.interop.expressions import ExpressionError, evaluate
from zerocalc.interop.family_file import FamilyFile, model_types
from zerocalc.interop.huggingface import load_model, model_from_config
from zerocalc.modules.layers import architecture
from zerocalc.planner import plan
from zerocalc.presets import PresetError
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

DATA = Path(__file__).parents[1] / "data"
DEFAULTS: dict[str, Any] = json.loads((DATA / "family_defaults.json").read_text("utf-8"))["families"]
with (DATA / "config_counts.csv").open(encoding="utf-8", newline="") as stream:
    ACTIVE = {row["name"]: int(row["active"]) for row in csv.DictReader(stream) if row["active"]}


def shapes(model: Model) -> Counter[tuple[int, ...]]:
    """How many parameter tensors of each shape a model has; empty ones aside."""
    arch = architecture(model)
    assert arch is not None
    found: Counter[tuple[int, ...]] = Counter()
    for count, modules in ((1, arch.before), *arch.groups, (1, arch.after)):
        for module in modules:
            for parameter in module.parameters:
                if parameter.elements:
                    found[parameter.shape] += count
    return found


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_the_default_config_of_a_family_is_counted_tensor_by_tensor(model_type: str) -> None:
    known = DEFAULTS[model_type]
    model = model_from_config(known["config"], model_type)
    assert count_parameters(model).total == known["total"]
    assert sum(math.prod(shape) * count for shape, count in shapes(model).items()) == known["total"]
    if model.stack is not None:  # a model that is described by its kind splits what an implementation fuses
        expected = {tuple(map(int, shape.split("x"))) if shape else (): count for shape, count in known["shapes"].items()}
        assert shapes(model) == expected


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_exact(name: str) -> None:
    assert count_parameters(load_model(str(DATA / "configs" / f"{name}.json"))).active == ACTIVE[name]


PUBLISHED_ACTIVE = {"qwen1.5-moe-a2.7b": 2.69e9, "dbrx": 36.47e9, "jamba-v0.1": 12.11e9, "llama-4-scout": 17.2e9}
"""Active parameters as the models' authors print them, to their last digit."""


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE)
def test_active_parameters_agree_with_published_ones(name: str) -> None:
    counts = count_parameters(load_model(str(DATA / "configs" / f"{name}.json")))
    passed = counts.active - (counts.components["other"] if name == "llama-4-scout" else 0)  # a token of text passes no vision tower
    assert passed == pytest.approx(PUBLISHED_ACTIVE[name], rel=3e-3)


@pytest.mark.parametrize("name", presets.names("families"))
def test_every_file_is_a_family(name: str) -> None:
    family = FamilyFile.model_validate(presets.load("families", name))
    assert family.source
    for model_type in family.model_types:
        for name_of_class in family.architectures:
            with pytest.raises(PresetError):
                model_from_config({"model_type": model_type, "architectures": [name_of_class]}, "config.json")


def test_no_two_files_count_the_same_class_of_a_model_type() -> None:
    files = [FamilyFile.model_validate(presets.load("families", name)) for name in presets.names("families")]
    pairs = Counter((model_type, architecture) for family in files for model_type in family.model_types for architecture in family.architectures)
    assert [pair for pair, count in pairs.items() if count > 1] == []
    assert len(model_types()) >= 100


@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", "gemma2", "falcon", "gpt_oss", "bert"])
def test_a_family_can_be_planned_and_saved(model_type: str) -> None:
    model = model_from_config(DEFAULTS[model_type]["config"], model_type)
    answer = plan(Job.model_validate({"model": model.model_dump(mode="json"), "cluster": {"gpus": 64, "gpu": "h100-80g"}, "training": {"seq": 128}}))
    total = DEFAULTS[model_type]["total"]
    assert answer.candidates[0].memory.gpu.states_bytes == 16 * total
    assert answer.candidates[3].communication.volume_params == 3
    assert model.stack is not None
    assert set(answer.candidates[3].memory.gpu.unknown) == (set() if model.stack.activations else {"activations", "logits"})
    assert Job.model_validate(answer.job.model_dump(mode="json")) == answer.job


@pytest.mark.parametrize("model_type", [name for name in DEFAULTS if name not in {"gpt2", "llama"}])
def test_a_config_without_a_required_key_is_refused_by_its_name(model_type: str) -> None:
    config = DEFAULTS[model_type]["config"]
    file = next((f for n in presets.names("families") if model_type in (f := presets.load("families", n))["model_types"]), None)
    for key in (file or {}).get("required", []):
        if key in config and not any(other in config for other in (file or {}).get("aliases", {}).get(key, [])):
            with pytest.raises(PresetError, match=r"is missing|is none|not a"):
                model_from_config({k: v for k, v in config.items() if k != key}, model_type)


WRONG: list[Any] = [None, -1, 0, True, 1.5, 10**30, "x", [], {}, [1], {"a": 1}, math.nan]


@given(model_type=st.sampled_from(sorted(DEFAULTS)), data=st.data())
def test_mutated_configs_give_a_model_or_one_line(model_type: str, data: st.DataObject) -> None:
    config = copy.deepcopy(DEFAULTS[model_type]["config"])
    for _ in range(data.draw(st.integers(1, 3))):
        table: dict[str, Any] = config
        nested = [value for value in config.values() if isinstance(value, dict) and value]
        inside: bool = data.draw(st.booleans())
        if nested and inside:
            table = nested[data.draw(st.integers(0, len(nested) - 1))]
        key = data.draw(st.sampled_from(sorted(table) or ["x"]))
        dropped: bool = data.draw(st.booleans())
        if dropped:
            table.pop(key, None)
        else:
            table[key] = copy.deepcopy(data.draw(st.sampled_from(WRONG)))
    try:
        model = model_from_config(config, "config.json")
    except PresetError as error:
        said = str(error)
    else:
        said = f"{count_parameters(model).total} parameters"
        assert not said.startswith(("0", "-"))
    assert "\n" not in said
    assert len(said) < 700


def test_expressions() -> None:
    names = {"a": 6, "b": 4, "none": None, "table": {"x": 3}, "list": ["full", "mamba"], "flag": True}
    cases: dict[str, object] = {
        "a // b": 1, "ceil_div(a, b)": 2, "round_up(a, b)": 8, "none or a * b": 24, "table.x + 1": 4, "list[1] == 'mamba'": True,
        "a if flag else b": 6, "not flag": False, "a in [6, 7]": True, "len(list)": 2, "get(table, 'y', 5)": 5, "-a": -6, "none.x": None,
    }  # fmt: skip
    for text, expected in cases.items():
        assert evaluate(text, names) == expected
    assert evaluate(7, names) == 7


@pytest.mark.parametrize(
    "text",
    [
        "missing",
        "a // 0",
        "a + list",
        "__import__('os')",
        "a.__class__",
        "list[7]",
        "(lambda: 1)()",
        "a ** b",
        "table.y",
        "a +",
        "x" * 500,
        "none + 1",
        "int(nan)",
    ],
)
def test_expressions_that_are_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {"a": 6, "b": 4, "none": None, "table": {"x": 3}, "list": [], "nan": math.nan})
