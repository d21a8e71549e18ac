"""The keys of DeepSpeed's configuration: which cost memory or traffic and what they are to a job,
which cost nothing, which are not modelled.

Read against DeepSpeed 0.19.8: runtime/config.py, runtime/constants.py, runtime/zero/config.py,
runtime/precision_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerocalc import presets
from zerocalc.spec.job import Job
from zerocalc.spec.zero import Zero

FRAMEWORK = "deepspeed"
MARKS = frozenset(
    {
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_allow_untested_optimizer",
        "steps_per_print",
        "wall_clock_breakdown",
        "communication_data_type",
        "zero_force_ds_cpu_optimizer",
        "gradient_clipping",
        "bf16",
        "fp16",
    }
)
"""Keys by which a configuration is known as DeepSpeed's."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A key of ``zero_optimization`` that costs memory or traffic: our field, DeepSpeed's default,
    the stages that it means something to.

    Our default stands for DeepSpeed's. ``other``: what our field holds for a flag that is not
    DeepSpeed's default, where it has other words for it. ``removed_in``: the version that refuses
    the key. ``at_least``: a smaller value does what this one does.
    """

    field: str
    default: int | bool
    stages: tuple[int, ...] = (1, 2, 3)
    other: bool | str | None = None
    removed_in: str | None = None
    at_least: int | None = None

    def ours(self, value: int | bool) -> Any:
        """What our field holds for a value of DeepSpeed's."""
        value = value if self.at_least is None else max(value, self.at_least)
        if value == self.default:
            return Zero.model_fields[self.field].default
        return value if self.other is None else self.other

    def theirs(self, job: Job) -> Any:
        """What DeepSpeed's key holds for a job."""
        value = getattr(job.zero, self.field)
        if value == Zero.model_fields[self.field].default:
            return self.default
        return value if self.other is None else not self.default


KNOBS = {
    "reduce_bucket_size": Knob("reduce_bucket_size", 500_000_000),
    "reduce_scatter": Knob("grad_sync", True, other="all-reduce"),
    "use_multi_rank_bucket_allreduce": Knob("reduce_to_owner", True, (1, 2), other=True),
    "contiguous_gradients": Knob("contiguous_gradients", True),
    "round_robin_gradients": Knob("round_robin_gradients", False, (1, 2)),
    "parameter_alignment": Knob("parameter_alignment", False, (1, 2)),
    "sub_group_size": Knob("sub_group_size", 1_000_000_000, (3,), at_least=1),
    "stage3_prefetch_bucket_size": Knob("prefetch_bucket_size", 50_000_000, (3,)),
    "stage3_max_live_parameters": Knob("max_live_parameters", 1_000_000_000, (3,)),
    "stage3_max_reuse_distance": Knob("max_reuse_distance", 1_000_000_000, (3,)),
    "stage3_param_persistence_threshold": Knob("persistence_threshold", 100_000, (3,)),
    "stage3_model_persistence_threshold": Knob("model_persistence_threshold", 2**63 - 1, (3,)),
    "stage3_module_granularity_threshold": Knob("module_granularity_threshold", 0, (3,)),
    "stage3_use_all_reduce_for_fetch_params": Knob("all_reduce_for_fetch", False, (3,)),
    "stage3_allgather_sequential": Knob("allgather_sequential", False, (3,)),
    "mics_shard_size": Knob("shard_group", -1, (3,), removed_in="0.19.8"),
    "zero_hpz_partition_size": Knob("secondary_group", 1, (3,)),
    "zero_quantized_weights": Knob("quantised_weights", False, (3,)),
    "zero_quantized_gradients": Knob("quantised_gradients", False, (3,)),
    "memory_efficient_linear": Knob("memory_efficient_linear", True, (3,)),
}
"""A field that `Zero` lacks, or that the framework's preset does not list among its options, is
named in a note where it is not the default.
"""

ADDED_UP_IN = "grad_accum_dtype"
"""The field of `Zero` for gradients that are added up in another dtype than their own; without it a
recipe's gradients are in that dtype.
"""

