"""DeepSpeed's configuration: what each key comes to, what is refused, what is noted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.configs.asking import Table, answer, job, line, value, written, zero
from zerocalc.configs.deepspeed_keys import ADDED_UP_IN, KNOBS, options
from zerocalc.spec.zero import Zero

KEPT_IN_FP32 = (
    (f"zero.{ADDED_UP_IN}", "fp32")
    if ADDED_UP_IN in options()
    else ("recipe.name", "mixed-adam-fp32-grad")
)
DEEPSPEED = [
    ({"zero_optimization": {}, "bf16": {"enabled": True}}, "zero.stage", [0]),
    ({"zero_optimization": True, "bf16": {"enabled": True}}, "zero.stage", [1]),
    (zero(), "framework.name", "deepspeed"),
    (zero(), "zero.stage", [3]),
    (zero(), "recipe.name", "mixed-adam"),
    (zero(reduce_bucket_size=5e8), "zero.reduce_bucket_size", 500_000_000),
    (zero(reduce_bucket_size=1_000_000), "zero.reduce_bucket_size", 1_000_000),
    (zero(reduce_bucket_size="auto"), "zero.reduce_bucket_size", 4096**2),
    (zero(stage3_param_persistence_threshold="auto"), "zero.persistence_threshold", 40960),
    (zero(stage3_param_persistence_threshold=0), "zero.persistence_threshold", 0),
    (zero(param_persistence_threshold=7), "zero.persistence_threshold", 7),
    (zero(stage3_max_live_parameters=1e8), "zero.max_live_parameters", 10**8),
    (zero(stage3_max_reuse_distance=2e8), "zero.max_reuse_distance", 2 * 10**8),
    (zero(sub_group_size=1e6), "zero.sub_group_size", 10**6),
    (zero(sub_group_size=0), "zero.sub_group_size", 1),
    (zero(overlap_comm=False), "zero.overlap_comm", False),
    (zero(2, overlap_comm="auto"), "zero.overlap_comm", None),
    (zero(offload_optimizer={"device": "none"}), "zero.stage", [3]),
    (zero(offload_optimizer={"device": "cpu"}), "zero.offload_optimizer", "cpu"),
    (zero(offload_param={"device": "cpu"}), "zero.offload_params", "cpu"),
    (zero(2, offload_param={"device": "cpu"}), "zero.offload_params", "none"),
    (zero(2, offload_optimizer={"device": "nvme"}), "zero.offload_optimizer", "cpu"),
    (zero(0, offload_optimizer={"device": "cpu"}), "zero.offload_optimizer", "none"),
    (zero(cpu_offload=True), "zero.offload_optimizer", "cpu"),
    ({**zero(), "communication_data_type": "fp32"}, "zero.reduce_dtype", "fp32"),
    ({**zero(), "bf16": {"enabled": False}}, "recipe.name", "fp32-adam-master"),
    ({**zero(1), "bf16": {"enabled": False}}, "recipe.name", "fp32-adam-master"),
    ({**zero(0), "bf16": {"enabled": False}}, "recipe.name", "fp32-adam"),
    (
        {**zero(), "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}},
        "recipe.name",
        "mixed-adam",
    ),
    ({**zero(), "bf16": {}, "fp16": {"enabled": True}}, "recipe.name", "mixed-adam-fp16"),
    ({**zero(), "bf16": {}, "fp16": {"enabled": True}}, "recipe.compute", "fp16"),
    ({**zero(), "bfloat16": {"enabled": True}, "bf16": None}, "recipe.name", "fp32-adam-master"),
    ({**zero(), "data_types": {"grad_accum_dtype": "fp32"}}, *KEPT_IN_FP32),
    ({**zero(), "data_types": {"grad_accum_dtype": "bf16"}}, "recipe.name", "mixed-adam"),
    ({**zero(), "optimizer": {"type": "Lion"}}, "recipe.name", "lion"),
    ({**zero(), "optimizer": {"type": "Muon", "params": {"momentum": 0.9}}}, "recipe.name", "muon"),
    ({**zero(), "optimizer": {"type": "SGD"}}, "recipe.name", "sgd"),
    (
        {**zero(), "optimizer": {"type": "SGD", "params": {"momentum": 0.9}}},
        "recipe.name",
        "sgd-momentum",
    ),
    (zero(reduce_scatter=False), "zero.grad_sync", "all-reduce"),
    (zero(2, reduce_scatter=True), "zero.grad_sync", "reduce-scatter"),
    (zero(2, contiguous_gradients=False), "zero.contiguous_gradients", False),
    (zero(mics_shard_size=4), "zero.shard_group", 4),
    (zero(mics_shard_size=-1), "zero.shard_group", None),
    ({**zero(), "tensor_parallel": {"autotp_size": 2}}, "parallel.tp", 2),
    ({**zero(), "sequence_parallel_size": 2}, "parallel.cp", 2),
    ({**zero(), "train_batch_size": 64}, "training.micro_batch", 8),
    ({**zero(), "train_batch_size": 64}, "training.accumulation", 1),
    (
        {**zero(), "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2},
        "training.accumulation",
        4,
    ),
    (
        {**zero(), "train_batch_size": 64, "gradient_accumulation_steps": 2},
        "training.micro_batch",
        4,
    ),
    (
        {**zero(), "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3},
        "training.accumulation",
        3,
    ),
    (
        {
            **zero(),
            "train_batch_size": 48,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 3,
        },
        "training.micro_batch",
        2,
    ),
    ({**zero(), "train_batch_size": 32, "sequence_parallel_size": 2}, "training.micro_batch", 8),
]


@pytest.mark.parametrize(("config", "path", "wanted"), DEEPSPEED)
def test_deepspeed_keys(config: Table, path: str, wanted: Any) -> None:
    assert value(job(config), path) == wanted


REFUSED = [
    (
        zero(offload_optimizer={"device": "disk"}),
        "zero_optimization.offload_optimizer.device: 'disk' is not one of none, cpu, nvme",
    ),
    (
        zero(offload_optimizer={"device": "cpu", "ratio": 0.5}),
        "zero_optimization.offload_optimizer.ratio: 0.5",
    ),
    (
        zero(offload_param={"device": "nvme"}),
        "zero_optimization.offload_param.device: nvme needs a capacity",
    ),
    (
        zero(offload_optimizer={"device": "cpu"}, zero_quantized_weights=True),
        "zero_optimization.offload_optimizer.device: cpu is not modelled with quantised",
    ),
    (zero(7), "zero_optimization.stage: 7 is not a ZeRO stage"),
    (zero(stage="two"), "zero_optimization.stage: 'two' is not a whole number"),  # type: ignore[arg-type]
    (
        zero(reduce_bucket_size="5e8"),
        "zero_optimization.reduce_bucket_size: '5e8' is not a whole number",
    ),
    (zero(reduce_bucket_size=0), "zero_optimization.reduce_bucket_size: "),
    (zero(overlap_comm=3), "zero_optimization.overlap_comm: 3 is not true or false"),
    ({**zero(), "fp16": {"enabled": True}}, "fp16.enabled: true contradicts bf16.enabled"),
    (
        {**zero(), "optimizer": {"type": "OneBitAdam"}},
        "optimizer.type: no recipe is known for 'OneBitAdam'; --recipe names one",
    ),
    (
        {**zero(), "bf16": {}, "optimizer": {"type": "Lion"}},
        "optimizer.type: no recipe is known for Lion in fp32; --recipe names one",
    ),
    (
        {**zero(), "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        "bf16.bf16_master_weights_and_grads: no recipe",
    ),
    (
        {**zero(), "data_types": {"param_dtype": "fp16"}},
        "data_types.param_dtype: fp16 contradicts bf16.enabled",
    ),
    (
        {**zero(0), "data_types": {"grad_accum_dtype": "fp32"}},
        "data_types.grad_accum_dtype: fp32 beside a model in bf16 needs ZeRO",
    ),
    ({**zero(), "communication_data_type": "fp8"}, "communication_data_type: 'fp8' is not one of"),
    (
        {**zero(), "activation_checkpointing": {"cpu_checkpointing": True}},
        "activation_checkpointing.cpu_checkpointing: needs recompute full",
    ),
    ({**zero(), "elasticity": {"enabled": True}}, "elasticity: "),
    ({**zero(), "zero_optimization": 3}, "zero_optimization: 3 is not a table of settings"),
    (
        {**zero(), "train_micro_batch_size_per_gpu": "auto"},
        "train_micro_batch_size_per_gpu: auto is what the Trainer is told: --micro-batch says it",
    ),
    (
        {**zero(), "train_batch_size": 65},
        "train_batch_size: 65 is not micro-batch 8 × accumulation 1 × data-parallel 8 = 64",
    ),
    (
        {
            **zero(),
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
        },
        "train_batch_size: 64 is not micro-batch 2 × accumulation 2 × data-parallel 8 = 32",
    ),
]


@pytest.mark.parametrize(("config", "wanted"), REFUSED)
def test_what_cannot_be_taken_over_is_refused_by_its_key(config: Table, wanted: str) -> None:
    refusal = line(config)
    assert refusal.startswith(f"error: {wanted}")
    assert refusal.endswith("(in config.json)")


def test_auto_needs_the_hidden_size() -> None:
    refusal = line(zero(reduce_bucket_size="auto"), base=("plan", "--params", "8B", "--gpus", "8"))
    assert "--model or --hidden says it" in refusal
    config = {
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
        },
        "bf16": {"enabled": True},
    }
    notes = answer(
        config, base=("plan", "--layers", "2", "--hidden", "128", "--heads", "2", "--gpus", "8")
    )["notes"]
    assert (
        "zero_optimization.reduce_bucket_size auto: 16,384 (hidden², as the Hugging Face "
        "Trainer sets it)" in notes
    )
    assert not any(
        "persistence" in note for note in notes
    )  # the Trainer fills that in at stage 3 alone


def test_auto_takes_the_size_of_a_family() -> None:
    config = written(
        json.dumps(
            {
                "model_type": "mixtral",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 100,
                "intermediate_size": 64,
                "num_key_value_heads": 2,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
            }
        ),
        "mix.json",
    )
    found = job(zero(reduce_bucket_size="auto"), base=("plan", "--model", config, "--gpus", "8"))
    assert found["zero"]["reduce_bucket_size"] == 64**2


def test_what_is_not_modelled_or_not_known_is_named() -> None:
    config = {
        **zero(stage3_allgather_sequential=True, reduce_buckets=3),
        "sparse_attention": {"mode": "fixed"},
        "zero_optimisation": {},
    }
    notes = "\n".join(answer(config)["notes"])
    assert (
        "not modelled of the DeepSpeed configuration: "
        "zero_optimization.stage3_allgather_sequential true, sparse_attention" in notes
    )
    assert (
        "unknown keys of the DeepSpeed configuration, passed over: "
        "zero_optimization.reduce_buckets (nearest: reduce_bucket_size" in notes
    )
    assert "zero_optimisation (nearest: zero_optimization" in notes


def test_what_costs_nothing_is_passed_over_in_silence() -> None:
    config = {
        **zero(stage3_gather_16bit_weights_on_model_save=True),
        "steps_per_print": 10,
        "gradient_clipping": 1.0,
        "wall_clock_breakdown": False,
    }
    assert not [note for note in answer(config)["notes"] if "configuration" in note]


def test_knobs_at_their_defaults_say_nothing() -> None:
    """A knob that we lack is not modelled only where it differs from what DeepSpeed does anyway."""
    config = zero(**{key: knob.default for key, knob in KNOBS.items()})
    assert not [note for note in answer(config)["notes"] if "not modelled" in note]


@pytest.mark.parametrize("key", ["prescale_gradients", "gradient_predivide_factor"])
def test_what_deepspeed_refuses_is_told(key: str) -> None:
    told = [
        [
            note
            for note in answer({**config, key: 2 if "factor" in key else True})["notes"]
            if "refuses" in note
        ]
        for config in (zero(2), zero(1))
    ]
    assert told == [
        [
            f"{key}: DeepSpeed 0.19.8 refuses it at stage 2 unless "
            "zero_optimization.reduce_scatter is false"
        ],
        [],
    ]


def test_defaults_are_deepspeeds() -> None:
    """Ours are the same where we have the knob: what a configuration leaves out is what DeepSpeed
    does.
    """
    for knob in KNOBS.values():
        if knob.field in options():
            assert getattr(Zero(), knob.field) in (
                None,
                knob.default if knob.other is None else Zero.model_fields[knob.field].default,
            )


def test_a_recipe_that_is_named_needs_no_optimizer_that_is_known() -> None:
    assert (
        job({**zero(), "optimizer": {"type": "OneBitAdam"}}, "--recipe", "mixed-adam-bf16-moments")[
            "recipe"
        ]["name"]
        == "mixed-adam-bf16-moments"
    )


def test_partitioned_activations_need_ranks_to_split_over() -> None:
    config = {**zero(2), "activation_checkpointing": {"partition_activations": True}}
    assert any(
        "nothing is split without tensor-parallel ranks" in note for note in answer(config)["notes"]
    )
    assert job(config, "--tp", "2", "--recompute", "full")["zero"]["partition_activations"] is True
    assert "needs recompute full: it splits activation checkpoints (P_a) (in config.json)" in line(
        config, "--tp", "2"
    )
