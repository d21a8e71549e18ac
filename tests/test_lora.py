"""LoRA: which layers are adapted, the adapters' counts beside PEFT's, and what a frozen base
costs.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.running import run
from zerocalc import presets
from zerocalc.answers.planner import plan
from zerocalc.estimator import estimate
from zerocalc.huggingface.config import load_model, model_from_config
from zerocalc.model.adapters import Names, adapted, adapters
from zerocalc.model.build import architecture
from zerocalc.model.counting import count_parameters
from zerocalc.sharding.rank import rank
from zerocalc.spec.base import FieldError, explain
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import Recipe

DATA = Path(__file__).parent / "data"
MEASURED: list[dict[str, Any]] = json.loads((DATA / "lora_params.json").read_text("utf-8"))["runs"]
EXPERTS: list[dict[str, Any]] = json.loads((DATA / "lora_experts.json").read_text("utf-8"))["runs"]
FAMILIES: list[dict[str, Any]] = json.loads((DATA / "lora_families.json").read_text("utf-8"))[
    "runs"
]
DEFAULTS: dict[str, Any] = json.loads((DATA / "family_defaults.json").read_text("utf-8"))[
    "families"
]
SHARED_BLOCKS = {"zamba", "zamba2"}
"""PEFT gives every use of their shared block an adapter of its own; which layers those are is not
known here, and refused.
"""

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
TARGETS = {
    "q,v": ["q_proj", "v_proj"],
    "q,k,v,o": ATTENTION,
    "mlp": MLP,
    "all": ATTENTION + MLP,
    "all-linear": "all-linear",
}
PRESET = {"llama3-8b": "llama-3-8b", "llama3-70b": "llama-3-70b", "llama2-7b": "llama-2-7b"}
OF_EXPERTS = {"experts.up": "base_layer", "experts.down": "experts", "router.weight": "gate"}
"""What PEFT's wrappers of parameters are called: those of the experts are nested."""
LLAMA = presets.load("models", "llama-3-8b")


def with_lora(
    model: Model | dict[str, Any], rank: int = 16, targets: Any = None, **more: Any
) -> Model:
    """A model with adapters; without targets those that PEFT would take."""
    data = model.model_dump(mode="json") if isinstance(model, Model) else dict(model)
    given = {"rank": rank, **({} if targets is None else {"targets": targets}), **more}
    return Model.model_validate({**data, "lora": given})


def trained(model: Model) -> int:
    return count_parameters(model).trainable


def job(**lora: Any) -> Job:
    return Job.model_validate(
        {"model": {**LLAMA, "lora": {"rank": 16, **lora}}, "cluster": {"gpus": 8}}
    )


@pytest.mark.parametrize(
    "known", MEASURED, ids=lambda known: f"{known['model']}-{known['targets']}-{known['r']}"
)
def test_counts_are_those_of_peft(known: dict[str, Any]) -> None:
    name = known["model"]
    base = (
        load_model(str(DATA / "configs" / "mixtral-8x7b.json"))
        if name == "mixtral-8x7b"
        else presets.load("models", PRESET.get(name, name))
    )
    model = with_lora(base, known["r"], TARGETS[known["targets"]])
    if "error" in known:
        with pytest.raises(FieldError, match="no linear layer of this model is called gate_proj"):
            count_parameters(model)
        return
    counts = count_parameters(model)
    assert (counts.trainable, counts.total) == (known["trainable"], known["total"])
    arch = architecture(model)
    assert arch is not None
    made = adapters(model, arch)
    assert made is not None
    by_name: Counter[str] = Counter()
    for count, layer in made.layers:
        name = layer.path.rpartition(".")[2]
        by_name[OF_EXPERTS.get(layer.path, name)] += layer.elements * count
    assert by_name == {
        name.removesuffix(" float32"): count for name, count in known["by_module"].items()
    }
    rows = {
        row.name: row
        for row in Recipe.model_validate(presets.load("recipes", "mixed-adam"))
        .for_adapters("fp32")
        .rows
    }
    assert (rows["adapter gradients"].dtype, known["grad_bytes_fp32"]) == (
        "fp32",
        4 * counts.trainable,
    )
    assert "adapter master weights" not in rows
    assert known["adam_bytes_fp32"] == 8 * counts.trainable


