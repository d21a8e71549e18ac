"""Tools' configurations: what each key comes to, what is refused, what is noted; whatever else they
hold, one line or an answer.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run
from zerocalc.configs.deepspeed_keys import ADDED_UP_IN, KNOBS, options
from zerocalc.spec.zero import Zero

Table = dict[str, Any]
BASE = ("plan", "--model", "llama-3-8b", "--seq", "2048")
ON_8 = (*BASE, "--gpus", "8")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of our own."""
    monkeypatch.chdir(tmp_path)


def written(content: Table | str, name: str = "config.json") -> str:
    Path(name).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return name


def answer(
    content: Table | str, *flags: str, name: str = "config.json", base: tuple[str, ...] = ON_8
) -> Table:
    ran = run(*base, "--config", written(content, name), *flags, "--json")
    assert ran.status == 0, ran.err
    found: Table = json.loads(ran.out)
    return found


def job(
    content: Table | str, *flags: str, name: str = "config.json", base: tuple[str, ...] = ON_8
) -> Table:
    found: Table = answer(content, *flags, name=name, base=base)["job"]
    return found


def value(table: Table, path: str) -> Any:
    for part in path.split("."):
        table = table[part]
    return table


def line(
    content: Table | str, *flags: str, name: str = "config.json", base: tuple[str, ...] = ON_8
) -> str:
    return refused(run(*base, "--config", written(content, name), *flags, "--json"))


# DeepSpeed.


def zero(stage: int = 3, **keys: Any) -> Table:
    return {
        "zero_optimization": {"stage": stage, **keys},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
    }


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


# Layers.


def test_flags_lie_over_a_configuration_and_that_over_a_job() -> None:
    Path("job.json").write_text(
        json.dumps(
            {
                "model": "gpt2",
                "cluster": {"gpus": 4},
                "zero": {"stage": [1], "sub_group_size": 5},
                "training": {"seq": 64},
            }
        )
    )
    found = job(zero(2, overlap_comm=True), "--no-overlap-comm", base=("plan", "--job", "job.json"))
    assert found["zero"]["stage"] == [2]
    assert found["zero"]["overlap_comm"] is False
    assert found["zero"]["sub_group_size"] == 5
    assert found["training"]["seq"] == 64


def test_batch_sizes_of_flags_count_as_the_files() -> None:
    assert (
        job({**zero(), "train_batch_size": 64}, "--micro-batch", "2")["training"]["accumulation"]
        == 4
    )
    refusal = line(
        {**zero(), "train_batch_size": 64, "gradient_accumulation_steps": 1}, "--micro-batch", "2"
    )
    assert "64 is not micro-batch 2 × accumulation 1 × data-parallel 8 = 16" in refusal


def test_another_frameworks_flag_blames_the_key() -> None:
    refusal = line(zero(sub_group_size=5), "--framework", "fsdp2")
    assert refusal.startswith("error: zero_optimization.sub_group_size: not supported by fsdp2")


def test_a_wrong_flag_is_still_blamed() -> None:
    assert line(zero(), "--sub-group-size", "x").startswith("error: --sub-group-size: ")


# accelerate.

FSDP = """
distributed_type: FSDP
mixed_precision: bf16
downcast_bf16: 'no'
num_processes: {gpus}
num_machines: {nodes}
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  {keys}
"""


def fsdp(*keys: str, gpus: int = 16, nodes: int = 2) -> str:
    return FSDP.format(gpus=gpus, nodes=nodes, keys="\n  ".join(keys))


ACCELERATE = [
    (fsdp(), "framework.name", "fsdp1"),
    (fsdp(), "zero.stage", [3]),
    (fsdp(), "cluster.gpus", 16),
    (fsdp(nodes=4), "cluster.gpus_per_node", 4),
    (fsdp(), "zero.reduce_dtype", "bf16"),
    (fsdp(), "recipe.name", "fsdp-mixed"),
    (fsdp().replace("bf16", "fp16"), "recipe.name", "fsdp-mixed-fp16"),
    (fsdp().replace("bf16", "'no'"), "recipe.name", "fp32-adam"),
    (fsdp("fsdp_version: 2"), "framework.name", "fsdp2"),
    (fsdp("fsdp_version: 2", "fsdp_reshard_after_forward: false"), "zero.stage", [2]),
    (fsdp("fsdp_sharding_strategy: SHARD_GRAD_OP"), "zero.stage", [2]),
    (fsdp("fsdp_sharding_strategy: 3"), "zero.stage", [0]),
    (fsdp("fsdp_reshard_after_forward: NO_SHARD"), "zero.stage", [0]),
    (fsdp("fsdp_sharding_strategy: HYBRID_SHARD"), "zero.shard_group", 8),
    (fsdp("fsdp_sharding_strategy: HYBRID_SHARD_ZERO2", nodes=4), "zero.shard_group", 4),
    (fsdp("fsdp_activation_checkpointing: true"), "training.recompute", "full"),
    (
        "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: bf16",
        "framework.name",
        "torch-ddp",
    ),
    (
        "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: bf16",
        "recipe.name",
        "autocast",
    ),
    ("distributed_type: 'NO'\nnum_processes: 1", "zero.stage", [0]),
    (
        "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: "
        "bf16\ndeepspeed_config:\n  zero_stage: 3",
        "zero.stage",
        [3],
    ),
    (
        "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: "
        "fp16\ndeepspeed_config:\n  zero_stage: 3",
        "recipe.compute",
        "fp16",
    ),
    (
        "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: "
        "bf16\ndeepspeed_config: {}",
        "zero.stage",
        [2],
    ),
    (
        "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: "
        "bf16\ndeepspeed_config:\n  gradient_accumulation_steps: 4",
        "training.accumulation",
        4,
    ),
]


