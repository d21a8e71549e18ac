"""Quantised configs: which format, what is kept as it was, the bytes that are stored; or one
line.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.huggingface.test_measured_counts import MEASURED
from zerocalc.huggingface.config import load_model, model_from_config
from zerocalc.model.counting import count_parameters
from zerocalc.presets import PresetError
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
LLAMA = json.loads((CONFIGS / "llama-3.1-8b.json").read_text("utf-8"))
MOE = MEASURED["qwen3-30b-a3b"]["config"]
LAYERS = 32
Q, ATTENTION, MLP = 4096 * 4096, 2 * 4096 * 4096 + 2 * 1024 * 4096, 3 * 4096 * 14336
HEAD = 128256 * 4096


def read(table: dict[str, Any], base: dict[str, Any] = LLAMA) -> Model:
    return model_from_config({**base, "quantization_config": table}, "config.json")


def refusal(table: object, base: dict[str, Any] = LLAMA) -> str:
    with pytest.raises(PresetError) as error:
        model_from_config({**base, "quantization_config": table}, "config.json")
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix("config.json: ")


def kept(table: dict[str, Any], base: dict[str, Any] = LLAMA) -> int:
    """Parameters that a format keeps as they were, beyond embedding, norms and head."""
    model = read(table, base)
    assert model.quantised is not None
    counts, plain = (
        count_parameters(model),
        count_parameters(model_from_config(base, "config.json")),
    )
    assert counts.total == plain.total
    assert counts.stored is not None
    elements = counts.stored.not_quantised // 2
    return (
        elements
        - plain.components["embedding"]
        - plain.components["norms"]
        - plain.components["head"]
    )


BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FOUR_BITS = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 128,
}
EIGHT_BITS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}


def compressed(
    form: str = "pack-quantized", weights: dict[str, Any] | None = None, **others: Any
) -> dict[str, Any]:
    group = {
        "targets": others.pop("targets", ["Linear"]),
        "weights": weights or FOUR_BITS,
        "input_activations": others.pop("inputs", None),
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **others,
    }


# Whole checkpoints whose size is known


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        (
            "gpt-oss-20b",
            13_761_264_768,
        ),  # total_size in openai/gpt-oss-20b's model.safetensors.index.json
        ("llama-2-70b-gptq", 36_638_572_544),
    ],
)
def test_a_checkpoint_takes_what_its_index_says(name: str, stored: int) -> None:
    assert count_parameters(load_model(str(CONFIGS / f"{name}.json"))).stored_bytes == stored


@pytest.mark.parametrize(
    ("name", "skipped", "stored"),
    [
        ("llama3-8b", None, 9082904576),
        ("llama3-8b", ["lm_head", "model.layers.0.self_attn", "model.layers.1.mlp"], 9300955136),
        ("llama3-8b", ["lm_head", "model.layers.*.self_attn.o_proj"], 9619644416),
        ("llama3-8b", ["lm_head", "down_proj"], 10961494016),
        ("llama3.2-1b", ["lm_head", "model.layers.0.self_attn", "model.layers.1.mlp"], 1559590400),
        ("qwen3-30b-a3b", None, 31174545408),
        (
            "qwen3-30b-a3b",
            ["lm_head", "model.layers.0.self_attn", "model.layers.1.mlp"],
            31797247488,
        ),
        ("mixtral-8x7b", ["lm_head", "model.layers.*.self_attn.o_proj"], 47514329088),
        ("qwen2.5-7b", ["lm_head", "down_proj"], 10608141824),
        ("phi3-mini", ["lm_head", "down_proj"], 4824274944),
        ("gemma2-9b", ["lm_head", "model.layers.0.self_attn", "model.layers.1.mlp"], 10359980288),
        ("gpt-neox-20b", None, 21182668800),
        ("olmo2-7b", ["lm_head", "down_proj"], 9565298688),
        ("opt-1.3b", None, 1423851520),
        ("bloom-560m", None, 816513024),
    ],
)
def test_fp8_of_classes_converted_by_transformers(
    name: str, skipped: list[str] | None, stored: int
) -> None:
    """transformers 5.24.0: replace_with_fp8_linear on the meta device, every parameter's bytes,
    biases in 16 bits.
    """
    table = {**FP8, "modules_to_not_convert": skipped}
    assert (
        count_parameters(
            read(table, {**MEASURED[name]["config"], "dtype": "bfloat16"})
        ).stored_bytes
        == stored
    )


SMALL = {
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 320,
        "intermediate_size": 888,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "vocab_size": 1000,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 240,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 1000,
        "n_positions": 128,
    },
    "phi3": {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "hidden_size": 320,
        "intermediate_size": 888,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "vocab_size": 1000,
    },
}


@pytest.mark.parametrize(
    ("name", "skipped", "stored"),
    [
        ("llama", None, (3156288, 3024300, 4630752)),
        ("llama", ["lm_head"], (3156288, 3024300, 4630752)),
        ("llama", ["model.layers.1.self_attn", "v_proj"], (3108128, 2969432, 4597888)),
        ("gpt2", None, (1332992, 1276776, 1954560)),
        ("phi3", None, (3415008, 3250812, 5111232)),
        ("phi3", ["model.layers.1.self_attn", "v_proj"], (4426816, 4292360, 5806432)),
    ],
)
def test_whole_models_quantised_by_bitsandbytes(
    name: str, skipped: list[str] | None, stored: tuple[int, int, int]
) -> None:
    """bitsandbytes 0.50.2 on CPU, each nn.Linear (and Conv1D) that transformers 5.24.0 converts:
    NF4, NF4 with nested scales, int8.
    """
    base = {**SMALL[name], "dtype": "bfloat16"}
    four = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "llm_int8_skip_modules": skipped,
    }
    eight = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": skipped}
    tables = (four, {**four, "bnb_4bit_use_double_quant": True}, eight)
    assert tuple(count_parameters(read(table, base)).stored_bytes for table in tables) == stored


# Formats


@pytest.mark.parametrize(
    ("table", "name", "changes"),
    [
        (BNB, "fp4", {}),
        (
            {**BNB, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
            "nf4-double",
            {"nested": 256},
        ),
        ({"load_in_8bit": True}, "int8", {}),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            "gptq-4bit",
            {"scale_columns": 128},
        ),
        (
            {"quant_method": "gptq", "bits": 3, "group_size": -1},
            "gptq-3bit",
            {"scale_columns": 0, "bits": 3},
        ),
        (
            {
                "quant_method": "awq",
                "bits": 4,
                "group_size": 64,
                "version": "GEMM",
                "zero_point": True,
            },
            "awq-4bit",
            {"scale_columns": 64},
        ),
        (FP8, "fp8", {"scale_rows": 128}),
        (
            {"quant_method": "fp8", "activation_scheme": "static"},
            "fp8",
            {"scale_rows": 0, "scale_columns": 0, "tensor_bytes": 4},
        ),
        ({**FP8, "scale_fmt": "ue8m0"}, "fp8", {"scale_bytes": 1}),
        (
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
            "fbgemm_fp8",
            {"scale_rows": 1, "scale_columns": 0},
        ),
        (compressed(), "pack-quantized", {"scale_columns": 128, "tensor_bytes": 16}),
        (
            compressed(weights={**FOUR_BITS, "symmetric": False}),
            "pack-quantized",
            {"zero_points": True},
        ),
        (
            compressed(weights={**FOUR_BITS, "actorder": "group"}),
            "pack-quantized",
            {"index_bytes": 4},
        ),
        (
            compressed("float-quantized", EIGHT_BITS),
            "float-quantized",
            {"scale_rows": 1, "scale_columns": 0, "scale_bytes": 2},
        ),
        (
            compressed(
                "float-quantized",
                {**EIGHT_BITS, "strategy": "tensor"},
                inputs={"num_bits": 8, "strategy": "tensor", "dynamic": False},
            ),
            "float-quantized",
            {"scale_rows": 0, "tensor_bytes": 2},
        ),
        (
            compressed(
                "float-quantized",
                {**EIGHT_BITS, "strategy": "block", "block_structure": [128, 128]},
            ),
            "float-quantized",
            {"scale_rows": 128, "scale_columns": 128},
        ),
        (
            compressed("int-quantized", {**EIGHT_BITS, "type": "int"}, inputs={"dynamic": True}),
            "int-quantized",
            {"scale_columns": 0, "tensor_bytes": 0},
        ),
    ],
)
def test_formats(table: dict[str, Any], name: str, changes: dict[str, Any]) -> None:
    found = read(table).quantised
    assert found is not None
    assert found.name == name
    assert {key: getattr(found, key) for key in changes} == changes
    assert found.kept["head"] is True


def test_scales_follow_a_checkpoint_in_fp32() -> None:
    found = read(
        compressed("float-quantized", EIGHT_BITS), {**LLAMA, "torch_dtype": "float32"}
    ).quantised
    assert found is not None
    assert found.scale_bytes == 4


# What is kept as it was


@pytest.mark.parametrize(
    ("table", "elements"),
    [
        (FP8, 0),
        ({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.3.self_attn.q_proj"]}, Q),
        (
            {
                **FP8,
                "ignored_layers": ["lm_head", *(f"model.layers.{i}.self_attn" for i in range(4))],
            },
            4 * ATTENTION,
        ),
        ({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.31"]}, ATTENTION + MLP),
        ({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.1"]}, ATTENTION + MLP),
        ({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.99.mlp"]}, 0),
        ({**FP8, "modules_to_not_convert": ["q_proj"]}, LAYERS * Q - HEAD),
        ({**FP8, "modules_to_not_convert": ["lm_head", "self_attn"]}, LAYERS * ATTENTION),
        ({**FP8, "modules_to_not_convert": []}, -HEAD),
        ({**BNB, "llm_int8_skip_modules": ["lm_head", "model.layers.(0|1|2).mlp"]}, 3 * MLP),
        ({**BNB, "llm_int8_skip_modules": ["lm_head", r"model\.layers\.\d+\.mlp"]}, LAYERS * MLP),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True}, -HEAD),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*self_attn.*": {}}},
            LAYERS * ATTENTION,
        ),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {r"-:model\.layers\.5\..*": {}}},
            ATTENTION + MLP,
        ),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "modules_in_block_to_quantize": [
                    ["self_attn.q_proj"],
                    ["mlp.up_proj", "mlp.gate_proj", "mlp.down_proj"],
                ],
            },
            LAYERS * (ATTENTION - Q),
        ),
        ({"quant_method": "awq", "modules_to_not_convert": ["self_attn.q_proj"]}, LAYERS * Q),
        (compressed(), 0),
        (compressed(ignore=[]), -HEAD),
        (compressed(ignore=["re:.*lm_head", "re:.*self_attn.*"]), LAYERS * ATTENTION),
        (
            compressed(
                ignore=[
                    "lm_head",
                    "model.layers.0.self_attn.q_proj",
                    "model.layers.7.self_attn.q_proj",
                ]
            ),
            2 * Q,
        ),
        (compressed(targets=["re:.*mlp.*"]), LAYERS * ATTENTION),
        (compressed(targets=["re:.*(q|k|v|o)_proj$"]), LAYERS * MLP),
        (compressed(targets=["re:.*mlp.*", "re:.*layers.4.self_attn.*"]), (LAYERS - 1) * ATTENTION),
    ],
)
def test_kept_modules(table: dict[str, Any], elements: int) -> None:
    assert kept(table) == elements


def test_layers_of_experts_are_told_apart() -> None:
    """Qwen3's lists name each router and norm; single layers of a model whose layers differ fall
    into their groups.
    """
    expert = 3 * 768 * 2048 * 128
    routers = [f"model.layers.{i}.mlp.gate" for i in range(48)]
    norms = [f"model.layers.{i}.input_layernorm" for i in range(48)]
    table = {**FP8, "modules_to_not_convert": ["lm_head", *routers, *norms]}
    assert kept(table, MOE) == kept(FP8, MOE)  # routers are no layers that a quantiser meets
    assert (
        kept({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.2.mlp.experts"]}, MOE)
        == kept(FP8, MOE) + expert
    )
    assert not any("no known" in note for note in read(table, MOE).assumed)
    base = MEASURED["deepseek-v2-lite"]["config"]
    first = kept({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp"]}, base) - kept(
        FP8, base
    )
    second = kept(
        {**FP8, "modules_to_not_convert": ["lm_head", "model.layers.1.mlp"]}, base
    ) - kept(FP8, base)
    assert first == 3 * 2048 * 10944
    assert second == 64 * 3 * 2048 * 1408 + 3 * 2048 * 2816


def test_names_that_mean_nothing_are_noted() -> None:
    assert any(
        "names no known linear layer: 'tower'" in note
        for note in read({**FP8, "modules_to_not_convert": ["lm_head", "tower"]}).assumed
    )
    strange = read(
        {**FP8, "modules_to_not_convert": ["lm_head", "model.layers.1.mixer.up"]}
    ).assumed
    assert any("'mixer.up'" in note for note in strange)


def test_unknown_keys_are_noted() -> None:
    assert (
        "quantization_config: not known, taken as changing nothing: 'foo'"
        in read({**FP8, "foo": 1}).assumed
    )


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("gptq", "quantization_config: is not a table"),
        ({"quant_method": "aqlm"}, "quantization_config.quant_method: 'aqlm' is not known"),
        (
            {"quant_method": "gptqq"},
            "quantization_config.quant_method: 'gptqq' is not known; nearest: gptq",
        ),
        ({"bits": 4}, "quantization_config.quant_method: none is not known"),
        ({"quant_method": ["gptq"]}, "quantization_config.quant_method: a list is not known"),
        ({"quant_method": "gptq"}, "quantization_config.bits: is missing"),
        ({"quant_method": "gptq", "bits": 5}, "quantization_config.bits: 5 is not counted yet"),
        (
            {"quant_method": "gptq", "bits": True},
            "quantization_config.bits: true is not counted yet",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 0},
            "quantization_config.group_size: 0 is not a group's size",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
            "quantization_config.checkpoint_format: 'marlin' is not counted yet",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}},
            "quantization_config.dynamic: gives layers settings of their own",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": ["q"]},
            "quantization_config.modules_in_block_to_quantize: is not a list",
        ),
        (
            {"quant_method": "awq", "version": "gemv"},
            "quantization_config.version: 'gemv' is not counted yet",
        ),
        (
            {"quant_method": "bitsandbytes"},
            "quantization_config: says neither load_in_4bit nor load_in_8bit",
        ),
        ({**BNB, "load_in_8bit": True}, "quantization_config: says both"),
        (
            {**BNB, "bnb_4bit_quant_type": "int4"},
            "quantization_config.bnb_4bit_quant_type: 'int4' is not counted yet",
        ),
        (
            {**BNB, "llm_int8_skip_modules": "lm_head"},
            "quantization_config.llm_int8_skip_modules: is not a list of names",
        ),
        (
            {**FP8, "weight_block_size": [128]},
            "quantization_config.weight_block_size: a list is not two sizes",
        ),
        (
            {**FP8, "expert_dtype": "fp4"},
            "quantization_config.expert_dtype: 'fp4' is not counted yet",
        ),
        (
            {**FP8, "modules_to_convert": ["embed"]},
            "quantization_config.modules_to_convert: quantises embeddings too",
        ),
        (
            {**FP8, "modules_to_not_convert": ["(a+)+x"]},
            "quantization_config.modules_to_not_convert: '(a+)+x' is too intricate",
        ),
        (
            {**FP8, "modules_to_not_convert": ["a[", "lm_head"]},
            "quantization_config.modules_to_not_convert: 'a[' is no regular expression",
        ),
        (
            {**FP8, "modules_to_not_convert": ["model.layers.0.mlp.experts.3.up_proj"]},
            "quantization_config.modules_to_not_convert: names single experts",
        ),
        (compressed("dense"), "quantization_config.format: 'dense' is not counted yet"),
        (
            compressed(weights={**FOUR_BITS, "num_bits": 16}),
            "quantization_config.num_bits: 16 is not counted yet",
        ),
        (
            compressed(targets=["LlamaMLP"]),
            "quantization_config.config_groups: targets the class LlamaMLP",
        ),
        (
            {**compressed(), "config_groups": {}},
            "quantization_config.config_groups: has 0 groups of weights",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(table: object, said: str) -> None:
    assert refusal(table).startswith(said)


def test_layers_in_several_places_cannot_be_named_one_by_one() -> None:
    base = json.loads((CONFIGS / "gemma-3-4b-it.json").read_text("utf-8"))
    for name in ("model.layers.0.mlp", "model.layers.[01].mlp.*"):
        assert "names single layers" in refusal({**FP8, "modules_to_not_convert": [name]}, base)


def test_a_vision_tower_is_quantised_where_all_linear_layers_are() -> None:
    base = json.loads((CONFIGS / "gemma-3-4b-it.json").read_text("utf-8"))
    linear = 34 * (4 * 2560 * 2048 // 2 + 2 * 2560 * 2048 // 2 + 3 * 2560 * 10240) + 27 * (
        4 * 1152 * 1152 + 2 * 1152 * 4304
    )
    whole = count_parameters(read({**BNB, "llm_int8_skip_modules": ["lm_head"]}, base))
    assert whole.stored is not None
    assert whole.total - whole.stored.not_quantised // 2 == linear
    for table in (
        {"quant_method": "gptq", "bits": 4},
        {**BNB, "llm_int8_skip_modules": ["lm_head", "vision_tower"]},
    ):
        counts = count_parameters(read(table, base))
        assert (
            counts.stored_bytes is None
        )  # what is named there is not known of other modules than a decoder's
        assert counts.total == 4300079472
        assert any("bytes as stored are not known" in note for note in counts.notes)


def test_what_a_class_keeps_is_not_quantised() -> None:
    """T5's modeling keeps wo (_keep_in_fp32_modules)."""
    base = json.loads((CONFIGS / "flan-t5-xxl.json").read_text("utf-8"))
    counts = count_parameters(read(BNB, base))
    assert counts.stored is not None
    attention, ffn = 4 * 4096 * 4096, 4096 * 10240
    assert counts.total - counts.stored.not_quantised // 2 == 24 * (attention + 2 * ffn) + 24 * (
        2 * attention + 2 * ffn
    )


