"""torchtitan's configuration: what each key comes to, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs.asking import job, line, value

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
