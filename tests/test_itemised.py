"""What layers keep and gather again, tensor by tensor: mixtures of experts under Megatron, layers
that differ, what a source and a name say.
"""

from __future__ import annotations

from typing import Any

import pytest

from zerocalc import Job, estimate
from zerocalc.answers.explain import saved_tensors
from zerocalc.answers.planner import plan
from zerocalc.results import Estimate


def test_megatrons_experts_are_weighed_inside_and_their_inputs_not_gathered_again() -> None:
    def answer(model: str, implementation: str) -> Estimate:
        job = {
            "model": model,
            "cluster": {"gpus": 2},
            "framework": "megatron",
            "implementation": implementation,
            "zero": {"stage": 0},
            "parallel": {"tp": 2, "sequence_parallel": True},
            "training": {"seq": 4096, "micro_batch": 1, "accumulation": 1, "recompute": "full"},
        }
        return estimate(Job.model_validate(job))

    def again(of: Estimate) -> int:
        return sum(c.count for c in of.communication.collectives if c.what == "saved inputs")

    mixtral = answer("mixtral-8x7b", "megatron")
    assert {t.name: t.bytes for t in mixtral.memory.gpu.terms}["recomputed layer"] == 537_403_392
    assert again(mixtral) == 32  # attention's
    assert again(answer("llama-3-8b", "megatron")) == 64
    assert again(answer("llama-3-8b", "huggingface")) == 0  # which keeps what it gathered


def test_layers_that_differ_are_listed_each_with_their_tensors() -> None:
    job = {
        "model": "deepseek-v2-lite",
        "cluster": {"gpus": 8},
        "zero": {"stage": 3},
        "training": {"seq": 2048},
    }
    made = plan(Job.model_validate(job))
    listed = saved_tensors(made, made.candidates[0].memory.gpu.terms)
    assert {(t.group, t.layers) for t in listed} == {(1, 1), (2, 26)}
    for group, count in ((1, 1), (2, 26)):
        own = [t for t in listed if t.group == group]
        terms = [
            t for t in made.candidates[0].memory.gpu.terms if t.name.endswith(f" of {count} layers")
        ]
        assert sum(t.bytes for t in own) * count == sum(t.bytes for t in terms)
        assert sum(t.share for t in own) == pytest.approx(1)


def terms_of(**more: Any) -> dict[str, Any]:
    job = {
        "model": "llama-3-8b",
        "cluster": {"gpus": 8},
        "framework": "megatron",
        "zero": {"stage": 0},
        **more,
    }
    training = {"seq": 2048, **more.get("training", {})}
    return {
        t.name: t
        for t in estimate(Job.model_validate({**job, "training": training})).memory.gpu.terms
    }


def test_checkpoints_name_their_source() -> None:
    parallel = {"tp": 2, "sequence_parallel": True}
    full = {"recompute": "full"}
    assert terms_of(training=full)["checkpoints"].source == "full recomputation, [SP] §5"
    assert terms_of(training=full, parallel=parallel)["checkpoints"].source.endswith(
        "sequence parallelism, [SP] §4.2.2"
    )
    partitioned = terms_of(
        training=full, parallel={"tp": 2}, zero={"stage": 0, "partition_activations": True}
    )
    assert "P_a" in partitioned["checkpoints"].source


def test_formulas_show_only_what_there_is() -> None:
    shared = terms_of(parallel={"tp": 2, "sequence_parallel": True})["shared buffer"]
    assert shared.formula.substituted(shared.inputs) == "2,048·4,096·2"
    copied = terms_of(framework="fsdp2", zero={"stage": 3})
    assert copied["gathered root"].formula.text == "e·B·c"
    assert copied["optimizer temporaries"].formula.text == "⌈e/N_d⌉·B·c"


def test_what_stands_before_the_layers_is_called_what_it_is() -> None:
    assert "sines and cosines" in terms_of(implementation="huggingface")


def test_frozen_parameters_are_said_where_it_is_not_known_which_they_are() -> None:
    said = "frozen parameters: activations counted as if all were trained"
    lora = {
        "kind": "llama",
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 96,
        "vocab": 128,
    }
    for more, there in (({"trainable": 1000}, True), ({"lora": {"rank": 4}}, False)):
        job = Job.model_validate(
            {"model": {**lora, **more}, "cluster": {"gpus": 1}, "training": {"seq": 64}}
        )
        assert (said in plan(job).assumptions) == there
