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
    ("model", "NAME|FILE", "A preset, a TOML file, or a Hugging Face config.json."),
)
DESCRIPTION = _flags(
    "Model",
    "model",
    ("params", "COUNT", "Number of parameters alone: 7.5B, 350M."),
    ("trainable", "COUNT", "Parameters that are trained, if not all; the rest is frozen."),
    ("lora.rank", "N", "Freeze the model and train adapters of this rank (LoRA)."),
    ("lora.targets", "NAMES|all-linear", "Layers with adapters: q_proj,v_proj (default: PEFT's)."),
    ("lora.dtype", "fp32|bf16|fp16", "Dtype of the adapters (default fp32, as PEFT makes them)."),
    ("lora.dropout", "FRACTION", "Dropout before the adapters (default 0)."),
    ("quantised", "NAME|FILE|none", "Format of a frozen base: nf4, nf4-double, int8, fp8, gptq."),
    ("blocks", "N", "Equal blocks that --params is cut into, for gathers at stage 3."),
    ("kind", "gpt2|llama", "Kind of the layers described by the flags below (default gpt2)."),
    ("layers", "N", "Transformer layers."),
    ("hidden", "N", "Hidden size."),
    ("heads", "N", "Attention heads."),
    ("kv_heads", "N", "Key and value heads (default: as many as heads)."),
    ("head_dim", "N", "Size of a head (default: hidden / heads)."),
    ("ffn", "N", "MLP's inner size (default: 4 x hidden; kind llama: 8/3, rounded up)."),
    ("vocab", "N", "Vocabulary size (default: GPT-2's 50257; kind llama: 32000)."),
    ("positions", "N", "Learned positions (kind gpt2; default 1024, or the sequence length)."),
    (
        "tied_embeddings",
        "",
        "Head and embedding share one tensor (default: kind gpt2 yes, llama no).",
    ),
    ("activation", "NAME", "MLP's activation: silu, gelu, gelu_new, relu … (default: the kind's)."),
)
CLUSTER = _flags(
    "Machine and degrees",
    "cluster",
    ("gpus", "N", "GPUs in all."),
    ("gpu", "NAME|FILE", "Kind of GPU, for what fits: h100-80g."),
    ("gpu_memory", "BYTES", "Usable memory of a GPU: 80GB (1e9) or 80GiB (2^30)."),
    ("node", "NAME|FILE", "Kind of node: which GPUs it has, and how many."),
    ("gpus_per_node", "N", "GPUs in one node (default 8)."),
    ("intra_node", "BANDWIDTH", "What a GPU sends inside its node, one way: 450GB/s."),
    (
        "inter_node",
        "BANDWIDTH",
        "What a node's network cards send together: 8x400Gbps as 3200Gbps.",
    ),
    ("cpu_memory", "BYTES", "Memory of a node's host: 1TB (1e12) or 1TiB."),
    ("cpu_bandwidth", "BANDWIDTH", "What a host's memory carries: 400GB/s."),
    ("nvme_capacity", "BYTES", "What a node's drives hold: 30TB."),
    ("nvme_bandwidth", "BANDWIDTH", "What a node's drives read or write together: 25GB/s."),
    ("workspaces", "", "Count what libraries of matrix products work in."),
    ("cublas_workspace", "BYTES", "A cuBLAS workspace (default: the GPU's), of which there are 2."),
)
DEGREES = _flags(
    "Machine and degrees",
    "parallel",
    ("tp", "N", "Tensor-parallel degree (default 1)."),
    ("pp", "N", "Pipeline-parallel degree (default 1)."),
    (
        "first_stage_layers",
        "N",
        "Layers of the first pipeline stage, if not as many as the others.",
    ),
    ("last_stage_layers", "N", "Layers of the last pipeline stage, if not as many as the others."),
    ("interleave", "N", "Chunks of layers on each pipeline stage (default 1)."),
    ("pipeline_stage", "N", "Whose memory: 1 is the first stage (default: the worst one's)."),
    ("ep", "N", "Expert-parallel degree: ranks that share routed experts (default 1)."),
    ("etp", "N", "Ranks that divide each routed expert (default: tp, or the framework's)."),
    ("cp", "N", "Context-parallel degree (default 1)."),
    ("sequence_parallel", "", "Split also what tensor parallelism replicates."),
)
TRAINING = _flags(
    "Training",
    "training",
    ("seq", "N", "Sequence length in tokens."),
    ("micro_batch", "N", "Sequences per GPU and pass (default 1)."),
    ("accumulation", "N", "Micro-batches per optimizer step (default 1)."),
    ("recompute", "none|selective|operators|full", "Activation recomputation (default none)."),
    ("recompute_every", "N", "Recompute one layer in N (default 1: all)."),
    ("recompute_modules", "LIST", "Selective: core_attn, mlp, moe (default core_attn)."),
    (
        "kernel_efficiency",
        "FRACTION",
        "Share of the dense peak that kernels reach (the GPU's, else 0.55).",
    ),
    ("tokens", "COUNT", "Tokens of the whole training, for days and GPU-hours: 1T."),
    ("reentrant", "", "Recompute a layer's whole forward pass (use_reentrant)."),
    ("attention", "flash|efficient|math|eager", "Attention kernel (default flash)."),
)
NAMES_OF_TRAINING = _flags(
    "Training",
    "",
    ("implementation", "NAME|FILE", "Whose layers (default: the framework's): huggingface."),
    ("loss", "NAME|FILE", "What the loss makes of logits (default: the implementation's)."),
    ("recipe", "NAME|FILE", "State rows and dtypes (default: the framework's, mixed-adam)."),
)
FRAMEWORK = _flags(
    "ZeRO",
    "",
    ("framework", "NAME|FILE", "Whose behaviour (default paper: ZeRO as published)."),
)
ZERO = _flags(
    "ZeRO",
    "zero",
    ("stage", "0,1,2,3", "ZeRO stages to show; 0 is DDP (default: all)."),
    (
        "grad_sync",
        "reduce-scatter|all-reduce",
        "How stage 1 or DeepSpeed reduces gradients (default reduce-scatter).",
    ),
    ("defer_grad_sync", "", "Reduce once a step, not every micro-batch; keep whole gradients."),
    ("gather", "all-gather|broadcast", "How stage 3 brings weights (default all-gather)."),
    ("reduce_dtype", "bf16|fp16|fp32", "Dtype of gradients in flight (default: the recipe's)."),
    ("shard_group", "N", "Hybrid sharding: shards over N ranks, copies over the rest."),
    ("secondary_group", "N", "hpZ: a second copy of stage 3's weights in each N ranks."),
    ("quantised_weights", "", "qwZ: stage 3 gathers weights in int8."),
    ("quantised_gradients", "", "qgZ: stage 3 reduces in 4 bits, in and between nodes."),
    ("reduce_to_owner", "", "Stages 1 and 2: reduce to each owner (default all-reduce)."),
    ("grad_accum_dtype", "fp32", "Dtype in which gradients are added up, if not their own."),
    (
        "offload_optimizer",
        "none|cpu|nvme",
        "Optimizer states, and gradients, in host memory or on drives.",
    ),
    ("offload_params", "none|cpu|nvme", "Stage 3's parameters in host memory or on drives."),
)
RESIDUAL = _flags(
    "Residual states",
    "zero",
    ("contiguous_gradients", "", "Copy gradients into the bucket as they come (default on)."),
    ("max_live_parameters", "COUNT", "Elements that may be gathered at once (default 1B)."),
    ("max_reuse_distance", "COUNT", "Elements within which a weight stays gathered (1B)."),
    ("prefetch_bucket_size", "COUNT", "Elements that are gathered ahead at once (default 50M)."),
    ("persistence_threshold", "COUNT", "Largest tensor that is not sharded (default 100,000)."),
    ("sub_group_size", "COUNT", "Elements that one turn of a step handles (default 1B)."),
    ("partition_activations", "", "P_a: split checkpoints over tensor-parallel ranks."),
    ("cpu_checkpointing", "", "P_a+cpu: keep the split checkpoints in host memory."),
    (
        "offload_activations",
        "none|cpu",
        "Where checkpoints of --recompute full lie (default none: GPU).",
    ),
    ("buffers", "constant|fused", "C_B buckets, or the fused fp32 buffer they replace."),
    ("reduce_bucket_size", "COUNT", "Elements per reduce bucket (default 500M)."),
    ("allgather_bucket_size", "COUNT", "Elements per all-gather bucket (default 500M)."),
    ("overlap_comm", "", "Overlap traffic with backward; doubles buckets at 1 and 2 (default on)."),
    ("defragment", "", "M_D: contiguous buffers, nothing lost (default on)."),
    (
        "fragmentation",
        "FRACTION",
        "With --no-defragment: bytes lost per dynamic byte in use (0.3).",
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