def test_a_word_of_an_earlier_version_is_read() -> None:
    job = Job.model_validate(
        {
            "model": {"layers": 2, "hidden": 64, "heads": 2, "quantised": "gptq"},
            "cluster": {"gpus": 1},
        }
    )
    assert job.model.quantised is not None
    assert job.model.quantised.bits is None
    assert Job.model_validate(job.model_dump(mode="json")) == job
    with pytest.raises(ValueError, match="nf5"):
        Model.model_validate({"layers": 2, "hidden": 64, "heads": 2, "quantised": "nf5"})


# Fuzz

TABLES: list[dict[str, Any]] = [
    BNB,
    {
        **BNB,
        "bnb_4bit_quant_type": "nf4",
        "llm_int8_skip_modules": ["lm_head", "model.layers.0.mlp"],
    },
    FP8,
    {**FP8, "modules_to_not_convert": ["lm_head", "model.layers.*.mlp", "gate"]},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:x": {}}},
    {"quant_method": "awq", "bits": 4, "version": "gemm"},
    {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    {"quant_method": "fbgemm_fp8"},
    compressed(),
    compressed("float-quantized", EIGHT_BITS, inputs={"dynamic": False, "strategy": "tensor"}),
]
WRONG: list[Any] = [
    None,
    -1,
    0,
    1,
    3,
    True,
    False,
    1.5,
    10**30,
    "x",
    "",
    "lm_head",
    "(",
    [],
    {},
    [1],
    ["a.b"],
    ["re:("],
    {"a": 1},
    math.nan,
    [[]],
    [["q"]],
]


@given(data=st.data())
def test_mutated_tables_give_a_number_or_one_line(data: st.DataObject) -> None:
    table: dict[str, Any] = copy.deepcopy(data.draw(st.sampled_from(TABLES)))
    base = data.draw(
        st.sampled_from(
            [LLAMA, MOE, MEASURED["gpt-oss-20b"]["config"], MEASURED["gpt2-small"]["config"]]
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        inner: dict[str, Any] = table
        deeper: bool = data.draw(st.booleans())
        while deeper and (nested := [value for value in inner.values() if isinstance(value, dict)]):
            inner = nested[data.draw(st.integers(0, len(nested) - 1))]
            deeper = data.draw(st.booleans())
        inner[data.draw(st.sampled_from([*sorted(inner), "ignore", "bits", "group_size"]))] = (
            copy.deepcopy(data.draw(st.sampled_from(WRONG)))
        )
    try:
        model = model_from_config({**base, "quantization_config": table}, "config.json")
    except PresetError as error:
        said = str(error)
        assert "\n" not in said
        assert len(said) < 700
        return
    counts = count_parameters(model)
    assert counts.stored_bytes is None or 0 < counts.stored_bytes <= 5 * counts.total
    assert all("\n" not in note for note in counts.notes)
