"""DeepSpeed's configuration: what each of its keys means to a job.

Read against DeepSpeed 0.19.8: runtime/config.py, runtime/constants.py, runtime/zero/config.py,
runtime/precision_config.py, runtime/engine.py. ``auto`` is what the Hugging Face Trainer makes of
it (transformers, integrations/deepspeed.py).
"""

from __future__ import annotations

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
    ZERO_FREE,
    Knob,
    options,
    removed_keys,
)
from zerocalc.configs.deepspeed_recipe import read_recipe
from zerocalc.configs.reader import AUTO, Known, Section, Settings, product
from zerocalc.configs.recipes import DTYPES
from zerocalc.quantities import shown

__all__ = ["MARKS", "read"]


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
        f"{zero.key(key)}: DeepSpeed {version} refuses it"
        for key, version in removed_keys(zero.table)
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
