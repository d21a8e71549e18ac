"""Families as data: counts and shapes of every family's default config, and of real configs,
exact.
"""

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
from zerocalc.answers.planner import plan
from zerocalc.huggingface.config import load_model, model_from_config
from zerocalc.huggingface.expressions import ExpressionError, evaluate
from zerocalc.huggingface.family_file import FamilyFile, find, model_types
from zerocalc.model.build import architecture
from zerocalc.model.counting import count_parameters
from zerocalc.presets import PresetError
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

DATA = Path(__file__).parents[1] / "data"
DEFAULTS: dict[str, Any] = json.loads((DATA / "family_defaults.json").read_text("utf-8"))[
    "families"
]
with (DATA / "config_counts.csv").open(encoding="utf-8", newline="") as stream:
    ACTIVE = {row["name"]: int(row["active"]) for row in csv.DictReader(stream) if row["active"]}


def shapes(model: Model) -> Counter[tuple[int, ...]]:
    """How many parameter tensors of each shape a model has; empty ones aside."""
    arch = architecture(model)
    assert arch is not None
    found: Counter[tuple[int, ...]] = Counter()
    for count, modules in ((1, arch.before), *arch.groups, (1, arch.after)):
        for module in modules:
            for row in module.parameter_rows:
                if math.prod(row.shape):
                    found[row.shape] += count
    return found


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_the_default_config_of_a_family_is_counted_tensor_by_tensor(model_type: str) -> None:
    known = DEFAULTS[model_type]
    model = model_from_config(known["config"], model_type)
    assert count_parameters(model).total == known["total"]
    assert sum(math.prod(shape) * count for shape, count in shapes(model).items()) == known["total"]
    if (
        model.stack is not None
    ):  # a model that is described by its kind splits what an implementation fuses
        expected = {
            tuple(map(int, shape.split("x"))) if shape else (): count
            for shape, count in known["shapes"].items()
        }
        assert shapes(model) == expected


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_exact(name: str) -> None:
    assert (
        count_parameters(load_model(str(DATA / "configs" / f"{name}.json"))).active == ACTIVE[name]
    )


PUBLISHED_ACTIVE = {
    "qwen1.5-moe-a2.7b": 2.69e9,
    "dbrx": 36.47e9,
    "jamba-v0.1": 12.11e9,
    "llama-4-scout": 17.2e9,
}
"""Active parameters as the models' authors print them, to their last digit."""


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE)
def test_active_parameters_agree_with_published_ones(name: str) -> None:
    counts = count_parameters(load_model(str(DATA / "configs" / f"{name}.json")))
    passed = counts.active - (
        counts.components["other"] if name == "llama-4-scout" else 0
    )  # a token of text passes no vision tower
    assert passed == pytest.approx(PUBLISHED_ACTIVE[name], rel=3e-3)