@pytest.mark.parametrize(("config", "path", "wanted"), ACCELERATE)
def test_accelerate_keys(config: str, path: str, wanted: Any) -> None:
    assert value(job(config, name="accelerate.yaml", base=BASE), path) == wanted


HYBRID = "\n".join(
    [
        "parallelism_config:",
        *(
            f"  parallelism_config_{name}_size: {size}"
            for name, size in {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "cp": 2}.items()
        ),
    ]
)


def test_accelerates_degrees() -> None:
    found = job(fsdp("fsdp_version: 2") + HYBRID, name="accelerate.yaml", base=BASE)
    assert (found["parallel"]["tp"], found["parallel"]["cp"], found["zero"]["shard_group"]) == (
        2,
        2,
        4,
    )
    assert "needs fsdp_version 2" in line(fsdp() + HYBRID, name="accelerate.yaml", base=BASE)
    assert "are not the 32 processes" in line(
        fsdp("fsdp_version: 2", gpus=32) + HYBRID, name="accelerate.yaml", base=BASE
    )


def test_a_file_of_deepspeeds_lies_beside_accelerates() -> None:
    Path("there").mkdir()
    Path("there/ds.json").write_text(
        json.dumps({**zero(3, sub_group_size=9), "bf16": {"enabled": "auto"}})
    )
    config = (
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: "
        "4\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    )
    found = job(config, name="there/accelerate.yaml", base=BASE)
    assert (found["zero"]["sub_group_size"], found["recipe"]["name"], found["cluster"]["gpus"]) == (
        9,
        "mixed-adam",
        4,
    )
    Path("there/ds.json").write_text(json.dumps(zero(7)))
    assert line(config, name="there/accelerate.yaml", base=BASE).startswith(
        "error: deepspeed_config.deepspeed_config_file: zero_optimization.stage: 7"
    )
    refusal = line(config, name="accelerate.yaml", base=BASE)
    assert (
        refusal
        == "error: deepspeed_config.deepspeed_config_file: ds.json: no such file or directory "
        "(in accelerate.yaml)"
    )


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (
            fsdp().replace("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"),
            "fsdp_config.fsdp_auto_wrap_policy: 'SIZE_BASED_WRAP' is not modelled",
        ),
        (
            fsdp("fsdp_sharding_strategy: HALF"),
            "fsdp_config.fsdp_sharding_strategy: 'HALF' is not one of FULL_SHARD",
        ),
        (fsdp("fsdp_version: 3"), "fsdp_config.fsdp_version: 3 is not 1 or 2"),
        (fsdp(gpus=9), "num_machines: 2 does not divide the 9 processes"),
        (fsdp().replace("bf16", "fp8"), "mixed_precision: 'fp8' is not one of no, bf16, fp16"),
        ("distributed_type: MEGATRON_LM", "distributed_type: 'MEGATRON_LM' is not one of"),
        ("compute_environment: LOCAL_MACHINE", "distributed_type: is missing"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_optimizer_device: "
            "cpu\n  deepspeed_config_file: ds.json",
            "deepspeed_config.offload_optimizer_device: is said by the file",
        ),
    ],
)
def test_what_accelerate_asks_for_and_is_not_modelled(config: str, wanted: str) -> None:
    assert line(config, name="accelerate.yaml", base=BASE).startswith(f"error: {wanted}")


