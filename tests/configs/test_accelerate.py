"""accelerate's configuration: what each key comes to, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.configs.asking import BASE, job, line, value, zero

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
