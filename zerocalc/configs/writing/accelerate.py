"""accelerate's YAML for a job: FSDP, DeepSpeed or DDP as accelerate launches them.

Read against accelerate 1.15: commands/config/config_args.py, utils/dataclasses.py.
"""

from __future__ import annotations

import json
from typing import Any

from zerocalc.configs import deepspeed_keys
from zerocalc.configs.accelerate import DDP, FSDP1, STRATEGIES
from zerocalc.configs.recipes import UNDER_AUTOCAST, WITH_FP32_WEIGHTS, recognised
from zerocalc.configs.writing import deepspeed
from zerocalc.configs.writing.common import Exported, data_parallel_shards, no_recipe, remarks_on
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job
from zerocalc.spec.zero import Zero


def write(job: Job, stage: int) -> Exported:
    """A job at one stage as accelerate's YAML, and what it does not hold. Raises `FieldError` for
    what accelerate cannot do.
    """
    gpus, per_node = job.cluster.gpus, job.cluster.gpus_per_node
    table: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "num_processes": gpus}
    held: set[str] = set()
    remarks: list[str] = []
    if gpus <= per_node or gpus % per_node == 0:
        table["num_machines"] = max(1, gpus // per_node)
    else:
        remarks.append(
            f"{gpus} processes are no whole number of machines of {per_node}: num_machines "
            "is for you to say"
        )
    if job.framework.name == deepspeed_keys.FRAMEWORK:
        table |= _as_deepspeed(job, stage, remarks)
        held |= deepspeed.HELD - {"training.micro_batch"} | {
            f"zero.{field}" for field in deepspeed_keys.options()
        }
    elif job.framework.name == DDP:
        table |= {
            "distributed_type": "MULTI_GPU",
            "mixed_precision": _precision(job, UNDER_AUTOCAST),
        }
    else:
        table |= _as_fsdp(job, stage, held)
        held |= {"zero.offload_optimizer", "zero.offload_params"}
    return Exported(_yaml(table), (*remarks_on(job, held), *remarks))


def _precision(job: Job, recipes: dict[tuple[str, str], str]) -> str:
    """The word for a recipe."""
    found = recognised(recipes, job.recipe)
    if found is None or found[2] is not None:
        raise no_recipe(job, "mixed_precision stands")
    return "no" if found[1] == "fp32" else found[1]


def _as_fsdp(job: Job, stage: int, held: set[str]) -> dict[str, Any]:
    t, p = job.training, job.parallel
    part: dict[str, Any] = {
        "fsdp_version": 1 if job.framework.name == FSDP1 else 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    out: dict[str, Any] = {
        "distributed_type": "FSDP",
        "mixed_precision": _precision(job, WITH_FP32_WEIGHTS),
        "fsdp_config": part,
    }
    compute = job.recipe.compute
    if job.reduce_dtype != compute:
        raise FieldError(
            "zero.reduce_dtype",
            f"{job.reduce_dtype}: accelerate sends gradients in mixed_precision's dtype; "
            f"--reduce-dtype {compute}",
        )
    if job.zero.defer_grad_sync:
        raise FieldError(
            "zero.defer_grad_sync",
            "accelerate reduces after every micro-batch unless the script says otherwise",
        )
    if job.framework.name == FSDP1:
        part["fsdp_sharding_strategy"] = _strategy_of(job, stage)
        if p.tp * p.cp > 1:
            raise FieldError(
                "parallel.tp" if p.tp > 1 else "parallel.cp",
                "needs FSDP2 under accelerate: --framework fsdp2",
            )
    else:
        part["fsdp_reshard_after_forward"] = stage == 3
        if p.tp * p.cp > 1 or job.replicas > 1:
            out["parallelism_config"] = _degrees_of(job)
    if p.sequence_parallel:
        raise FieldError(
            "parallel.sequence_parallel", "accelerate's tensor parallelism does not split sequences"
        )
    if job.zero.offloads:
        part["fsdp_offload_params"] = True
    if t.recompute == "full" and t.recompute_every == 1:
        part["fsdp_activation_checkpointing"] = True
        held.add("training.recompute")
    held |= {"parallel.tp", "parallel.cp", "zero.reduce_dtype", "zero.shard_group"}
    return out


def _strategy_of(job: Job, stage: int) -> str:
    """FSDP1's word for a stage."""
    hybrid = job.replicas > 1
    if hybrid and job.shards != min(job.cluster.gpus_per_node, job.cluster.gpus):
        text = (
            f"{job.shards}: FSDP1 under accelerate keeps a copy in every node of "
            f"{job.cluster.gpus_per_node}; --framework fsdp2 has other groups"
        )
        raise FieldError("zero.shard_group", text)
    wanted = f"hybrid {stage}" if hybrid else str(stage)
    return next(name for name, meant in STRATEGIES.items() if meant == wanted).upper()


def _degrees_of(job: Job) -> dict[str, Any]:
    """``parallelism_config``; context-parallel ranks share shards."""
    p, prefix = job.parallel, "parallelism_config"
    shards = data_parallel_shards(job)
    sizes = {"dp_replicate": job.replicas, "dp_shard": shards, "tp": p.tp, "cp": p.cp}
    return {f"{prefix}_{name}_size": size for name, size in sizes.items()}


def _as_deepspeed(job: Job, stage: int, remarks: list[str]) -> dict[str, Any]:
    """The plugin's own keys where they say it all, else the name of a file of DeepSpeed's."""
    whole = json.loads(deepspeed.write(job, stage).text)
    plain = Zero().model_dump()
    usual = all(getattr(job.zero, name) == plain[name] for name in deepspeed_keys.options())
    compute = next((dtype for dtype in ("bf16", "fp16") if dtype in whole), "no")
    out: dict[str, Any] = {"distributed_type": "DEEPSPEED"}
    if (
        usual
        and not job.zero.offloads
        and whole["optimizer"]["type"] == "AdamW"
        and not ADDED & whole.keys()
    ):
        steps = {"gradient_accumulation_steps": job.training.accumulation}
        return {
            **out,
            "mixed_precision": compute,
            "deepspeed_config": {"zero_stage": stage, **steps, "zero3_init_flag": stage == 3},
        }
    remarks.append(
        f"deepspeed_config_file: what export --to {deepspeed_keys.FRAMEWORK} prints, kept "
        f"as {CONFIG_FILE} beside this file"
    )
    return {
        **out,
        "deepspeed_config": {"deepspeed_config_file": CONFIG_FILE, "zero3_init_flag": stage == 3},
    }


ADDED = {
    "data_types",
    "communication_data_type",
    "tensor_parallel",
    "sequence_parallel_size",
    "activation_checkpointing",
}
"""Keys of DeepSpeed's file that the plugin has no words for."""
CONFIG_FILE = "deepspeed.json"


def _yaml(table: dict[str, Any]) -> str:
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [
                f"{key}:",
                *(f"  {inner}: {json.dumps(item)}" for inner, item in value.items()),
            ]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines)
