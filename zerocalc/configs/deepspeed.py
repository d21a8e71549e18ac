"""DeepSpeed's configuration: what each of its keys means to a job, and a job written as one.

Read against DeepSpeed 0.19.8: runtime/config.py, runtime/constants.py, runtime/zero/config.py,
runtime/precision_config.py, runtime/engine.py. ``auto`` is what the Hugging Face Trainer makes of
it (transformers, integrations/deepspeed.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zerocalc.configs.deepspeed_keys import (
    AUTO_OF_HIDDEN,
    DEVICES,
    DRIVE_BUFFERS,
    EXPERTS_FREE,
    FRAMEWORK,
    FREE,
    KNOBS,
    MARKS,
    NOT_MODELLED,
    NVME_PATH,
    ZERO_FREE,
    Knob,
    options,
)
from zerocalc.configs.deepspeed_recipe import precision_keys, read_recipe
from zerocalc.configs.reader import AUTO, Known, Section, Settings, product
from zerocalc.configs.recipes import DTYPES
from zerocalc.configs.writing import Exported, batch_of, remarks_on
from zerocalc.quantities import shown
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job
from zerocalc.spec.zero import Zero

__all__ = ["MARKS", "read", "write"]
HELD = frozenset(
    {
        "zero.offload_optimizer",
        "zero.offload_params",
        "zero.offload_activations",
        "training.micro_batch",
        "training.accumulation",
        "parallel.tp",
        "parallel.cp",
        "parallel.ep",
        "parallel.etp",
        "zero.partition_activations",
        "zero.cpu_checkpointing",
    }
)
"""Fields that a configuration holds, beside the framework's own options."""


def read(
    table: dict[str, Any], known: Known, settings: Settings, mixed_precision: str | None = None
) -> None:
    """Read a configuration into ``settings``. ``mixed_precision``: what whoever starts the training
    says of ``auto``. Raises `FieldError`.
    """
    root = Section(table, settings)
    settings.put("framework", FRAMEWORK, "zero_optimization")
    stage = _zero(root, known, settings)
    _degrees(root, settings)
    read_recipe(root, known, settings, stage, mixed_precision)
    _checkpointing(root, known.over(settings.items), settings)
    _batch(root, known.over(settings.items), settings)
    kept = root.word("communication_data_type", DTYPES)
    if kept is not None:
        settings.put("zero.reduce_dtype", kept, "communication_data_type")
    _scaled_before(root, settings, stage)
    root.refuse(
        "elasticity",
        "elastic training chooses its own batch sizes; take it out, and give those that it "
        "comes to",
    )
    root.refuse("amp", "Apex's amp is not modelled; bf16 or fp16 is")
    _experts(root.section("expert_parallel"), settings)
    pipeline = root.section("pipeline")
    if isinstance(stages := pipeline.value("stages"), int) and stages > 1:
        settings.notes.append(
            f"{pipeline.key('stages')} {stages}: a pipeline is the script's; --pp {stages} "
            "counts it"
        )
    pipeline.free(
        "stages",
        "partition",
        "seed_layers",
        "activation_checkpoint_interval",
        "pipe_partitioned",
        "grad_partitioned",
        "use_reentrant",
    )
    pipeline.done()
    root.free(*FREE)
    for key in NOT_MODELLED:
        root.note(key)
    root.done()


def _scaled_before(root: Section, settings: Settings, stage: int) -> None:
    """Gradients divided before they are reduced: stages 2 and 3 assert that they are not, while
    reduce_scatter is on.
    """
    if stage < 2 or root.section("zero_optimization").table.get("reduce_scatter") is False:
        return
    for key, usual in (("prescale_gradients", False), ("gradient_predivide_factor", 1)):
        if root.table.get(key, usual) != usual:
            settings.notes.append(
                f"{key}: DeepSpeed 0.19.8 refuses it at stage {stage} unless "
                "zero_optimization.reduce_scatter is false"
            )


def _experts(part: Section, settings: Settings) -> None:
    """AutoEP: over how many ranks routed experts are dealt, and how many divide one."""
    on = part.flag("enabled")
    ep, etp = (
        part.whole(key, least=1) or 1 for key in ("autoep_size", "expert_tensor_parallel_size")
    )
    if on and ep * etp > 1:
        settings.put("parallel.ep", ep, part.key("autoep_size"))
        settings.put("parallel.etp", etp, part.key("expert_tensor_parallel_size"))
    part.free(*EXPERTS_FREE)
    part.done()


