"""Every flag that describes a job, once: the field it sets, what it takes, its help.

`zerocalc.cli.parameters` gives them to commands.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMED = {
    "model": "models",
    "model.quantised": "quantisations",
    "cluster.gpu": "gpus",
    "cluster.node": "nodes",
    "recipe": "recipes",
    "framework": "frameworks",
    "implementation": "implementations",
    "loss": "losses",
}
"""Fields that a name can stand for, and the kind of preset it names."""
SPELLED = {"model.quantised": "quantise"}
"""Fields that are a participle where their flag is a verb."""
ALIASES = {"zero.partition_activations": "--pa", "zero.cpu_checkpointing": "--pa-cpu"}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``path`` is the Job's field, ``name`` follows from it; without a ``metavar`` the
    flag has an on and an off form instead of a value.
    """

    name: str
    path: str
    metavar: str
    help: str
    panel: str

    @property
    def switch(self) -> bool:
        """Whether the flag stands for true or false."""
        return not self.metavar

    @property
    def alias(self) -> str:
        """A shorter spelling, if there is one."""
        return ALIASES.get(self.path, "")

    @property
    def complete(self) -> str:
        """The kind of presets that the flag names, if it does."""
        return NAMED.get(self.path, "")

    @property
    def parameter(self) -> str:
        """The name of the Python parameter that carries the flag."""
        return self.path.replace(".", "__")


def _flags(panel: str, part: str, *rows: tuple[str, str, str]) -> tuple[Flag, ...]:
    """The flags for fields of one part of the Job: (field, metavar, help)."""
    flags = []
    for field, metavar, text in rows:
        path = f"{part}.{field}" if part else field
        name = f"--{SPELLED.get(path, field).replace('.', '-').replace('_', '-')}"
        flags.append(Flag(name, path, metavar, text, panel))
    return tuple(flags)


