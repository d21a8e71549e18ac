"""accelerate's configuration (YAML or JSON): FSDP, DeepSpeed or DDP as it launches them.

Read against accelerate 1.15: commands/config/config_args.py, commands/launch.py, utils/launch.py,
utils/dataclasses.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerocalc import presets
from zerocalc.configs import deepspeed, deepspeed_keys
from zerocalc.configs.reader import Known, Section, Settings
from zerocalc.configs.recipes import UNDER_AUTOCAST, WITH_FP32_WEIGHTS, recipe_table
from zerocalc.presets import PresetError
from zerocalc.quantities import shown
from zerocalc.spec.base import FieldError
from zerocalc.spec.cluster import DEFAULT_GPUS_PER_NODE

FSDP1, FSDP2, DDP = "fsdp1", "fsdp2", "torch-ddp"
MARKS = frozenset(
    {"distributed_type", "compute_environment", "fsdp_config", "deepspeed_config", "num_machines"}
)
"""Keys by which a configuration is known as accelerate's."""

KINDS = {"no": "ddp", "multi_gpu": "ddp", "fsdp": "fsdp", "deepspeed": "deepspeed"}
PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
STRATEGIES = {
    "full_shard": "3",
    "shard_grad_op": "2",
    "no_shard": "0",
    "hybrid_shard": "hybrid 3",
    "hybrid_shard_zero2": "hybrid 2",
    "1": "3",
    "2": "2",
    "3": "0",
    "4": "hybrid 3",
    "5": "hybrid 2",
}
"""FSDP1's sharding strategies by name or number: the stage that each is, and whether it keeps
copies in every node.
"""
ROOT_OF_FSDP2 = (
    "FSDP2's root is counted as kept gathered, as of a model with tied embeddings; "
    "accelerate 1.14 shards an untied embedding by itself and gathers "
    "it again in backward (--framework torchtitan --implementation huggingface counts "
    "that), and before 1.14 the whole root"
)
"""accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, of 1.13 and 1.14; 1.15 recorded with torch
2.13.
"""
FREE = (
    "debug",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "rdzv_backend",
    "same_network",
    "gpu_ids",
    "enable_cpu_affinity",
    "downcast_bf16",
    "command_file",
    "commands",
    "mpirun_config",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_env",
    "fp16",
)
FSDP_FREE = (
    "fsdp_state_dict_type",
    "fsdp_cpu_ram_efficient_loading",
    "fsdp_sync_module_states",
    "fsdp_use_orig_params",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_min_num_params",
    "fsdp_limit_all_gathers",
)
"""Keys that cost neither memory nor traffic of a training step."""


def read(table: dict[str, Any], known: Known, settings: Settings, path: str) -> None:
    """Read a configuration, which lies at ``path``, into ``settings``. Raises `FieldError` with the
    key for a path.
    """
    root = Section(table, settings)
    root.free(*FREE)
    root.refuse("use_cpu", "training on CPUs is not modelled")
    place = root.value("compute_environment")
    if isinstance(place, str) and place.upper() != "LOCAL_MACHINE":
        raise root.wrong("compute_environment", f"{shown(place)} is not read; LOCAL_MACHINE is")
    for key in ("dynamo_config", "fp8_config", "megatron_lm_config"):
        root.note(key)
    kind = _kind(root)
    _machines(root, known, settings)
    precision = root.word("mixed_precision", PRECISIONS)
    if precision is None:
        precision = "fp16" if root.table.get("fp16") is True else "fp32"
    if kind == "deepspeed":
        _deepspeed(root, known.over(settings.items), settings, precision, path)
    elif kind == "fsdp":
        _fsdp(root, known.over(settings.items), settings, precision)
    else:
        settings.put("framework", DDP, "distributed_type")
        settings.put("zero.stage", 0, "distributed_type")
        _recipe(settings, UNDER_AUTOCAST, precision, known)
    for key in ("deepspeed_config", "fsdp_config", "parallelism_config"):
        if key not in root.read:
            root.note(key)
    root.done()


def _kind(root: Section) -> str:
    """What is launched: ``distributed_type``, or the part that there is."""
    kind = root.word("distributed_type", KINDS)
    if kind is None:
        found = [name for name in ("fsdp", "deepspeed") if root.table.get(f"{name}_config")]
        if len(found) != 1:
            raise root.wrong(
                "distributed_type",
                "is missing; FSDP, DEEPSPEED or MULTI_GPU is "
                f"read{', and both are described' if found else ''}",
            )
        return found[0]
    return kind