def _zero(root: Section, known: Known, settings: Settings) -> int:
    """The stage, and all of ``zero_optimization``."""
    if isinstance(root.table.get("zero_optimization"), bool):  # an old spelling of stage 1
        stage = int(root.value("zero_optimization"))
        settings.put("zero.stage", stage, "zero_optimization")
        return stage
    zero = root.section("zero_optimization")
    stage = zero.whole("stage") or 0
    if stage > 3:
        raise zero.wrong(
            "stage", f"{stage} is not a ZeRO stage; the stages are 0 (DDP), 1, 2 and 3"
        )
    settings.put("zero.stage", stage, zero.key("stage"))
    _offload(zero, stage, settings)
    zero.refuse("zenflow", "ZenFlow is not modelled")
    zero.refuse(
        "zero_quantized_nontrainable_weights",
        "frozen weights that DeepSpeed quantises are not modelled",
    )
    overlap = zero.flag("overlap_comm")
    if overlap is not None:
        settings.put("zero.overlap_comm", overlap, zero.key("overlap_comm"))
    settings.notes += [
        f"{zero.key(key)}: DeepSpeed {version} refuses it" for key, version in _removed(zero.table)
    ]
    for key, knob in KNOBS.items():
        _knob(zero, key, knob, stage, known, settings)
    zero.free(*ZERO_FREE)
    zero.done()
    return stage


def _offload(zero: Section, stage: int, settings: Settings) -> None:
    """Where optimizer and parameters lie; the first spellings of these keys too."""
    for name, old, field in (
        ("offload_optimizer", "cpu_offload", "offload_optimizer"),
        ("offload_param", "cpu_offload_param", "offload_params"),
    ):
        part = zero.section(name)
        device = part.word("device", DEVICES, default="none") or "none"
        key = part.key("device")
        if zero.flag(old) and device == "none":
            device, key = "cpu", zero.key(old)
        ratio = part.value("ratio")
        if ratio not in (None, 1, 1.0, AUTO):
            raise part.wrong(
                "ratio",
                f"{shown(ratio)}: a part of the optimizer on the host is not modelled; 1 "
                "is all of it",
            )
        part.refuse("super_offload", "SuperOffload is not modelled")
        if device == "none":
            continue
        if stage == 0 or (stage < 3 and field == "offload_params"):
            settings.notes.append(f"{key} {device}: means nothing at stage {stage}")
            continue
        if device == "nvme" and stage < 3:
            settings.notes.append(
                f"{key} nvme: stages 1 and 2 keep the optimizer in host memory then"
            )
            device = "cpu"
        settings.put(f"zero.{field}", device, key)
        for size in ("buffer_count", "buffer_size", "max_in_cpu"):
            if device == "nvme" and part.whole(size) not in (None, DRIVE_BUFFERS[name].get(size)):
                settings.not_modelled.append(part.key(size))


def _knob(
    zero: Section, key: str, knob: Knob, stage: int, known: Known, settings: Settings
) -> None:
    """One key that costs something: its value, or that of ``auto``."""
    short = key.removeprefix("stage3_")
    given = key if key in zero.table or short not in zero.table else short
    zero.free(key, short)
    value = (
        zero.flag(given)
        if isinstance(knob.default, bool)
        else zero.whole(given, least=min(0, knob.default))
    )
    if zero.is_auto(given):
        value = _auto(zero, given, knob, stage, known, settings)
    if value is None or stage not in knob.stages:
        return
    if knob.field in options():
        settings.put(f"zero.{knob.field}", knob.ours(value), zero.key(given))
    elif value != knob.default:
        settings.not_modelled.append(f"{zero.key(given)} {shown(value)}")


def _auto(
    zero: Section, key: str, knob: Knob, stage: int, known: Known, settings: Settings
) -> int | None:
    """What the Trainer puts in the place of ``auto``; DeepSpeed's default where it puts nothing
    there.
    """
    of_hidden = AUTO_OF_HIDDEN.get(knob.field)
    if of_hidden is None or stage not in knob.stages:
        return None
    words, tenths, power = of_hidden
    if known.hidden is None:
        raise zero.wrong(
            key,
            f"auto is {words} to the Trainer, and that size is not known: --model or "
            "--hidden says it, or give a number here",
        )
    value = tenths * int(known.hidden**power) // 10
    settings.notes.append(
        f"{zero.key(key)} auto: {value:,} ({words}, as the Hugging Face Trainer sets it)"
    )
    return value