@pytest.mark.parametrize(
    "known", FAMILIES, ids=lambda known: f"{known['family']}-{known['targets']}"
)
def test_every_family_is_adapted_as_peft_does(known: dict[str, Any]) -> None:
    family = known["family"]
    model = with_lora(model_from_config(DEFAULTS[family]["config"], family), 4, known["targets"])
    if "error" in known or known.get("refused") or family in SHARED_BLOCKS:
        with pytest.raises(FieldError):
            count_parameters(model)
    else:
        assert trained(model) == known["trainable"]


@pytest.mark.parametrize("family", [name for name in DEFAULTS if name not in SHARED_BLOCKS])
def test_every_matrix_of_a_family_has_a_known_name(family: str) -> None:
    model = model_from_config(DEFAULTS[family]["config"], family)
    arch, names = architecture(model), Names(model)
    assert arch is not None
    for module in {
        module.name: module
        for part in (arch.before, *(modules for _, modules in arch.groups), arch.after)
        for module in part
    }.values():
        for tensor, shape, linear in module.parameter_rows:
            if linear and len(shape) > 1 and not tensor.endswith("bias"):
                assert names.of(module.name, tensor) is not None, f"{module.name}/{tensor}"


@pytest.mark.parametrize("family", ["gemma", "ernie4_5"])
def test_a_decoder_written_out_for_its_norms_is_adapted_as_llamas_kind_is(family: str) -> None:
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    config = {**sizes, "vocab_size": 1000, "tie_word_embeddings": True}
    ours, llama = (
        model_from_config({**config, "model_type": name}, "config.json")
        for name in (family, "llama")
    )
    for targets in (None, "all-linear", ["gate_proj", "o_proj"]):
        assert (
            trained(with_lora(ours, targets=targets))
            == trained(with_lora(llama, targets=targets))
            > 0
        )


NAMED = st.lists(st.sampled_from(ATTENTION + MLP), min_size=1, unique=True)


@given(rank=st.integers(1, 512), factor=st.integers(2, 9), first=NAMED, second=NAMED)
def test_counts_grow_with_rank_and_targets(
    rank: int, factor: int, first: list[str], second: list[str]
) -> None:
    small = trained(with_lora(LLAMA, rank, first))
    assert trained(with_lora(LLAMA, rank * factor, first)) == factor * small
    union = trained(with_lora(LLAMA, rank, [*first, *second]))
    assert (
        max(small, trained(with_lora(LLAMA, rank, second)))
        <= union
        <= trained(with_lora(LLAMA, rank, "all-linear"))
    )
    assert union == sum(trained(with_lora(LLAMA, rank, [name])) for name in {*first, *second})