@pytest.mark.parametrize("name", presets.names("families"))
def test_every_file_is_a_family(name: str) -> None:
    family = FamilyFile.model_validate(presets.load("families", name))
    assert family.source
    for model_type in family.model_types:
        for name_of_class in family.architectures:
            with pytest.raises(PresetError):
                model_from_config(
                    {"model_type": model_type, "architectures": [name_of_class]}, "config.json"
                )


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": [{"count": 1, "modules": []}]},
        {"kind": None},
        {"kind": None, "dimensions": {}},
        {"dimensions": {}},
    ],
)
def test_a_family_has_dimensions_of_a_kind_or_modules(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a family has a kind with its dimensions, or modules"):
        FamilyFile.model_validate(presets.load("families", "llama") | changes)


def test_no_two_files_count_the_same_class_of_a_model_type() -> None:
    files = [
        FamilyFile.model_validate(presets.load("families", name))
        for name in presets.names("families")
    ]
    pairs = Counter(
        (model_type, architecture)
        for family in files
        for model_type in family.model_types
        for architecture in family.architectures
    )
    assert [pair for pair, count in pairs.items() if count > 1] == []
    assert len(model_types()) >= 100


@pytest.mark.parametrize(
    "model_type", ["mixtral", "deepseek_v3", "gemma2", "falcon", "gpt_oss", "bert"]
)
def test_a_family_can_be_planned_and_saved(model_type: str) -> None:
    model = model_from_config(DEFAULTS[model_type]["config"], model_type)
    answer = plan(
        Job.model_validate(
            {
                "model": model.model_dump(mode="json"),
                "cluster": {"gpus": 64, "gpu": "h100-80g"},
                "training": {"seq": 128},
            }
        )
    )
    total = DEFAULTS[model_type]["total"]
    assert answer.candidates[0].memory.gpu.states_bytes == 16 * total
    assert answer.candidates[3].communication.volume_params == 3
    assert model.stack is not None
    assert set(answer.candidates[3].memory.gpu.unknown) == (
        set() if model.stack.activations else {"activations", "logits"}
    )
    assert Job.model_validate(answer.job.model_dump(mode="json")) == answer.job


FILES: dict[str, dict[str, Any]] = {}
"""The first file of each model type."""
for _name in presets.names("families"):
    _file = presets.load("families", _name)
    for _model_type in _file["model_types"]:
        FILES.setdefault(_model_type, _file)


@pytest.mark.parametrize("model_type", [name for name in DEFAULTS if name not in {"gpt2", "llama"}])
def test_a_config_without_a_required_key_is_refused_by_its_name(model_type: str) -> None:
    config = DEFAULTS[model_type]["config"]
    file = FILES.get(model_type, {})
    for key in file.get("required", []):
        if key in config and not any(
            other in config for other in file.get("aliases", {}).get(key, [])
        ):
            with pytest.raises(PresetError, match=r"is missing|is none|not a"):
                model_from_config({k: v for k, v in config.items() if k != key}, model_type)


def changed(name: str, path: str, value: Any) -> dict[str, Any]:
    """A real config with one key changed, in a nested table too."""
    config: dict[str, Any] = json.loads((DATA / "configs" / f"{name}.json").read_text("utf-8"))
    *tables, key = path.split(".")
    inner = config
    for table in tables:
        inner = inner[table]
    inner[key] = value
    return config


VISION_LAYERS = "vision_config.num_hidden_layers"
NO_MODELS: list[tuple[str, str, Any, str]] = [
    (
        "llama-4-scout",
        VISION_LAYERS,
        34.5,
        "vision_config.num_hidden_layers: 34.5 is not a whole number",
    ),
    (
        "llama-4-scout",
        VISION_LAYERS,
        None,
        "vision_config.num_hidden_layers is null, not a whole number",
    ),
    (
        "llama-4-scout",
        VISION_LAYERS,
        "x",
        "vision_config.num_hidden_layers: 'x' is not a whole number",
    ),
    (
        "llama-4-scout",
        VISION_LAYERS,
        [],
        "vision_config.num_hidden_layers: a list is not a whole number",
    ),
    (
        "llama-4-scout",
        VISION_LAYERS,
        {},
        "vision_config.num_hidden_layers: a table is not a whole number",
    ),
    ("llama-4-scout", VISION_LAYERS, -1, "vision_config.num_hidden_layers: -1 is not at least 0"),
    (
        "llama-4-scout",
        VISION_LAYERS,
        True,
        "vision_config.num_hidden_layers: true is not a whole number",
    ),
    (
        "llama-4-scout",
        VISION_LAYERS,
        10**9,
        "vision_config.num_hidden_layers: 1,000,000,000 are more than 10,000",
    ),
    (
        "mixtral-8x7b",
        "num_hidden_layers",
        10**9,
        "num_hidden_layers: 1,000,000,000 are more than 10,000",
    ),
    (
        "qwen3-30b-a3b",
        "num_experts",
        10**9,
        "moe experts: 1,000,000,000 experts are more than 100,000",
    ),
    (
        "qwen3-30b-a3b",
        "num_experts_per_tok",
        1000,
        "moe experts: a token cannot pass through 1,000 of 128 experts",
    ),
    (
        "mixtral-8x7b",
        "num_experts_per_tok",
        9,
        "moe moe: a token cannot pass through 9 of 8 experts",
    ),
    (
        "dbrx",
        "ffn_config.moe_top_k",
        17,
        "moe experts: a token cannot pass through 17 of 16 experts",
    ),
    (
        "jamba-v0.1",
        "num_experts_per_tok",
        17,
        "moe experts: a token cannot pass through 17 of 16 experts",
    ),
    (
        "deepseek-v2",
        "num_experts_per_tok",
        161,
        "moe experts: a token cannot pass through 161 of 160 experts",
    ),
    (
        "deepseek-v3",
        "num_experts_per_tok",
        257,
        "moe experts: a token cannot pass through 257 of 256 experts",
    ),
    (
        "gpt-oss-20b",
        "num_experts_per_tok",
        33,
        "moe moe: a token cannot pass through 33 of 32 experts",
    ),
    (
        "llama-4-scout",
        "text_config.num_experts_per_tok",
        17,
        "moe experts: a token cannot pass through 17 of 16 experts",
    ),
    (
        "qwen1.5-moe-a2.7b",
        "num_experts_per_tok",
        61,
        "moe experts: a token cannot pass through 61 of 60 experts",
    ),
    ("qwen3-30b-a3b", "num_experts", -1, "num_experts: -1 is not at least 0"),
    ("qwen3-30b-a3b", "decoder_sparse_step", 1.5, "decoder_sparse_step: 1.5 is not a whole number"),
    ("qwen3-30b-a3b", "intermediate_size", "x", "intermediate_size: 'x' is not a whole number"),
    (
        "qwen3-30b-a3b",
        "mlp_only_layers",
        ["0"],
        "mlp_only_layers: a list is not a list of whole numbers",
    ),
    ("qwen3-235b-a22b", "head_dim", {}, "head_dim: a table is not a whole number"),
    (
        "deepseek-v2-lite",
        "first_k_dense_replace",
        -5,
        "first_k_dense_replace: -5 is not at least 0",
    ),
    (
        "deepseek-v2-lite",
        "first_k_dense_replace",
        1.5,
        "first_k_dense_replace: 1.5 is not a whole number",
    ),
    ("deepseek-v2-lite", "n_shared_experts", 1.5, "n_shared_experts: 1.5 is not a whole number"),
    ("deepseek-v2", "q_lora_rank", {}, "q_lora_rank: a table is not a whole number"),
    ("deepseek-v2", "topk_method", 3, "topk_method: 3 is not a text"),
    ("opt-350m", "do_layer_norm_before", "x", "do_layer_norm_before: 'x' is not true or false"),
    ("opt-350m", "dropout", "x", "dropout: 'x' is not a number"),
    ("opt-350m", "dropout", -0.1, "dropout: -0.1 is not at least 0"),
    ("falcon-7b", "parallel_attn", "no", "parallel_attn: 'no' is not true or false"),
    ("jamba-v0.1", "mamba_dt_rank", "car", "mamba_dt_rank: 'car' is not a whole number or auto"),
    (
        "gpt-oss-20b",
        "layer_types",
        ["full_attention"],
        "layer_types: 1 entry, not one for each of 24 layers",
    ),
    ("gpt-oss-20b", "layer_types", [], "layer_types: 0 entries, not one for each of 24 layers"),
    ("gpt-oss-20b", "max_position_embeddings", -1, "max_position_embeddings: -1 is not at least 1"),
    (
        "llama-3.1-8b",
        "max_position_embeddings",
        "x",
        "max_position_embeddings: 'x' is not a whole number",
    ),
    (
        "llama-3.1-8b",
        "layer_types",
        ["full_attention"] * 31,
        "layer_types: 31 entries, not one for each of 32 layers",
    ),
]
"""What a key cannot hold, or a model cannot be: real configs with one key changed, and what is said
of them.
"""


@pytest.mark.parametrize(("name", "path", "value", "said"), NO_MODELS)
def test_a_value_that_its_key_cannot_hold_is_refused(
    name: str, path: str, value: Any, said: str
) -> None:
    with pytest.raises(PresetError) as error:
        model_from_config(changed(name, path, value), "config.json")
    assert str(error.value) == f"config.json: {said}"


def test_layers_of_a_kind_that_a_family_does_not_have_are_refused() -> None:
    config = copy.deepcopy(DEFAULTS["qwen3_next"]["config"])
    config["layer_types"] = ["no_attention"] * config["num_hidden_layers"]
    with pytest.raises(
        PresetError, match=r"layer_types: 'no_attention' is no kind of layer that is counted yet"
    ):
        model_from_config(config, "config.json")


LONGEST = {
    "bart": 1024,
    "opt": 2048,
    "roberta": 510,
    "bert": 512,
    "gpt_bigcode": 1024,
    "openai-gpt": 512,
    "whisper": 448,
    "trocr": 512,
    "marian": 1024,
    "prophetnet": None,
    "mixtral": None,
    "mpt": None,
    "bloom": None,
}
"""The longest sequence of a family's default config: the rows of its table of positions, but for
those that padding takes; none without a table, or where the class takes the last row for all tokens
beyond (ProphetNet).
"""


@pytest.mark.parametrize("model_type", LONGEST)
def test_a_sequence_longer_than_the_table_of_positions_is_refused(model_type: str) -> None:
    model = model_from_config(DEFAULTS[model_type]["config"], model_type)
    longest = LONGEST[model_type]
    assert model.longest == longest
    job = {"model": model.model_dump(mode="json"), "cluster": {"gpus": 8}}
    Job.model_validate({**job, "training": {"seq": longest or 10**6}})
    if longest:
        with pytest.raises(
            ValueError, match=f"{longest + 1} is more than the model's {longest} learned positions"
        ):
            Job.model_validate({**job, "training": {"seq": longest + 1}})


WRONG: list[Any] = [None, -1, 0, True, 1.5, 10**9, 10**30, "x", [], {}, [1], {"a": 1}, math.nan]


def read_by(model_type: str, config: dict[str, Any]) -> frozenset[str]:
    """The keys that a family's expressions read."""
    family = find(model_type, config.get("architectures") or [])
    return family.read() if family is not None else frozenset()


@given(model_type=st.sampled_from(sorted(DEFAULTS)), data=st.data())
def test_a_wrong_kind_of_value_is_never_a_model(model_type: str, data: st.DataObject) -> None:
    config = copy.deepcopy(DEFAULTS[model_type]["config"])
    read = read_by(model_type, config)
    tables: list[dict[str, Any]] = [
        config,
        *(value for key, value in config.items() if key in read and isinstance(value, dict)),
    ]
    places = [
        (table, key)
        for table in tables
        for key, value in table.items()
        if key in read and type(value) in (int, bool)
    ]
    if not places:
        return
    table, key = data.draw(st.sampled_from(places))
    table[key] = data.draw(
        st.sampled_from(
            ["x", 1.5, -7, {}, {"a": 1}]
            if type(table[key]) is int and table[key] >= 0
            else ["x", 1.5, 0, {}, []]
        )
    )
    with pytest.raises(PresetError, match=rf"{key}: "):
        model_from_config(config, "config.json")


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
    names = {
        "a": 6,
        "b": 4,
        "none": None,
        "table": {"x": 3},
        "list": ["full", "mamba"],
        "flag": True,
    }
    cases: dict[str, object] = {
        "a // b": 1,
        "ceil_div(a, b)": 2,
        "round_up(a, b)": 8,
        "none or a * b": 24,
        "table.x + 1": 4,
        "list[1] == 'mamba'": True,
        "a if flag else b": 6,
        "not flag": False,
        "a in [6, 7]": True,
        "len(list)": 2,
        "get(table, 'y', 5)": 5,
        "-a": -6,
        "none.x": None,
    }
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
        evaluate(
            text, {"a": 6, "b": 4, "none": None, "table": {"x": 3}, "list": [], "nan": math.nan}
        )