ZERO_FREE = (
    *(
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "stage3_gather_16bit_weights_on_model_save",
        "gather_16bit_weights_on_model_save",
    ),
    *(
        "stage3_gather_fp16_weights_on_model_save",
        "ignore_unused_parameters",
        "legacy_stage1",
        "override_module_apply",
        "log_trace_cache_warnings",
    ),
    *(
        "enable_sanity_checks",
        "pipeline_loading_checkpoint",
        "cpu_offload_use_pin_memory",
        "save_muon_momentum_buffer_in_memory",
    ),
    *(
        "mics_hierarchical_params_gather",
        "zeropp_loco_param",
        "leaf_module",
        "compute_grad_norm",
        "allgather_partitions",
        "allgather_bucket_size",
    ),
)
"""Keys of ``zero_optimization`` that cost neither memory nor traffic; with torch's
all_gather_into_tensor buckets of gathers mean nothing.
"""
FREE = (
    *(
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        "scheduler",
        "flops_profiler",
        "comms_logger",
        "tensorboard",
        "wandb",
        "comet",
    ),
    *(
        "csv_monitor",
        "monitor_config",
        "dump_state",
        "prescale_gradients",
        "gradient_predivide_factor",
        "gradient_allreduce_op",
        "gradient_clipping",
    ),
    *(
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "checkpoint",
        "aio",
        "nebula",
        "datastates_ckpt",
        "dataloader_drop_last",
    ),
    *(
        "log_level",
        "timers",
        "vocabulary_size",
        "disable_allgather",
        "seq_parallel_communication_data_type",
        "managed_gradient_accumulation",
    ),
    *("local_rank", "wandb_config"),
)
"""Keys that cost neither memory nor traffic of a training step."""
EXPERTS_FREE = (
    *(
        "validate_folding_routing",
        "preset_model",
        "moe_layer_pattern",
        "expert_pattern",
        "router_pattern",
        "use_grouped_mm",
        "route_norm",
    ),
    *(
        "disable_triton_grouped_mm",
        "route_scale",
        "score_apply",
        "combine_impl",
        "num_expert_groups",
        "num_limited_groups",
        "score_func",
        "top_k",
    ),
    *(
        "load_balance_coeff",
        "routed_scaling_factor",
        "expert_w1",
        "expert_w2",
        "expert_w3",
        "num_experts_attr",
        "top_k_attr",
    ),
    *("has_shared_experts", "shared_experts_pattern", "shared_experts_gate_pattern"),
)
"""Keys of ``expert_parallel`` (module_inject/auto_ep_config.py) that say which modules are experts
and how tokens are routed, not who holds what.
"""
NOT_MODELLED = (
    *(
        "sparse_gradients",
        "sparse_attention",
        "compression_training",
        "progressive_layer_drop",
        "curriculum_learning",
        "data_efficiency",
    ),
    *(
        "hybrid_engine",
        "autotuning",
        "weight_quantization",
        "quantize_training",
        "compile",
        "graph_harvesting",
        "eigenvalue",
    ),
    *("use_data_before_expert_parallelism",),
)
DEVICES = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
DRIVE_BUFFERS = {
    "offload_optimizer": {"buffer_count": 4},
    "offload_param": {"buffer_count": 5, "buffer_size": 10**8, "max_in_cpu": 10**9},
}
"""Host memory through which drives are read and written, as DeepSpeed sizes it unless told
otherwise, and as it is counted.
"""
NVME_PATH = "/local_nvme"

OPTIMIZERS = {
    "adam": "AdamW",
    "adamw": "AdamW",
    "fusedadam": "AdamW",
    "muadam": "AdamW",
    "muadamw": "AdamW",
    "lion": "Lion",
    "muon": "Muon",
    "sgd": "SGD",
    "musgd": "SGD",
}
"""Optimizers by DeepSpeed's and torch's names; Adam and AdamW keep the same."""

AUTO_OF_HIDDEN = {
    "reduce_bucket_size": ("hidden²", 10, 2),
    "prefetch_bucket_size": ("0.9·hidden²", 9, 2),
    "persistence_threshold": ("10·hidden", 100, 1),
}
"""What the Trainer makes of ``auto``: in words, in tenths, and the power of the hidden size."""

PRECISION_FREE = (
    *(
        "auto_cast",
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
    ),
    *("immediate_grad_update", "check_grad_overflow", "check_overflow", "opt_level"),
)


def options() -> frozenset[str]:
    """The fields of `Zero` that mean something to DeepSpeed."""
    return frozenset(presets.load("frameworks", FRAMEWORK)["options"]) & Zero.model_fields.keys()


def removed_keys(zero: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys that newer versions refuse, with the first of these."""
    return [
        (key, knob.removed_in) for key, knob in KNOBS.items() if knob.removed_in and key in zero
    ]
