"""Adapters under each framework: what is held of them, sent and gathered, from PEFT's own
counts.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import FEW
from tests.test_lora import PRESET, TARGETS, with_lora
from zerocalc import Job, presets
from zerocalc.answers.planner import plan
from zerocalc.estimator import estimate
from zerocalc.results import Estimate
from zerocalc.sharding.rank import rank
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import DTYPE_BYTES

COUNTS = [
    run
    for run in json.loads((Path(__file__).parent / "data" / "lora_params.json").read_text("utf-8"))[
        "runs"
    ]
    if "error" not in run
]
DENSE = [run for run in COUNTS if run["model"] != "mixtral-8x7b"]
GPUS = 4
"""Divides the rank and all sizes of these models, so that nothing is rounded up."""
HELD: dict[tuple[str, int], tuple[int, int, int, int]] = {
    ("deepspeed", 0): (2, 2, 12, 1),
    ("deepspeed", 1): (2, 2, 12, 1),
    ("deepspeed", 2): (2, 2, 12, GPUS),
    ("deepspeed", 3): (2, 2, 12, GPUS),
    ("megatron", 0): (2, 4, 12, 1),
    ("megatron", 1): (2, 4, 12, 1),
    ("torch-ddp", 0): (4, 4, 8, 1),
    ("fsdp1", 0): (4, 4, 8, 1),
    ("fsdp1", 2): (4, 4, 8, GPUS),
    ("fsdp1", 3): (4, 4, 8, GPUS),
    ("fsdp2", 2): (4, 4, 8, GPUS),
    ("fsdp2", 3): (4, 4, 8, GPUS),
    ("torchtitan", 2): (4, 4, 8, GPUS),
    ("torchtitan", 3): (4, 4, 8, GPUS),
}
"""Bytes of an adapter parameter's weight, gradient and optimizer states, and over how many ranks
gradients are divided.
"""
WHOLE_WEIGHTS = {
    ("deepspeed", 0),
    ("deepspeed", 1),
    ("deepspeed", 2),
    ("megatron", 0),
    ("megatron", 1),
    ("torch-ddp", 0),
    ("fsdp1", 0),
}
WHOLE_OPTIMIZER = {("deepspeed", 0), ("megatron", 0), ("torch-ddp", 0), ("fsdp1", 0)}
STAGES = [
    (name, stage["stage"])
    for name in presets.names("frameworks")
    for stage in presets.load("frameworks", name)["stages"]
]
TOY = {
    "kind": "llama",
    "layers": 4,
    "hidden": 128,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 352,
    "vocab": 1000,
}


def of(framework: str, stage: int, model: Any, gpus: int = GPUS, **more: Any) -> Estimate:
    job = {
        "model": model,
        "cluster": {"gpus": gpus},
        "framework": framework,
        "zero": {"stage": stage, **more},
    }
    return estimate(Job.model_validate(job))


@cache
def adapted(name: str, adapter_rank: int, targets: str) -> Model:
    """A measured model, built once for all frameworks."""
    preset = presets.load("models", PRESET.get(name, name))
    return with_lora(preset, adapter_rank, TARGETS[targets])


def moved(answer: Estimate, moment: str, what: str) -> int:
    """Elements of the tensors that are moved in some calls."""
    calls = [c for c in answer.communication.collectives if c.moment == moment and what in c.what]
    return sum(c.tensor_bytes // DTYPE_BYTES[c.dtype] * c.count for c in calls)


def test_every_framework_has_a_row() -> None:
    assert {(name, stage) for name, stage in STAGES if name != "paper"} == set(HELD)


@pytest.mark.parametrize("case", HELD, ids=lambda case: f"{case[0]}-{case[1]}")
@pytest.mark.parametrize(
    "known", DENSE, ids=lambda known: f"{known['model']}-{known['targets']}-{known['r']}"
)
def test_adapters_are_held_and_sent_alone(case: tuple[str, int], known: dict[str, Any]) -> None:
    framework, stage = case
    trained, total = known["trainable"], known["total"]
    model = adapted(known["model"], known["r"], known["targets"])
    answer = of(framework, stage, model)
    terms = answer.memory.gpu.terms
    weights, gradients, optimizer, over = HELD[case]
    shards = 1 if case in WHOLE_WEIGHTS else GPUS
    held = {
        name: sum(t.bytes for t in terms if t.name.startswith(name))
        for name in ("frozen weights", "adapter weights", "adapter gradients")
    }
    assert held == {
        "frozen weights": 2 * (total - trained) // shards,
        "adapter weights": weights * trained // shards,
        "adapter gradients": gradients * trained // over,
    }
    assert sum(t.bytes for t in terms if t.kind == "optimizer") == optimizer * trained // (
        1 if case in WHOLE_OPTIMIZER else GPUS
    )
    assert moved(answer, "backward", "gradients") == trained
    stepped = moved(answer, "step", "weights")
    if stage in (1, 2):
        assert stepped == (trained if framework in ("deepspeed", "megatron") else 0)
    if shards == GPUS and framework != "deepspeed":
        assert moved(answer, "forward", "weights") == total


def padded(model: Any, ranks: int) -> int:
    """Elements of adapters' matrices with their first size rounded up to whole ranks, or to a
    Megatron buffer's or FSDP1's alignment.
    """
    adapters = rank(Job.model_validate({"model": model, "cluster": {"gpus": 1}})).adapters
    assert adapters is not None
    return (
        sum(-(-rows // ranks) * ranks * columns + 128 for rows, columns in adapters.shapes)
        + 128 * ranks
    )


@pytest.mark.parametrize(("framework", "stage"), STAGES)
@FEW
@given(
    rank=st.integers(1, 70),
    targets=st.sampled_from(["q_proj", "all-linear", "k_proj,down_proj", "lm_head,embed_tokens"]),
    gpus=st.integers(2, 60),
    dtype=st.sampled_from(["fp32", "bf16"]),
)
def test_nothing_of_gradients_or_steps_is_larger_than_the_adapters(
    framework: str, stage: int, rank: int, targets: str, gpus: int, dtype: str
) -> None:
    model = {**TOY, "lora": {"rank": rank, "targets": targets, "dtype": dtype}}
    answer = of(
        framework,
        stage,
        model,
        gpus,
        **(
            {}
            if framework in ("fsdp1", "fsdp2", "torch-ddp", "torchtitan", "megatron")
            else {"reduce_bucket_size": 1}
        ),
    )
    most = padded(model, gpus)
    for t in answer.memory.gpu.terms:
        if (
            t.kind in ("gradients", "optimizer")
            or "gradient" in t.name
            or "reduce" in t.name
            or "temporaries" in t.name
        ):
            assert t.bytes <= (12 if t.kind == "optimizer" else 4) * most, t.name
    assert moved(answer, "backward", "gradients") <= most
    if stage in (1, 2):
        assert moved(answer, "step", "weights") <= most


@pytest.mark.parametrize(
    ("framework", "stage", "sent"),
    [
        ("paper", 1, 2),
        ("paper", 2, 2),
        ("megatron", 1, 2),
        ("deepspeed", 1, 3),
        ("deepspeed", 2, 3),
    ],
)
def test_volume_is_that_of_what_is_trained(framework: str, stage: int, sent: int) -> None:
    model = with_lora(presets.load("models", "llama-3-8b"), 16, "all-linear", dtype="bf16")
    calls = of(framework, stage, model).communication.collectives
    volume = sum(
        c.tensor_bytes // DTYPE_BYTES[c.dtype] * c.count * (2 if c.op == "all_reduce" else 1)
        for c in calls
    )
    assert volume == sent * 41_943_040


def test_fsdp_reduces_the_adapters_of_each_unit() -> None:
    model = with_lora(presets.load("models", "llama-3-8b"), 16)
    calls = {
        name: [
            (c.tensor_bytes, c.count)
            for c in of(name, 3, model, 8).communication.collectives
            if c.op == "reduce_scatter"
        ]
        for name in ("fsdp1", "fsdp2")
    }
    assert calls == {"fsdp2": [(851_968, 32)], "fsdp1": [(4 * 16 * 1024, 32), (4 * 16 * 4096, 96)]}


def test_deepspeed_keeps_small_matrices_of_adapters_whole_and_makes_gradients_of_adapters() -> None:
    terms = {
        t.name: t.bytes
        for t in of(
            "deepspeed", 3, with_lora(presets.load("models", "llama-3-8b"), 16, "all-linear"), 8
        ).memory.gpu.terms
    }
    small = 65 * 4096 + 32 * 16 * (
        4 * 4096 + 2 * (4096 + 1024) + 3 * 4096
    )  # of the MLP's matrices only three are 16 by 4096
    assert terms["persistent parameters"] == 2 * small
    assert terms["gradient being computed"] == 2 * 16 * 14336


def test_a_framework_that_casts_adapters_says_so() -> None:
    def answer(framework: str, dtype: str) -> tuple[Any, ...]:
        job = {
            "model": {**TOY, "lora": {"rank": 4, "dtype": dtype}},
            "cluster": {"gpus": 2},
            "framework": framework,
        }
        return plan(Job.model_validate(job)).assumptions

    said = "adapters in bf16, not fp32: deepspeed casts all parameters to the compute dtype"
    assert said in answer("deepspeed", "fp32")
    assert not any(
        "casts all" in words for words in (*answer("deepspeed", "bf16"), *answer("fsdp2", "fp32"))
    )


LAYER: dict[tuple[str, int, str], tuple[int, int]] = {
    ("torch-ddp", 0, "fp32"): (5_124_096, 8_826_880),
    ("torch-ddp", 0, "bf16"): (4_304_896, 5_369_856),
    ("fsdp2", 2, "fp32"): (4_304_896, 5_369_856),
    ("fsdp2", 2, "bf16"): (4_304_896, 5_369_856),
    ("fsdp1", 2, "fp32"): (4_567_040, 6_418_432),
    ("fsdp1", 3, "fp32"): (4_567_040, 6_418_432),
    ("fsdp1", 2, "bf16"): (4_304_896, 5_369_856),
}
"""Bytes that one layer keeps with adapters on q_proj and v_proj, and on all: unique storages packed
by saved_tensors_hooks, parameters aside, of the second of three layers of a Llama under PEFT
0.21.2, transformers 5.24.0 and torch 2.13.0+cpu, on one of two ranks; a base in bf16, FSDP with
param_dtype bf16 (FSDP1: PEFT's wrapping policy, use_orig_params, cast_forward_inputs).
"""


@pytest.mark.parametrize("case", LAYER, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def test_adapters_compute_in_the_dtype_in_which_they_are_gathered(
    case: tuple[str, int, str],
) -> None:
    framework, stage, dtype = case
    for targets, known in zip(("q_proj,v_proj", "all-linear"), LAYER[case], strict=True):
        model = {
            "kind": "llama",
            "layers": 1,
            "hidden": 256,
            "heads": 4,
            "kv_heads": 2,
            "ffn": 704,
            "vocab": 1000,
            "lora": {"rank": 16, "targets": targets, "dtype": dtype},
        }
        given: dict[str, Any] = {
            "model": model,
            "cluster": {"gpus": 2},
            "framework": framework,
            "zero": {"stage": stage},
            "training": {"seq": 512},
        }
        if framework == "torch-ddp":
            given["recipe"] = (
                "pure-bf16-adam"  # which copies nothing: PEFT casts what adapters in fp32 are given
            )
        terms = estimate(Job.model_validate(given)).memory.gpu.terms
        assert (
            sum(
                t.bytes
                for t in terms
                if t.name in ("norms activations", "attention activations", "mlp activations")
            )
            == known
        )


def test_a_recipe_that_gathers_adapters_in_16_bits_says_so() -> None:
    job = {"model": {**TOY, "lora": {"rank": 4}}, "cluster": {"gpus": 2}, "framework": "fsdp2"}
    said = (
        "adapters are stored in fp32 and compute in bf16, the dtype in which recipe fsdp-mixed "
        "gathers or copies weights"
    )
    assert said in plan(Job.model_validate(job)).assumptions
    assert not any(
        "adapters are stored in" in words
        for words in plan(Job.model_validate({**job, "recipe": "pure-bf16-adam"})).assumptions
    )


def test_what_is_trained_somewhere_is_bounded_and_said() -> None:
    job = {
        "model": {**TOY, "trainable": 5000},
        "cluster": {"gpus": 2},
        "framework": "fsdp2",
        "zero": {"stage": 3},
    }
    answer = plan(Job.model_validate(job))
    assert any(
        words.startswith("which parameters are trained is not known")
        for words in answer.assumptions
    )
    held = {t.name: t.bytes for t in of("fsdp2", 3, {**TOY, "trainable": 5000}, 2).memory.gpu.terms}
    assert held["layer's gradients"] == 2 * 5000
