"""Configs of Hugging Face models: exact counts, tensor by tensor, or a refusal in one line."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from zerocalc import presets
from zerocalc.huggingface.config import load_model, model_from_config
from zerocalc.huggingface.family_file import FamilyFile, model_types
from zerocalc.huggingface.known_keys import GUARDED, NEUTRAL
from zerocalc.model.architecture import Architecture
from zerocalc.model.build import architecture
from zerocalc.model.module import Module
from zerocalc.presets import PresetError
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

DATA = Path(__file__).parents[1] / "data"
CONFIGS = DATA / "configs"
TENSORS: dict[str, Any] = json.loads((DATA / "config_tensors.json").read_text())["models"]
with (DATA / "config_counts.csv").open(newline="") as stream:
    COUNTS = {row["name"]: int(row["total"]) for row in csv.DictReader(stream)}
LLAMA = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
GPT2 = json.loads((CONFIGS / "gpt2.json").read_text())
KINDS = {
    model_type: family
    for name in presets.names("families")
    if "kind" in (table := presets.load("families", name))
    for family in [FamilyFile.model_validate(table)]
    for model_type in family.model_types
}
"""The families that are described by the dimensions of a kind."""


def counted(model: Model) -> Architecture:
    arch = architecture(model)
    assert arch is not None
    return arch


def read(config: dict[str, Any]) -> Model:
    return model_from_config(config, "config.json")


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(PresetError) as error:
        read(config)
    assert "\n" not in str(error.value)
    return str(error.value)


# Counts


@pytest.mark.parametrize("name", COUNTS)
def test_known_configs_are_counted_exactly(name: str) -> None:
    model = load_model(str(CONFIGS / f"{name}.json"))
    assert counted(model).parameters == COUNTS[name]
    assert model.source == f"{name}.json"
    if model.stack is None and not model.quantised:
        assert model.assumed == ()


@pytest.mark.parametrize("name", TENSORS)
def test_totals_of_built_classes(name: str) -> None:
    assert counted(read(TENSORS[name]["config"])).parameters == TENSORS[name]["total"]


def shapes(modules: Iterable[Module]) -> Counter[tuple[int, ...]]:
    return Counter(row.shape for module in modules for row in module.parameter_rows)


def built_shapes(tensors: dict[str, list[int]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(shape) for shape in tensors.values())


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_built_classes(name: str) -> None:
    arch = counted(read(TENSORS[name]["config"]))
    assert shapes(arch.layer) == built_shapes(TENSORS[name]["block"])
    assert shapes((*arch.before, *arch.after)) == built_shapes(TENSORS[name]["outside"])


CHILDREN = {"attn": "attention", "self_attn": "attention", "mlp": "mlp"}


@pytest.mark.parametrize("name", TENSORS)
def test_children_of_a_layer(name: str) -> None:
    built: Counter[str] = Counter()
    for tensor, shape in TENSORS[name]["block"].items():
        built[CHILDREN.get(tensor.split(".")[0], "norms")] += math.prod(shape)
    ours: Counter[str] = Counter()
    for module in counted(read(TENSORS[name]["config"])).layer:
        ours[module.component] += module.parameter_elements
    assert ours == built


def test_every_family_has_a_built_class() -> None:
    built = {entry["config"]["model_type"] for entry in TENSORS.values()}
    assert built >= KINDS.keys()
    assert built <= set(model_types())


def test_the_model_survives_a_saved_job() -> None:
    model = load_model(str(CONFIGS / "llama-3.2-1b.json"))
    job = Job.model_validate({"model": model.model_dump(mode="json"), "cluster": {"gpus": 8}})
    assert job.model == model


# Refusals of what is not counted


def test_a_refusal_says_what_is_missing_and_what_is_known() -> None:
    text = refusal({"model_type": "gptx", "num_local_experts": 8})
    assert text.startswith(
        "config.json: model_type 'gptx' is not known yet (experts not counted); nearest: gpt"
    )
    assert "--params" in text
    assert "encoders not counted" in refusal({"model_type": "nothing", "is_encoder_decoder": True})
    assert "nested configs, vision towers not counted" in refusal(
        {"model_type": "nothing", "text_config": {"a": 1}, "vision_config": {"a": 1}}
    )


def test_a_quantised_checkpoint_counts_as_what_it_was_made_from() -> None:
    model = read(LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert counted(model).parameters == counted(read(LLAMA)).parameters
    assert model.quantised is not None
    assert model.quantised.name == "gptq-4bit"
    assert "before quantisation" in model.assumed[0]


@pytest.mark.parametrize(
    "architecture_name",
    [
        "LlamaForSequenceClassification",
        "LlamaModel",
        "LlamaForTokenClassification",
        "MistralForCausalLM",
        "MyLlamaForCausalLM",
        "",
        None,
        3,
        ["a"],
    ],
)
def test_other_heads_are_refused(architecture_name: object) -> None:
    assert refusal(LLAMA | {"architectures": [architecture_name]}).startswith(
        "config.json: architectures: "
    )
    assert refusal(LLAMA | {"architectures": ["LlamaForCausalLM", architecture_name]}).startswith(
        "config.json: architectures: "
    )


def test_architectures_that_is_no_list() -> None:
    assert (
        refusal(LLAMA | {"architectures": "LlamaForCausalLM"})
        == "config.json: architectures: 'LlamaForCausalLM' is not a list of names"
    )


@pytest.mark.parametrize("absent", [None, []])
def test_no_architectures_is_noted(absent: object) -> None:
    assert read(LLAMA | {"architectures": absent}).assumed == (
        "architectures is not given; counted as LlamaForCausalLM",
    )


@pytest.mark.parametrize("key", GUARDED)
def test_guarded_keys(key: str) -> None:
    for config in (LLAMA, GPT2):
        assert refusal(config | {key: {"0": [1]}}).startswith(f"config.json: {key}: ")
        nothings: list[object] = [None, False, {}, 0]
        for nothing in nothings:
            assert read(config | {key: nothing}) == read(config)


@pytest.mark.parametrize(
    "key",
    [
        *(
            "num_experts",
            "n_routed_experts",
            "moe_intermediate_size",
            "lora_rank",
            "kv_lora_rank",
            "mamba_d_state",
            "vision_config",
            "audio_config",
        ),
        *(
            "text_config",
            "latent_size",
            "mtp_num_layers",
            "num_nextn_predict_layers",
            "shared_expert_intermediate_size",
            "num_kv_shared_layers",
        ),
        *(
            "per_layer_config",
            "hidden_size_per_layer_input",
            "block_configs",
            "quant_method",
            "attn_config",
            "adapter_layers",
            "encoder_layers",
        ),
    ],
)
def test_unknown_keys_that_speak_of_tensors_are_refused(key: str) -> None:
    assert refusal(LLAMA | {key: 8}).startswith(
        f"config.json: {key}: is not known for model_type llama, and "
    )
    assert refusal({"model_type": "somethingelse", key: 8}).count("not counted") == 1
    assert read(LLAMA | {key: 0}).assumed == (
        f"config key not known, taken as changing nothing: {key}",
    )


def test_other_unknown_keys_are_noted() -> None:
    assert read(LLAMA | {"foo": 1}).assumed == (
        "config key not known, taken as changing nothing: foo",
    )
    many = read(LLAMA | {f"foo_{i}": 1 for i in range(8)}).assumed
    assert many == (
        "config keys not known, taken as changing nothing: foo_0, foo_1, foo_2, foo_3, "
        "foo_4, foo_5 and 2 more",
    )
    assert "\n" not in read(LLAMA | {"a\nb": 1}).assumed[0]
    assert read(LLAMA | {"image_token_id": 5}).assumed == (
        "config key not known, taken as changing nothing: image_token_id",
    )


def test_neutral_keys_are_neutral() -> None:
    for family in KINDS.values():
        read = family.known_keys() - {*family.neutral, "hidden_act"}
        assert not (NEUTRAL | set(family.neutral)) & (read | GUARDED.keys())
    assert not NEUTRAL & GUARDED.keys()


@pytest.mark.parametrize("spelling", ["torch_dtype", "dtype"])
@pytest.mark.parametrize("rope", ["rope_scaling", "rope_parameters"])
def test_both_versions_spellings(spelling: str, rope: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    model = read(
        config
        | {
            spelling: "bfloat16",
            rope: {"rope_type": "llama3", "rope_theta": 5e5},
            "transformers_version": "5.24.0",
        }
    )
    assert model == read(LLAMA)


def test_code_of_its_own_is_noted() -> None:
    note = "auto_map points to code of its own; counted as transformers' LlamaForCausalLM"
    assert read(LLAMA | {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}).assumed == (note,)


def test_layer_types() -> None:
    mixed = ["sliding_attention", "full_attention"] * 16
    assert read(
        LLAMA | {"layer_types": mixed, "sliding_window": 4096, "use_sliding_window": True}
    ) == read(LLAMA)
    assert refusal(LLAMA | {"layer_types": [*mixed, "linear_attention"]}).startswith(
        "config.json: layer_types: 'linear_attention' is not counted yet"
    )
    assert (
        refusal(LLAMA | {"layer_types": "full_attention"})
        == "config.json: layer_types: 'full_attention' is not a list of names"
    )
    assert refusal(LLAMA | {"layer_types": [{}]}).startswith(
        "config.json: layer_types: a table is not counted yet"
    )


# Dimensions

BAD: list[tuple[Any, str]] = [
    (0, "0 is not at least 1"),
    (-4096, "-4096 is not at least 1"),
    (-0.5, "-0.5 is not a whole number"),
    (4096.5, "4096.5 is not a whole number"),
    (True, "true is not a whole number"),
    (False, "false is not a whole number"),
    (None, "null is not a whole number"),
    ("4096", "'4096' is not a whole number"),
    ([4096], "a list is not a whole number"),
    ({"a": 1}, "a table is not a whole number"),
    (10**12, "1000000000000 is too large"),
    (math.inf, "inf is not a whole number"),
    (math.nan, "nan is not a whole number"),
]
NULL_MEANS_DERIVED = {"head_dim", "num_key_value_heads", "n_inner"}


@pytest.mark.parametrize(("bad", "words"), BAD, ids=lambda value: str(value)[:20])
def test_dimensions_that_are_none(bad: object, words: str) -> None:
    llama = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
    )
    gpt2 = ("n_layer", "n_embd", "n_head", "n_inner", "n_positions", "vocab_size")
    for config, keys in ((LLAMA, llama), (GPT2, gpt2)):
        for key in keys:
            if bad is None and key in NULL_MEANS_DERIVED:
                assert read(config | {key: bad}).hidden
            else:
                assert refusal(config | {key: bad}).startswith(f"config.json: {key}: {words}")


def test_numbers_too_long_to_print() -> None:
    assert (
        refusal(LLAMA | {"hidden_size": -(10**5000)})
        == "config.json: hidden_size: a negative number of hundreds of digits is not at least 1"
    )
    refusal(LLAMA | {"hidden_size": 10**5000})
    refusal(LLAMA | {"attention_dropout": 10**5000})


def test_a_whole_float_is_whole() -> None:
    assert read(LLAMA | {"hidden_size": 4096.0}).hidden == 4096


@pytest.mark.parametrize("model_type", KINDS)
def test_required_dimensions(model_type: str) -> None:
    config = next(
        entry["config"] for entry in TENSORS.values() if entry["config"]["model_type"] == model_type
    )
    family = KINDS[model_type]
    assert {"vocab_size"} < set(family.required)
    assert len(family.required) >= 5
    for key in family.required:
        spellings = {key, *family.aliases.get(key, [])}
        assert (
            refusal({name: value for name, value in config.items() if name not in spellings})
            == f"config.json: {key} is missing"
        )


@pytest.mark.parametrize("model_type", KINDS)
def test_every_key_of_a_dimension_is_required_optional_or_has_a_default(model_type: str) -> None:
    family = KINDS[model_type]
    assert family.dimensions.keys() <= Model.model_fields.keys()
    described = [*family.required, *family.optional, *family.defaults]
    assert sorted(described) == sorted({*family.read(), *family.dropouts})
    assert {*family.nullable} <= {*family.required, *family.optional}


@pytest.mark.parametrize("bad", [None, 0, 1, "true", [True]])
@pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_flags_that_are_none(bad: object, key: str) -> None:
    assert refusal(LLAMA | {key: bad}).startswith(f"config.json: {key}: ")
    assert refusal(LLAMA | {key: bad}).endswith(" is not true or false")


def test_the_config_key_is_blamed_for_a_contradiction() -> None:
    assert (
        refusal(LLAMA | {"num_key_value_heads": 3})
        == "config.json: num_key_value_heads: 3 does not divide the 32 heads"
    )
    assert refusal(LLAMA | {"num_attention_heads": 24}).startswith(
        "config.json: num_attention_heads: 24 does not divide the hidden size 4096"
    )
    assert refusal({**GPT2, "n_head": 7}).startswith(
        "config.json: n_head: 7 does not divide the hidden size 768"
    )


def test_two_spellings_of_one_dimension() -> None:
    assert read(GPT2 | {"hidden_size": 768}) == read(GPT2)
    assert (
        refusal(GPT2 | {"hidden_size": 1024})
        == "config.json: hidden_size: 1024 contradicts n_embd 768"
    )


@pytest.mark.parametrize(
    ("model_type", "tied"),
    [
        ("gpt2", True),
        ("llama", False),
        ("mistral", False),
        ("qwen2", False),
        ("qwen3", False),
        ("smollm3", True),
    ],
)
def test_tied_by_default(model_type: str, tied: bool) -> None:
    config = next(
        entry["config"] for entry in TENSORS.values() if entry["config"]["model_type"] == model_type
    )
    config = {key: value for key, value in config.items() if key != "tie_word_embeddings"}
    assert read(config).tied_embeddings is tied
    assert read(config | {"tie_word_embeddings": not tied}).tied_embeddings is not tied


def test_a_default_of_the_class_is_noted() -> None:
    model = read(TENSORS["qwen3-defaults"]["config"])
    assert model.head_dim == 128
    assert model.assumed == ("head_dim is not given; 128 (Qwen3ForCausalLM's default)",)


# Dropout


def test_gpt2_dropout() -> None:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0, "attn_pdrop": None}
    assert read(GPT2).dropout == 0.1
    assert read(GPT2 | none).dropout == 0.0
    assert read(GPT2 | none).assumed == ()
    model = read(GPT2 | {"embd_pdrop": 0.0, "attn_pdrop": 0.2})
    assert model.dropout == 0.2
    assert model.assumed == (
        "dropout 0.2 everywhere (resid_pdrop 0.1, embd_pdrop 0, attn_pdrop 0.2)",
    )


def test_llama_dropout() -> None:
    model = read(LLAMA | {"attention_dropout": 0.1})
    assert model.dropout == 0.0
    assert model.assumed == (
        "attention_dropout 0.1: its masks are not counted (flash attention keeps none)",
    )


@pytest.mark.parametrize("bad", [1, 1.5, -0.1, "0.1", True, [0.1], math.nan, math.inf])
def test_rates_that_are_none(bad: object) -> None:
    assert refusal(GPT2 | {"resid_pdrop": bad}).startswith("config.json: resid_pdrop: ")
    assert refusal(LLAMA | {"attention_dropout": bad}).startswith(
        "config.json: attention_dropout: "
    )


@pytest.mark.parametrize("bad", [3, True, ["gelu"], {"a": 1}, None])
def test_activations_are_named(bad: object) -> None:
    assert refusal(GPT2 | {"activation_function": bad}).startswith(
        "config.json: activation_function: "
    )
    assert refusal(LLAMA | {"hidden_act": bad}).startswith("config.json: hidden_act: ")


# Titles


TITLES = [
    *[("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"), (" a ", "a")],
    *[(bad, "llama (config.json)") for bad in ("", None, 3, "a\nb", "x" * 201)],
]


@pytest.mark.parametrize(("given", "title"), TITLES)
def test_title(given: object, title: str) -> None:
    assert read(LLAMA | {"_name_or_path": given}).title == title


@pytest.mark.parametrize("value", [None, 3, "", "no such", [], {"a": 1}])
def test_model_types_that_are_none(value: object) -> None:
    assert refusal({"model_type": value}).startswith("config.json: model_type")
    assert (
        refusal({})
        == "config.json: model_type is missing; this is no config.json of a Hugging Face model"
    )