def _degrees(root: Section, settings: Settings) -> None:
    parallel = root.section("tensor_parallel")
    degree = parallel.whole("autotp_size")
    if degree:
        settings.put("parallel.tp", degree, parallel.key("autotp_size"))
    parallel.free(*parallel.table)
    ulysses = root.whole("sequence_parallel_size")
    if ulysses:
        settings.put("parallel.cp", ulysses, "sequence_parallel_size")


def _checkpointing(root: Section, known: Known, settings: Settings) -> None:
    """Partitioned activations; whether there are checkpoints at all is the model's own choice
    (--recompute).
    """
    part = root.section("activation_checkpointing")
    split, moved = part.flag("partition_activations"), part.flag("cpu_checkpointing")
    part.free(
        "partitioned_activations",
        "number_checkpoints",
        "contiguous_memory_optimization",
        "synchronize_checkpoint_boundary",
        "profile",
    )
    part.done()
    if split and (known.whole("parallel.tp") or 1) == 1:
        settings.notes.append(
            f"{part.key('partition_activations')}: nothing is split without tensor-parallel ranks"
        )
        split = False
    if moved and not split:
        settings.put("zero.offload_activations", "cpu", part.key("cpu_checkpointing"))
    for key, value in (("partition_activations", split), ("cpu_checkpointing", moved and split)):
        if value:
            settings.put(f"zero.{key}", True, part.key(key))


def _batch(root: Section, known: Known, settings: Settings) -> None:
    """Batch sizes as DeepSpeed completes them: train_batch_size = micro-batch · accumulation ·
    data-parallel degree.
    """
    names = {
        "training.micro_batch": "train_micro_batch_size_per_gpu",
        "training.accumulation": "gradient_accumulation_steps",
    }
    sizes: dict[str, int | None] = {}
    for path, key in names.items():
        said, flag = root.whole(key, least=1), known.whole(path) if path in known.given else None
        sizes[path] = said if flag is None else flag
        if sizes[path] is None and root.is_auto(key):
            sizes[path] = known.whole(path)
    whole, micro, accumulation = root.whole("train_batch_size", least=1), *sizes.values()
    if micro is None and whole is None and root.is_auto(names["training.micro_batch"]):
        raise root.wrong(
            names["training.micro_batch"], "auto is what the Trainer is told: --micro-batch says it"
        )
    dp = known.dp
    if whole is not None and dp is not None:
        micro, accumulation = _completed(whole, micro, accumulation, dp)
        if micro * accumulation * dp != whole:
            raise root.wrong("train_batch_size", product(whole, micro, accumulation, dp))
    for path, size in (("training.micro_batch", micro), ("training.accumulation", accumulation)):
        if size is not None and path not in known.given:
            settings.put(
                path, size, names[path] if names[path] in root.table else "train_batch_size"
            )


def _completed(whole: int, micro: int | None, accumulation: int | None, dp: int) -> tuple[int, int]:
    """The micro-batch and the accumulation that DeepSpeed makes of a whole batch and what is given
    of the two; whole numbers, rounded down.
    """
    if micro is not None:
        return micro, accumulation if accumulation is not None else max(1, whole // micro // dp)
    accumulation = accumulation or 1
    return max(1, whole // dp // accumulation), accumulation


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
    table: dict[str, Any] = {
        "train_batch_size": batch_of(job),
        "train_micro_batch_size_per_gpu": job.training.micro_batch,
        "gradient_accumulation_steps": job.training.accumulation,
        **precision_keys(job, stage),
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": job.overlaps(stage),
            **_knobs(job, stage),
        },
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
    remarks = _offloads(job, table["zero_optimization"])
    remarks += [
        f"a DeepSpeed below {version}, which zero_optimization.{key} needs"
        for key, version in _removed(table["zero_optimization"])
    ]
    return Exported(
        _json(table),
        (
            *remarks_on(job, HELD | {f"zero.{field}" for field in options()}),
            *_idle(job, stage),
            *remarks,
        ),
    )


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


def _json(table: dict[str, Any]) -> str:
    return json.dumps(table, indent=2)


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


def _removed(zero: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys that newer versions refuse, with the first of these."""
    return [
        (key, knob.removed_in) for key, knob in KNOBS.items() if knob.removed_in and key in zero
    ]


def _idle(job: Job, stage: int) -> list[str]:
    """Choices that were made and that DeepSpeed has no use for at a stage, in words."""
    plain = Zero()
    made = [knob for knob in KNOBS.values() if stage not in knob.stages and knob.field in options()]
    return [
        f"zero.{knob.field} {value}: means nothing at stage {stage}"
        for knob in made
        if (value := getattr(job.zero, knob.field)) != getattr(plain, knob.field)
    ]