@given(
    stage=st.integers(0, 3),
    recipe=st.sampled_from(presets.names("recipes")),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    gpus=st.sampled_from([1, 2, 8, 64]),
    targets=st.sampled_from(["q_proj", "all-linear", "lm_head,embed_tokens"]),
)
def test_a_frozen_base_is_held_and_nothing_more(
    stage: int, recipe: str, dtype: str, gpus: int, targets: str
) -> None:
    frozen = Job.model_validate(
        {
            "model": {**LLAMA, "lora": {"rank": 8, "targets": targets, "dtype": dtype}},
            "cluster": {"gpus": gpus},
            "recipe": recipe,
        }
    )
    total, few = count_parameters(frozen.model).total, trained(frozen.model)
    answer = estimate(frozen, stage)
    terms = answer.memory.gpu.terms
    assert sum(t.bytes for t in terms if t.kind in ("gradients", "optimizer", "copies")) <= 32 * few
    held = next(t for t in terms if t.name == "frozen weights")
    size = 4 if frozen.recipe.compute == "fp32" else 2
    assert held.bytes == size * -(-(total - few) // (gpus if stage == 3 else 1))
    reduced = [
        c
        for c in answer.communication.collectives
        if c.moment == "backward" and "gradients" in c.what
    ]
    assert sum(c.tensor_bytes * c.count for c in reduced) <= 4 * few
    if stage == 3 and gpus > 1:
        gathers = [c for c in answer.communication.collectives if c.moment == "forward"]
        in_use = {
            c.what.replace(" weights", "").replace("'s", ""): c.tensor_bytes
            for c in gathers
            if c.dtype != dtype
        }
        for t in terms:
            if t.kind == "gathered" and t.name == "gathered layers":
                assert t.bytes == t.inputs["units_in_flight"] * in_use.get(
                    "layer", t.bytes // t.inputs["units_in_flight"]
                )


@pytest.mark.parametrize(
    ("dtype", "recipe", "bytes_per_parameter"),
    [
        ("fp32", "mixed-adam", 16),
        ("bf16", "mixed-adam", 16),
        ("fp32", "megatron", 16),
        ("bf16", "megatron", 18),
        ("fp32", "sgd", 8),
    ],
)
def test_adapters_have_their_own_rows(dtype: str, recipe: str, bytes_per_parameter: int) -> None:
    rows = Recipe.model_validate(presets.load("recipes", recipe)).for_adapters(dtype)  # type: ignore[arg-type]
    assert rows.bytes_per_parameter == bytes_per_parameter
    assert [row.name for row in rows.rows if row.of == "frozen"] == ["frozen weights"]


def test_a_copy_of_weights_is_marked_in_every_recipe() -> None:
    for name in presets.names("recipes"):
        for row in presets.load("recipes", name)["rows"]:
            assert row.get("copies_weights", False) == (row["name"] == "master weights")


def test_what_was_not_given_is_said_and_kept() -> None:
    answer = plan(job())
    assert "LoRA on q_proj, v_proj (PEFT's default for Llama)" in answer.assumptions
    assert Job.model_validate(answer.job.model_dump(mode="json")) == answer.job
    assert not any(
        "default for Llama" in words for words in plan(job(targets="k_proj")).assumptions
    )
    again = answer.job.model_dump(mode="json")
    again["model"]["lora"]["targets"] = "k_proj"
    assert not any(
        "default for Llama" in words for words in plan(Job.model_validate(again)).assumptions
    )
    passed_over = plan(job(targets="q_proj,c_attn")).assumptions
    assert any(words.startswith("c_attn: no such linear layer") for words in passed_over)


def test_which_tensors_are_adapted() -> None:
    model = with_lora(LLAMA, targets="q_proj,mlp.down_proj")
    assert [
        name
        for name in (
            "attention.q.weight",
            "attention.q",
            "attention.k",
            "mlp.down.weight",
            "mlp.up",
        )
        if adapted(model, name)
    ] == [
        "attention.q.weight",
        "attention.q",
        "mlp.down.weight",
    ]
    gpt2 = with_lora(presets.load("models", "gpt2"), 8)
    assert adapted(gpt2, "attention.qkv")
    assert not adapted(gpt2, "attention.out")
    assert trained(gpt2) == 12 * 8 * (768 + 3 * 768)  # one layer c_attn
    assert trained(with_lora(presets.load("models", "gpt2"), 8, "mlp.c_proj")) == 12 * 8 * (
        3072 + 768
    )
    assert trained(with_lora(presets.load("models", "gpt2"), 8, "lm_head")) == 8 * (50257 + 768)
    assert not adapted(Model.model_validate(LLAMA), "attention.q")


@pytest.mark.parametrize(
    ("model", "blamed", "words"),
    [
        ({"params": "7B", "lora": {"rank": 8}}, "model.lora.rank", "give an architecture"),
        ({**LLAMA, "trainable": 5, "lora": {"rank": 8}}, "model.trainable", "contradicts LoRA"),
        (
            {**LLAMA, "lora": {"targets": "q_proj"}},
            "model.lora.targets",
            "need a rank (model.lora.rank)",
        ),
        ({**LLAMA, "lora": {"rank": 0}}, "model.lora.rank", "at least 1"),
        (
            {**LLAMA, "lora": {"rank": 8, "targets": "q_proj,"}},
            "model.lora.targets",
            "not the name of a linear layer",
        ),
        (
            {**LLAMA, "lora": {"rank": 8, "targets": "all-linear,q_proj"}},
            "model.lora.targets",
            "name it alone",
        ),
        ({**LLAMA, "lora": {"rank": 8, "use_dora": True}}, "model.lora.use_dora", "DoRA"),
        ({**LLAMA, "lora": {"rank": 8, "alpha": 16}}, "model.lora.alpha", "not a known field"),
        ({**LLAMA, "lora": 16}, "model.lora", "not a table of fields"),
    ],
)
def test_what_is_refused(model: dict[str, Any], blamed: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(model)
    path, text = explain(caught.value)
    assert (path if path.startswith("model") else f"model.{path}").rstrip(".") == blamed
    assert words in text


def test_half_of_a_fused_expert_is_refused() -> None:
    model = with_lora(load_model(str(DATA / "configs" / "mixtral-8x7b.json")), 8, "q_proj,w1")
    with pytest.raises(FieldError, match="w1 is fused with w3"):
        count_parameters(model)


def test_params_takes_the_flags() -> None:
    counts = json.loads(
        run(
            "params", "llama-3-8b", "--lora-rank", "16", "--lora-targets", "all-linear", "--json"
        ).out
    )
    assert (counts["total"], counts["trainable"], counts["adapters"]) == (
        8_072_204_288,
        41_943_040,
        41_943_040,
    )
    refused = run("params", "llama-3-8b", "--lora-rank", "16", "--lora-targets", "c_attn")
    assert refused.status == 2
    assert refused.err.startswith(
        "error: --lora-targets: no linear layer of this model is called c_attn; it has "
        "embed_tokens, q_proj"
    )


def test_moments_are_like_the_weights_they_belong_to() -> None:
    def optimizer_bytes(recipe: str, dtype: str) -> int:
        job = {
            "model": {**LLAMA, "lora": {"rank": 8, "dtype": dtype}},
            "cluster": {"gpus": 1},
            "recipe": recipe,
        }
        answer = estimate(Job.model_validate(job), 0)
        return sum(t.bytes for t in answer.memory.gpu.terms if t.kind == "optimizer")

    assert optimizer_bytes("pure-bf16-adam", "fp32") == 2 * optimizer_bytes(
        "pure-bf16-adam", "bf16"
    )
    assert optimizer_bytes("fsdp-mixed", "fp32") == 2 * optimizer_bytes("fsdp-mixed", "bf16")


@pytest.mark.parametrize(
    "known", EXPERTS, ids=lambda known: f"{known['config']['model_type']}-{known['lora']['dtype']}"
)
def test_adapters_of_experts_are_added_to_their_weights_and_the_sum_is_kept(
    known: dict[str, Any],
) -> None:
    base = model_from_config(known["config"], "config.json")

    def kept(model: Model) -> int:
        training = {"seq": known["seq"], "micro_batch": 1}
        job = {
            "model": model,
            "cluster": {"gpus": 1},
            "recipe": "pure-bf16-adam",
            "implementation": "huggingface",
            "training": training,
        }
        arch = rank(Job.model_validate(job)).arch
        assert arch is not None
        return sum(module.kept_bytes for module in arch.layer)

    assert kept(with_lora(base, **known["lora"])) - kept(base) == known["added_bytes"]