MODEL = _flags(
    "Model",
    "",
    ("model", "NAME|FILE", "Preset, TOML file or HF config.json."),
)
DESCRIPTION = _flags(
    "Model",
    "model",
    ("params", "COUNT", "Parameter count only: 7.5B, 350M."),
    ("trainable", "COUNT", "Trainable parameters; the rest is frozen."),
    ("lora.rank", "N", "LoRA rank; the model itself is frozen."),
    ("lora.targets", "NAMES|all-linear", "Layers with adapters (default: PEFT's)."),
    ("lora.dtype", "fp32|bf16|fp16", "Adapter dtype (default fp32, as in PEFT)."),
    ("lora.dropout", "FRACTION", "LoRA dropout (default 0)."),
    ("quantised", "NAME|FILE|none", "Format of the frozen base: nf4, int8, gptq."),
    ("blocks", "N", "Equal blocks of --params, for stage 3."),
    ("kind", "gpt2|llama", "Layer kind for the flags below (gpt2)."),
    ("layers", "N", "Transformer layers."),
    ("hidden", "N", "Hidden size."),
    ("heads", "N", "Attention heads."),
    ("kv_heads", "N", "Key-value heads (default: --heads)."),
    ("head_dim", "N", "Head size (default: hidden / heads)."),
    ("ffn", "N", "MLP size (default 4 × hidden; llama 8/3)."),
    ("vocab", "N", "Vocabulary size (gpt2 50257, llama 32000)."),
    ("positions", "N", "Learned positions (gpt2: 1024 or --seq)."),
    (
        "tied_embeddings",
        "",
        "Tied embedding and head (gpt2: on).",
    ),
    ("activation", "NAME", "MLP activation: silu, gelu, gelu_new, relu."),
)
CLUSTER = _flags(
    "Machine and degrees",
    "cluster",
    ("gpus", "N", "Number of GPUs."),
    ("gpu", "NAME|FILE", "GPU preset: h100-80g."),
    ("gpu_memory", "BYTES", "Usable memory per GPU: 80GB, 80GiB."),
    ("node", "NAME|FILE", "Node preset: GPUs, links, CPU memory."),
    ("gpus_per_node", "N", "GPUs per node (default 8)."),
    ("intra_node", "BANDWIDTH", "Intra-node bandwidth per GPU, one way."),
    (
        "inter_node",
        "BANDWIDTH",
        "Inter-node bandwidth of all a node's NICs.",
    ),
    ("cpu_memory", "BYTES", "CPU memory per node: 1TB, 1TiB."),
    ("cpu_bandwidth", "BANDWIDTH", "CPU memory bandwidth per node: 400GB/s."),
    ("nvme_capacity", "BYTES", "NVMe capacity per node: 30TB."),
    ("nvme_bandwidth", "BANDWIDTH", "NVMe bandwidth per node: 25GB/s."),
    ("workspaces", "", "Count matmul library workspaces."),
    ("cublas_workspace", "BYTES", "Size of each of the 2 cuBLAS workspaces."),
)
DEGREES = _flags(
    "Machine and degrees",
    "parallel",
    ("tp", "N", "Tensor-parallel degree (default 1)."),
    ("pp", "N", "Pipeline-parallel degree (default 1)."),
    (
        "first_stage_layers",
        "N",
        "Layers of the first pipeline stage.",
    ),
    ("last_stage_layers", "N", "Layers of the last pipeline stage."),
    ("interleave", "N", "Layer chunks per pipeline stage (default 1)."),
    ("pipeline_stage", "N", "Pipeline rank, from 1 (default: largest)."),
    ("ep", "N", "Expert-parallel degree (default 1)."),
    ("etp", "N", "Expert tensor-parallel degree (default: tp)."),
    ("cp", "N", "Context-parallel degree (default 1)."),
    ("sequence_parallel", "", "Sequence parallelism along with --tp."),
)
TRAINING = _flags(
    "Training",
    "training",
    ("seq", "N", "Sequence length in tokens."),
    ("micro_batch", "N", "Micro-batch size per GPU (default 1)."),
    ("accumulation", "N", "Gradient accumulation steps (default 1)."),
    ("recompute", "none|selective|operators|full", "Activation checkpointing (default none)."),
    ("recompute_every", "N", "Recompute every n-th layer (default 1)."),
    ("recompute_modules", "LIST", "Selective: core_attn, mlp, moe (core_attn)."),
    (
        "kernel_efficiency",
        "FRACTION",
        "Fraction of peak FLOP/s (default: GPU's).",
    ),
    ("tokens", "COUNT", "Training tokens, for days and GPU-hours: 1T."),
    ("reentrant", "", "Reentrant checkpointing (use_reentrant)."),
    ("attention", "flash|efficient|math|eager", "Attention kernel (default flash)."),
)
NAMES_OF_TRAINING = _flags(
    "Training",
    "",
    ("implementation", "NAME|FILE", "Layer implementation: huggingface."),
    ("loss", "NAME|FILE", "Loss implementation (default: the layers')."),
    ("recipe", "NAME|FILE", "State dtypes (default: the framework's)."),
)
FRAMEWORK = _flags(
    "ZeRO",
    "",
    ("framework", "NAME|FILE", "Framework (default paper: idealised ZeRO)."),
)
ZERO = _flags(
    "ZeRO",
    "zero",
    ("stage", "0,1,2,3", "ZeRO stages; 0 is DDP (default: all)."),
    (
        "grad_sync",
        "reduce-scatter|all-reduce",
        "Gradient reduction (default reduce-scatter).",
    ),
    ("defer_grad_sync", "", "Reduce gradients once per step (no_sync)."),
    ("gather", "all-gather|broadcast", "Stage 3 weight gathers (default all-gather)."),
    ("reduce_dtype", "bf16|fp16|fp32", "Gradient reduction dtype (recipe's)."),
    ("shard_group", "N", "Hybrid sharding: shard within N ranks."),
    ("secondary_group", "N", "hpZ: secondary shards within N ranks."),
    ("quantised_weights", "", "qwZ: all-gather int8 weights at stage 3."),
    ("quantised_gradients", "", "qgZ: reduce 4-bit gradients at stage 3."),
    ("reduce_to_owner", "", "Stages 1, 2: reduce to the owning rank."),
    ("grad_accum_dtype", "fp32", "Gradient accumulation dtype."),
    (
        "offload_optimizer",
        "none|cpu|nvme",
        "Offload optimizer states and gradients.",
    ),
    ("offload_params", "none|cpu|nvme", "Offload stage 3 parameters."),
)
RESIDUAL = _flags(
    "Residual states",
    "zero",
    ("contiguous_gradients", "", "Copy gradients into a bucket (default on)."),
    ("max_live_parameters", "COUNT", "Most elements gathered at once (1B)."),
    ("max_reuse_distance", "COUNT", "Elements before a gathered weight goes (1B)."),
    ("prefetch_bucket_size", "COUNT", "Prefetch size in elements (default 50M)."),
    ("persistence_threshold", "COUNT", "Largest unsharded tensor (default 100,000)."),
    ("sub_group_size", "COUNT", "Elements per optimizer sub-step (1B)."),
    ("partition_activations", "", "P_a: shard checkpoints over tp ranks."),
    ("cpu_checkpointing", "", "P_a+cpu: keep checkpoints in CPU memory."),
    (
        "offload_activations",
        "none|cpu",
        "Offload checkpoints of --recompute full.",
    ),
    ("buffers", "constant|fused", "C_B buckets, or one fused fp32 buffer."),
    ("reduce_bucket_size", "COUNT", "Elements per reduce bucket (default 500M)."),
    ("allgather_bucket_size", "COUNT", "Elements per all-gather bucket (500M)."),
    ("overlap_comm", "", "Overlap communication with backward (on)."),
    ("defragment", "", "M_D: no fragmentation (default on)."),
    (
        "fragmentation",
        "FRACTION",
        "Fraction lost with --no-defragment (0.3).",
    ),
)
FLAGS = (
    *MODEL,
    *DESCRIPTION,
    *CLUSTER,
    *DEGREES,
    *TRAINING,
    *NAMES_OF_TRAINING,
    *FRAMEWORK,
    *ZERO,
    *RESIDUAL,
)

COUNT_WITH = "count_with"
"""Not of a job: who counts a config.json."""
COUNTERS = ("transformers",)
CONFIG = "config"
"""Not of a job: another tool's configuration, which lies under the flags and over a job file."""

FLAG_OF_PATH = {flag.path: flag.name for flag in FLAGS} | {
    COUNT_WITH: "--count-with",
    CONFIG: "--config",
}