def _machines(root: Section, known: Known, settings: Settings) -> None:
    """GPUs in all, and in one node where there are several."""
    gpus, nodes = root.whole("num_processes", least=-1), root.whole("num_machines", least=1)
    if gpus is None or gpus < 1:
        return
    settings.put("cluster.gpus", gpus, "num_processes")
    if (
        nodes is None
        or {"cluster.gpus", "cluster.gpus_per_node"} & known.given.keys()
        or known.value("cluster.node") is not None
    ):
        return
    if gpus % nodes:
        raise root.wrong("num_machines", f"{nodes} does not divide the {gpus} processes")
    if nodes > 1 or gpus > DEFAULT_GPUS_PER_NODE:
        settings.put("cluster.gpus_per_node", gpus // nodes, "num_machines")


def _recipe(
    settings: Settings, recipes: dict[tuple[str, str], str], precision: str, known: Known
) -> None:
    """The recipe of a precision, unless a flag names one."""
    if "recipe" in known.given:
        return
    settings.put("recipe", recipe_table(recipes, "AdamW", precision), "mixed_precision")
    settings.notes.append("the optimizer is the script's: taken as Adam; --recipe says otherwise")
    if precision == "fp32":
        settings.notes.append(
            "mixed_precision no: weights taken as fp32; --recipe pure-bf16-adam for a "
            "model that is loaded in bf16"
        )


def _fsdp(root: Section, known: Known, settings: Settings, precision: str) -> None:
    part = root.section("fsdp_config")
    version = part.whole("fsdp_version", least=1) or 1
    if version > 2:
        raise part.wrong("fsdp_version", f"{version} is not 1 or 2")
    settings.put("framework", FSDP1 if version == 1 else FSDP2, part.key("fsdp_version"))
    if part.flag("fsdp_offload_params"):
        settings.put_on_host(part.key("fsdp_offload_params"))
    policy = part.value("fsdp_auto_wrap_policy")
    if not isinstance(policy, str) or policy.upper() != "TRANSFORMER_BASED_WRAP":
        what = "is missing" if policy is None else f"{shown(policy)} is not modelled"
        raise part.wrong(
            "fsdp_auto_wrap_policy",
            f"{what}; TRANSFORMER_BASED_WRAP, each layer a unit, is what is read",
        )
    if part.flag("fsdp_activation_checkpointing"):
        settings.put("training.recompute", "full", part.key("fsdp_activation_checkpointing"))
    prefetch = part.value("fsdp_backward_prefetch")
    if version == 1 and isinstance(prefetch, str) and prefetch.upper() not in ("BACKWARD_PRE", "1"):
        settings.not_modelled.append(f"{part.key('fsdp_backward_prefetch')} {shown(prefetch)}")
    part.note("fsdp_forward_prefetch")
    part.note("fsdp_ignored_modules")
    strategy = _strategy(part, version)
    settings.put(
        "zero.stage",
        int(strategy[-1]),
        part.key("fsdp_reshard_after_forward" if version == 2 else "fsdp_sharding_strategy"),
    )
    if version == 2 and strategy == "3":
        settings.notes.append(ROOT_OF_FSDP2)
    if strategy.startswith("hybrid"):
        settings.put("zero.shard_group", _in_a_node(known), part.key("fsdp_sharding_strategy"))
    part.free(*FSDP_FREE)
    part.done()
    _degrees(root, known, settings, version)
    _recipe(settings, WITH_FP32_WEIGHTS, precision, known)
    if (
        "recipe" not in known.given and precision != "fp32"
    ):  # one dtype for weights and for gradients in flight
        settings.put("zero.reduce_dtype", precision, "mixed_precision")


def _strategy(part: Section, version: int) -> str:
    """The stage, after ``hybrid`` where each node keeps a copy."""
    old, new = part.value("fsdp_sharding_strategy"), part.value("fsdp_reshard_after_forward")
    if version == 2:
        return "2" if part.flag("fsdp_reshard_after_forward") is False else "3"
    key = (
        "fsdp_reshard_after_forward"
        if old is None and isinstance(new, str) and new.lower() in STRATEGIES
        else "fsdp_sharding_strategy"
    )
    value = part.value(key)
    found = (
        "3"
        if value is None
        else STRATEGIES.get(str(value).lower())
        if isinstance(value, (str, int))
        else None
    )
    if found is None:
        raise part.wrong(
            key,
            f"{shown(value)} is not one of "
            f"{', '.join(name.upper() for name in list(STRATEGIES)[:5])}",
        )
    return found


def _in_a_node(known: Known) -> int:
    """GPUs of one node, or all where these are fewer."""
    node = (
        known.whole("cluster.gpus_per_node")
        or known.whole("cluster.node.gpus")
        or DEFAULT_GPUS_PER_NODE
    )
    return min(node, known.whole("cluster.gpus") or node)


def _degrees(root: Section, known: Known, settings: Settings, version: int) -> None:
    """``parallelism_config``: copies, shards, tensor and context parallelism."""
    prefix = "parallelism_config_"
    part = root.section("parallelism_config")
    if not part.table:
        return
    if version == 1:
        raise root.wrong("parallelism_config", "needs fsdp_version 2")
    copies, shards, tp, cp = (
        part.whole(f"{prefix}{name}_size", least=1) or 1
        for name in ("dp_replicate", "dp_shard", "tp", "cp")
    )
    for name, degree in (("tp", tp), ("cp", cp)):
        if degree > 1:
            settings.put(f"parallel.{name}", degree, part.key(f"{prefix}{name}_size"))
    if (part.whole(f"{prefix}sp_size", least=1) or 1) > 1:
        raise part.wrong(
            f"{prefix}sp_size",
            "sequence parallelism is read from DeepSpeed's configuration, not beside FSDP",
        )
    part.free(
        *(
            f"{prefix}{name}"
            for name in (
                "cp_backend",
                "cp_comm_strategy",
                "sp_backend",
                "sp_seq_length",
                "sp_seq_length_is_variable",
            )
        )
    )
    part.free(f"{prefix}sp_attn_implementation")
    part.done()
    gpus = known.whole("cluster.gpus")
    if gpus is not None and gpus != copies * shards * tp * cp:
        text = (
            f"{copies} copies × {shards} shards × tp {tp} × cp {cp} = "
            f"{copies * shards * tp * cp} are not the {gpus} processes"
        )
        raise part.wrong(f"{prefix}dp_shard_size", text)
    if copies > 1:
        settings.put("zero.shard_group", shards * cp, part.key(f"{prefix}dp_replicate_size"))


def _deepspeed(root: Section, known: Known, settings: Settings, precision: str, path: str) -> None:
    """The plugin's keys, or the file of DeepSpeed's own that they name, which lies beside this
    one.
    """
    part = root.section("deepspeed_config")
    named = part.value("deepspeed_config_file")
    offloads = {}
    for key in ("offload_optimizer", "offload_param"):
        device = part.word(f"{key}_device", deepspeed_keys.DEVICES, default="none")
        if device != "none" and named not in (None, "none"):
            raise part.wrong(
                f"{key}_device", "is said by the file that deepspeed_config_file names"
            )
        offloads[key] = {"device": device}
    part.free(
        "deepspeed_multinode_launcher",
        "deepspeed_hostfile",
        "deepspeed_exclusion_filter",
        "deepspeed_inclusion_filter",
        "zero3_init_flag",
    )
    part.free(
        "zero3_save_16bit_model",
        "gradient_clipping",
        "offload_optimizer_nvme_path",
        "offload_param_nvme_path",
        "deepspeed_moe_layer_cls_names",
    )
    stage, steps = part.whole("zero_stage"), part.whole("gradient_accumulation_steps", least=1)
    part.done()
    inner = Settings()
    mixed = "no" if precision == "fp32" else precision
    if named in (None, "none"):
        table: dict[str, Any] = {
            "zero_optimization": {"stage": 2 if stage is None else stage, **offloads},
            "optimizer": {"type": "AdamW"},
        }
        table |= {} if steps is None else {"gradient_accumulation_steps": steps}
        deepspeed.read(table, known, inner, mixed)
        inner.notes.append("the optimizer is the script's: taken as Adam; --recipe says otherwise")
        words = {f"zero_optimization.{key}.device": part.key(f"{key}_device") for key in offloads}
        words |= {
            "zero_optimization.stage": part.key("zero_stage"),
            "gradient_accumulation_steps": part.key("gradient_accumulation_steps"),
        }
        named_as = dict.fromkeys(inner.keys.values(), "deepspeed_config") | words
    else:
        if not isinstance(named, str):
            raise part.wrong("deepspeed_config_file", f"{shown(named)} is no path")
        try:
            deepspeed.read(presets.read_table(_beside(path, named)), known, inner, mixed)
        except PresetError as error:
            raise part.wrong("deepspeed_config_file", str(error)) from None
        except FieldError as error:
            raise FieldError(
                f"{part.key('deepspeed_config_file')}: {error.path}", str(error)
            ) from None
        named_as = {
            key: f"{part.key('deepspeed_config_file')}: {key}" for key in inner.keys.values()
        }
    for field, value in inner.items.items():
        settings.put(field, value, named_as[inner.keys[field]])
    settings.notes += inner.notes
    settings.not_modelled += inner.not_modelled
    settings.unknown += inner.unknown


def _beside(path: str, name: str) -> str:
    """The path of a file that the one at ``path`` names."""
    return str(Path(path).parent / name) if Path(path).is_file() else name