# torchtitan.

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
{training}
[parallelism]
{parallelism}
[activation_checkpoint]
mode = "{mode}"
selective_ac_option = "{option}"
"""


def titan(training: str = "", parallelism: str = "", mode: str = "none", option: str = "2") -> str:
    return TITAN.format(training=training, parallelism=parallelism, mode=mode, option=option)


TORCHTITAN = [
    (titan(), "framework.name", "torchtitan"),
    (titan(), "model.title", "Llama 3 8B"),
    (titan(), "training.seq", 4096),
    (titan(), "training.micro_batch", 2),
    (titan(), "zero.stage", [3]),
    (titan(), "zero.reduce_dtype", "fp32"),
    (titan(), "recipe.name", "fsdp-mixed"),
    (titan(), "training.recompute", "none"),
    (titan(mode="full"), "training.recompute", "full"),
    (titan(mode="selective", option="op"), "training.recompute", "operators"),
    (titan(mode="selective"), "training.recompute_every", 2),
    (titan('mixed_precision_param = "float32"'), "recipe.name", "fp32-adam"),
    (titan('dtype = "bfloat16"'), "recipe.name", "pure-bf16-adam"),
    (titan("global_batch_size = 128"), "training.accumulation", 4),
    (titan(parallelism='fsdp_reshard_after_forward = "never"'), "zero.stage", [2]),
    (titan(parallelism="tensor_parallel_degree = 2"), "parallel.sequence_parallel", True),
    (titan(parallelism="context_parallel_degree = 2"), "parallel.cp", 2),
    (titan(parallelism="data_parallel_replicate_degree = 2"), "zero.shard_group", 8),
    (
        titan(parallelism="data_parallel_replicate_degree = 2\ncontext_parallel_degree = 2"),
        "zero.shard_group",
        8,
    ),
    (
        titan(parallelism="data_parallel_replicate_degree = 16\ndata_parallel_shard_degree = 1"),
        "framework.name",
        "torch-ddp",
    ),
    (titan(parallelism="pipeline_parallel_degree = 2"), "zero.stage", [2]),
    (titan(parallelism="pipeline_parallel_degree = 2"), "training.micro_batch", 1),
    (titan(parallelism="pipeline_parallel_degree = 2"), "training.accumulation", 2),
    (
        titan(parallelism='pipeline_parallel_degree = 2\nfsdp_reshard_after_forward = "always"'),
        "zero.stage",
        [3],
    ),
    (
        titan(
            parallelism="pipeline_parallel_degree = 2\n"
            'pipeline_parallel_schedule = "Interleaved1F1B"'
        ),
        "parallel.interleave",
        2,
    ),
]


@pytest.mark.parametrize(("config", "path", "wanted"), TORCHTITAN)
def test_torchtitan_keys(config: str, path: str, wanted: Any) -> None:
    assert value(job(config, name="titan.toml", base=("plan", "--gpus", "16")), path) == wanted


def test_torchtitans_defaults_hold_where_its_file_says_nothing() -> None:
    found = job(
        "[parallelism]\n[model]\nflavor = '8B'", name="titan.toml", base=("plan", "--gpus", "8")
    )
    assert (
        found["training"]["micro_batch"],
        found["training"]["seq"],
        found["training"]["recompute_every"],
    ) == (8, 2048, 2)


def test_degrees_say_how_many_gpus_there_are() -> None:
    config = titan(parallelism="data_parallel_shard_degree = 4\ntensor_parallel_degree = 2")
    assert job(config, name="titan.toml", base=("plan",))["cluster"]["gpus"] == 8
    assert "makes 8 GPUs, not 16" in line(config, name="titan.toml", base=("plan", "--gpus", "16"))


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (
            titan("global_batch_size = 33"),
            "training.global_batch_size: 33 is not micro-batch 2 × accumulation 1 × "
            "data-parallel 16 = 32",
        ),
        (titan(mode="memory_budget"), "activation_checkpoint.mode: 'memory_budget'"),
        (
            titan(mode="selective", option="often"),
            "activation_checkpoint.selective_ac_option: 'often'",
        ),
        (
            titan(
                parallelism="pipeline_parallel_degree = 2\n"
                "pipeline_parallel_first_stage_less_layers = 2"
            ),
            "parallelism.pipeline_parallel_first_stage_less_layers: 2",
        ),
        (titan(parallelism="expert_parallel_degree = 2"), "parallelism.expert_parallel_degree: "),
        (
            titan("batch_size = 8"),
            "training.batch_size: is an old spelling; torchtitan calls it "
            "training.local_batch_size today",
        ),
        (
            titan() + "[experimental]\npipeline_parallel_degree = 2\n",
            "experimental.pipeline_parallel_degree: is an old spelling",
        ),
        (
            titan(
                parallelism="pipeline_parallel_degree = 2\n"
                'pipeline_parallel_schedule = "ZBVZeroBubble"'
            ),
            "parallelism.pipeline_parallel_schedule: ",
        ),
        (
            titan().replace("8B", "debugmodel"),
            "model.flavor: no preset is known for 'debugmodel' of 'llama3'; --model says "
            "what it is",
        ),
    ],
)
def test_what_torchtitan_asks_for_and_is_not_modelled(config: str, wanted: str) -> None:
    assert line(config, name="titan.toml", base=("plan", "--gpus", "16")).startswith(
        f"error: {wanted}"
    )


# Files.


@pytest.mark.parametrize("name", ["config", "config.YAML", "config.yml"])
def test_yaml_is_known_by_its_ending_or_its_content(name: str) -> None:
    assert job(fsdp(), name=name, base=BASE)["framework"]["name"] == "fsdp1"


def test_json_is_yaml_too() -> None:
    assert (
        job(
            {"distributed_type": "MULTI_GPU", "num_processes": 4}, name="accelerate.json", base=BASE
        )["framework"]["name"]
        == "torch-ddp"
    )


@pytest.mark.parametrize(
    ("content", "name", "wanted"),
    [
        (
            {"model": {"params": 5}, "cluster": {"gpus": 3}},
            "x.json",
            "x.json describes a job; --job reads it",
        ),
        ({"model_type": "llama"}, "x.json", "x.json is a Hugging Face config; --model reads it"),
        ({"learning_rate": 5}, "x.json", "x.json has no key by which"),
        ("", "x.yaml", "x.yaml holds no table"),
        ("- 1", "x.yaml", "x.yaml holds no table"),
        ("a: &x 1\nb: *x", "x.yaml", "x.yaml is not valid YAML: aliases"),
        ("a: 1\na: 2", "x.yaml", "x.yaml is not valid YAML: a key stands twice"),
        ("1: 2", "x.yaml", "x.yaml is not valid YAML: a key is no text"),
        ("a: [1", "x.yaml", "x.yaml is not valid YAML: "),
        ("a: " + "[" * 5000, "x.yaml", "x.yaml is not valid YAML: "),
        ("a: " + "9" * 5000, "x.yaml", "x.yaml is not valid YAML: "),
        ("a: !!python/object:os.system x", "x.yaml", "x.yaml is not valid YAML: "),
        ('{"a": 1', "x.json", "x.json is not valid JSON"),
        ("[a", "x.toml", "x.toml is not valid TOML"),
    ],
)
def test_what_is_no_configuration(content: Table | str, name: str, wanted: str) -> None:
    assert line(content, name=name).startswith(f"error: --config: {wanted}")


def test_a_file_that_is_not_there() -> None:
    assert (
        refused(run(*ON_8, "--config", "nothing.json"))
        == "error: --config: nothing.json: no such file or directory"
    )
    assert refused(run(*ON_8, "--config", "")).startswith("error: --config: '' is no file")


SEEDS = (
    [json.dumps(config) for config, *_ in DEEPSPEED[10:]]
    + [config for config, *_ in ACCELERATE]
    + [config for config, *_ in TORCHTITAN]
)
VALUES = [
    "auto",
    -1,
    0,
    1.5,
    10**30,
    True,
    None,
    "",
    "no",
    [],
    {},
    [1],
    {"enabled": 1},
    {"device": []},
    "\x1b[2J",
]


def answered(text: str, name: str) -> None:
    ran = run(*ON_8, "--config", written(text, name), "--micro-batch", "1", "--json")
    if ran.status:
        refused(ran)


@given(st.data())
def test_a_broken_file_is_an_answer_or_one_line(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.sampled_from(["truncate", "insert", "delete"]))
    rest = (
        ""
        if cut == "truncate"
        else data.draw(st.text(max_size=3)) + text[at:]
        if cut == "insert"
        else text[at + 3 :]
    )
    answered(
        text[:at].encode("utf-8", "ignore").decode() + rest.encode("utf-8", "ignore").decode(),
        data.draw(st.sampled_from(["x", "x.json", "x.yaml", "x.toml"])),
    )


def paths(table: Table, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [(*prefix, key) for key in table]
    return found + [
        path
        for key, inner in table.items()
        if isinstance(inner, dict)
        for path in paths(inner, (*prefix, key))
    ]


@given(st.data())
def test_a_file_of_wrong_values_is_an_answer_or_one_line(data: st.DataObject) -> None:
    import tomllib

    import yaml

    text = data.draw(st.sampled_from(SEEDS))
    table = (
        json.loads(text)
        if text.startswith("{")
        else tomllib.loads(text)
        if "[training]" in text
        else yaml.safe_load(text)
    )
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(paths(table) or [("zero_optimization",)]))
        inner = table
        for parent in parents:
            inner = inner[parent]
        inner[last] = copy.deepcopy(data.draw(st.sampled_from(VALUES)))
    answered(json.dumps(table), "x.json")
