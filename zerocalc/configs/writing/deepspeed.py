"""DeepSpeed's JSON for a job.

Read against DeepSpeed 0.19.8: runtime/config.py, runtime/zero/config.py.
"""

from __future__ import annotations

import json
from typing import Any

from zerocalc.configs.deepspeed_keys import ADDED_UP_IN, KNOBS, NVME_PATH, options, removed_keys
from zerocalc.configs.deepspeed_recipe import recipes_of
from zerocalc.configs.recipes import WITH_MASTER_WEIGHTS, WITH_MASTER_WEIGHTS_ALWAYS, recognised
from zerocalc.configs.writing.common import Exported, batch_of, fields, no_recipe, remarks_on
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job
from zerocalc.spec.zero import Zero

HELD = fields(
    training="micro_batch accumulation",
    parallel="tp cp ep etp",
    zero="offload_optimizer offload_params offload_activations partition_activations "
    "cpu_checkpointing",
)
"""Fields that a configuration holds, beside the framework's own options."""


def write(job: Job, stage: int) -> Exported:
    """A job at one stage as DeepSpeed's JSON, and what it does not hold. Raises `FieldError` for
    what DeepSpeed cannot do.
    """
    if stage > 1 and job.parallel.pp > 1:
        raise FieldError(
            "parallel.pp",
            f"{job.parallel.pp}: DeepSpeed's pipelines run at ZeRO stages 0 and 1 only, "
            f"not at {stage}",
        )
    if job.parallel.sequence_parallel:
        raise FieldError(
            "parallel.sequence_parallel", "DeepSpeed's tensor parallelism does not split sequences"
        )
    zero = {"stage": stage, "overlap_comm": job.overlaps(stage), **_knobs(job, stage)}
    remarks = _offloads(job, zero)
    table: dict[str, Any] = {
        "train_batch_size": batch_of(job),
        "train_micro_batch_size_per_gpu": job.training.micro_batch,
        "gradient_accumulation_steps": job.training.accumulation,
        **_precision(job, stage),
        "zero_optimization": zero,
    }
    if job.parallel.tp > 1:
        table["tensor_parallel"] = {"autotp_size": job.parallel.tp}
    if job.parallel.cp > 1:
        table["sequence_parallel_size"] = job.parallel.cp
    if job.parallel.ep > 1:
        degrees = {
            "autoep_size": job.parallel.ep,
            "expert_tensor_parallel_size": job.expert_tensor_parallel,
        }
        table["expert_parallel"] = {"enabled": True, **degrees}
    if job.zero.partition_activations or job.zero.checkpoints_on_host:
        kept = {
            "partition_activations": job.zero.partition_activations,
            "cpu_checkpointing": job.zero.checkpoints_on_host,
        }
        table["activation_checkpointing"] = kept
    remarks += [
        f"a DeepSpeed below {version}, which zero_optimization.{key} needs"
        for key, version in removed_keys(zero)
    ]
    said = remarks_on(job, HELD | {f"zero.{field}" for field in options()})
    return Exported(json.dumps(table, indent=2), (*said, *_idle(job, stage), *remarks))


def _offloads(job: Job, zero: dict[str, Any]) -> list[str]:
    """The keys of what lies elsewhere, put into ``zero_optimization``, and what is left to say."""
    remarks = []
    for key, device in (
        ("offload_optimizer", job.zero.offload_optimizer),
        ("offload_param", job.zero.offload_params),
    ):
        if device != "none":
            zero[key] = {"device": device, "pin_memory": True}
            if device == "nvme":
                zero[key]["nvme_path"] = NVME_PATH
                remarks.append(
                    f"zero_optimization.{key}.nvme_path {NVME_PATH}: where the drives are "
                    "is for you to say"
                )
    return remarks


def _knobs(job: Job, stage: int) -> dict[str, Any]:
    written = {
        key: knob.theirs(job)
        for key, knob in KNOBS.items()
        if stage in knob.stages and knob.field in options()
    }
    return {
        key: value
        for key, value in written.items()
        if KNOBS[key].removed_in is None or value != KNOBS[key].default
    }


def _idle(job: Job, stage: int) -> list[str]:
    """Choices that were made and that DeepSpeed has no use for at a stage, in words."""
    plain = Zero()
    made = [knob for knob in KNOBS.values() if stage not in knob.stages and knob.field in options()]
    return [
        f"zero.{knob.field} {value}: means nothing at stage {stage}"
        for knob in made
        if (value := getattr(job.zero, knob.field)) != getattr(plain, knob.field)
    ]


def _precision(job: Job, stage: int) -> dict[str, Any]:
    """The keys that stand for a recipe and for the dtype of gradients in flight."""
    known = recognised(recipes_of(stage), job.recipe)
    if known is None:
        plain = recognised(WITH_MASTER_WEIGHTS, job.recipe)
        instead = f" at stage {stage}; {WITH_MASTER_WEIGHTS_ALWAYS[plain[:2]]} is" if plain else ""
        raise no_recipe(job, "DeepSpeed's configuration stands", instead)
    optimizer, compute, kept = known
    if ADDED_UP_IN in options():
        if kept is not None:
            raise FieldError(
                "recipe",
                f"{job.recipe.name} keeps gradients in {kept}; that is said by "
                f"zero.{ADDED_UP_IN}, over a recipe in {compute}",
            )
        kept = getattr(job.zero, ADDED_UP_IN)
    out: dict[str, Any] = {} if compute == "fp32" else {compute: {"enabled": True}}
    if kept is not None:
        if stage == 0:
            raise FieldError(
                "recipe",
                f"{job.recipe.name} keeps gradients in {kept}, which DeepSpeed does from "
                "stage 1 on",
            )
        out["data_types"] = {"grad_accum_dtype": kept}
    if job.reduce_dtype != compute:
        out["communication_data_type"] = job.reduce_dtype
    name, _, momentum = optimizer.partition(" with ")
    out["optimizer"] = {"type": name, **({"params": {momentum: 0.9}} if momentum else {})}
    if name == "SGD" and stage:
        out["zero_allow_untested_optimizer"] = True
    return out
