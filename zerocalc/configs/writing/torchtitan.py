"""torchtitan's TOML for a job.

Read against torchtitan 0.2.2: config/job_config.py.
"""

from __future__ import annotations

import json
from typing import Any

from zerocalc import presets
from zerocalc.configs.recipes import (
    TORCH_NAME,
    WITH_FP32_WEIGHTS,
    WITHOUT_MASTER_WEIGHTS,
    recognised,
)
from zerocalc.configs.torchtitan import PRESETS
from zerocalc.configs.writing.common import (
    Exported,
    batch_of,
    data_parallel_shards,
    fields,
    no_recipe,
    remarks_on,
)
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job

HELD = fields(
    training="seq micro_batch accumulation recompute recompute_every",
    parallel="tp pp cp ep etp interleave sequence_parallel",
    zero="offload_optimizer offload_params reduce_dtype shard_group",
)
"""Fields that a configuration holds."""


def write(job: Job, stage: int) -> Exported:
    """A job at one stage as torchtitan's TOML, and what it does not hold. Raises `FieldError` for
    what torchtitan cannot do.
    """
    p, t = job.parallel, job.training
    if p.tp > 1 and not p.sequence_parallel:
        raise FieldError(
            "parallel.tp",
            f"{p.tp}: torchtitan's tensor parallelism splits sequences too; "
            "--sequence-parallel counts it so",
        )
    model = next(
        (pair for pair, preset in PRESETS.items() if job.model.title == _title(preset)), None
    )
    tables: dict[str, dict[str, Any]] = {
        "model": {"name": model[0], "flavor": model[1]} if model else {},
        "optimizer": {"name": "AdamW"},
        "training": {
            **_batch(job),
            **_precision(job),
            **({"enable_cpu_offload": True} if job.zero.offloads else {}),
        },
        "parallelism": {
            "data_parallel_replicate_degree": job.replicas,
            "data_parallel_shard_degree": data_parallel_shards(job),
            "fsdp_reshard_after_forward": "never"
            if stage == 2
            else "always"
            if p.pp > 1
            else "default",
            "tensor_parallel_degree": p.tp,
            "pipeline_parallel_degree": p.pp,
            "context_parallel_degree": p.cp,
            **(
                {
                    "expert_parallel_degree": p.ep,
                    "expert_tensor_parallel_degree": job.expert_tensor_parallel,
                }
                if p.ep > 1
                else {}
            ),
            **_schedule(job),
        },
        "activation_checkpoint": _recomputation(job),
    }
    if job.shards == 1 and job.replicas > 1:
        raise FieldError("zero.shard_group", "1: copies without shards are not FSDP's but DDP's")
    if t.seq is None:
        raise FieldError(
            "training.seq", "is missing; torchtitan's configuration says how long sequences are"
        )
    held = HELD | {"model"} if model else HELD
    return Exported(
        "\n\n".join(_toml(name, table) for name, table in tables.items() if table),
        remarks_on(job, held),
    )


def _title(preset: str) -> str:
    return str(presets.load("models", preset)["title"])


def _toml(name: str, table: dict[str, Any]) -> str:
    return "\n".join(
        [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    )


def _batch(job: Job) -> dict[str, Any]:
    t = job.training
    local = t.micro_batch * (t.accumulation if job.parallel.pp > 1 else 1)
    return {"local_batch_size": local, "global_batch_size": batch_of(job), "seq_len": t.seq}


def _precision(job: Job) -> dict[str, Any]:
    """The keys that stand for a recipe and for the dtype of gradients in flight, which is always
    fp32.
    """
    if job.reduce_dtype != "fp32":
        raise FieldError(
            "zero.reduce_dtype",
            f"{job.reduce_dtype}: torchtitan sends gradients in fp32; --reduce-dtype fp32 "
            "counts it so",
        )
    for recipes, weights in ((WITH_FP32_WEIGHTS, "fp32"), (WITHOUT_MASTER_WEIGHTS, "bf16")):
        found = recognised(recipes, job.recipe)
        if found is not None and found[1] in ("fp32", "bf16") and found[2] is None:
            return {
                "dtype": TORCH_NAME[weights],
                "mixed_precision_param": TORCH_NAME[found[1]],
                "mixed_precision_reduce": TORCH_NAME[job.reduce_dtype],
            }
    raise no_recipe(job, "torchtitan's configuration stands")


def _schedule(job: Job) -> dict[str, Any]:
    p = job.parallel
    if p.pp == 1:
        return {}
    if p.interleave > 2:
        raise FieldError(
            "parallel.interleave",
            f"{p.interleave}: how torchtitan cuts layers into so many chunks depends on "
            "the model; 1 and 2 are written",
        )
    return {
        "pipeline_parallel_schedule": "Interleaved1F1B" if p.interleave > 1 else "1F1B",
        "pipeline_parallel_microbatch_size": job.training.micro_batch,
    }


def _recomputation(job: Job) -> dict[str, Any]:
    t = job.training
    if t.recompute == "selective":
        raise FieldError(
            "training.recompute", "selective: torchtitan recomputes by operators or whole layers"
        )
    if t.recompute == "operators":
        if t.recompute_every > 1:
            raise FieldError(
                "training.recompute_every",
                f"{t.recompute_every}: torchtitan recomputes operators in every layer",
            )
        return {"mode": "selective", "selective_ac_option": "op"}
    if t.recompute == "full" and t.recompute_every > 1:
        return {"mode": "selective", "selective_ac_option": str(t.recompute_every)}
    return {"mode": t.recompute}
