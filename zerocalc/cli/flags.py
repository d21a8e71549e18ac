"""Every flag that describes a job, once: its name, the field it sets, its help. Commands take them
all through `job_flags`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import typer

from zerocalc import presets


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``path`` is the Job's field; a ``switch`` has an on and an off form instead of a
    value.
    """

    name: str
    path: str
    metavar: str
    help: str
    panel: str
    complete: str = ""
    alias: str = ""

    @property
    def switch(self) -> bool:
        """Whether the flag stands for true or false."""
        return not self.metavar

    @property
    def parameter(self) -> str:
        """The name of the Python parameter that carries the flag."""
        return self.path.replace(".", "__")


MODEL, MACHINE, RUN, ZERO, RESIDUAL = (
    "Model",
    "Machine and degrees",
    "Training",
    "ZeRO",
    "Residual states",
)

FLAGS = (
    Flag(
        "--model",
        "model",
        "NAME|FILE",
        "A preset, a TOML file, or a Hugging Face config.json.",
        MODEL,
        "models",
    ),
    Flag("--params", "model.params", "COUNT", "Number of parameters alone: 7.5B, 350M.", MODEL),
    Flag(
        "--trainable",
        "model.trainable",
        "COUNT",
        "Parameters that are trained, if not all; the rest is frozen.",
        MODEL,
    ),
    Flag(
        "--lora-rank",
        "model.lora.rank",
        "N",
        "Freeze the model and train adapters of this rank (LoRA).",
        MODEL,
    ),
    Flag(
        "--lora-targets",
        "model.lora.targets",
        "NAMES|all-linear",
        "Layers with adapters: q_proj,v_proj (default: PEFT's).",
        MODEL,
    ),
    Flag(
        "--lora-dtype",
        "model.lora.dtype",
        "fp32|bf16|fp16",
        "Dtype of the adapters (default fp32, as PEFT makes them).",
        MODEL,
    ),
    Flag(
        "--lora-dropout",
        "model.lora.dropout",
        "FRACTION",
        "Dropout before the adapters (default 0).",
        MODEL,
    ),
    Flag(
        "--quantise",
        "model.quantised",
        "NAME|FILE|none",
        "Format of a frozen base: nf4, nf4-double, int8, fp8, gptq.",
        MODEL,
        "quantisations",
    ),
    Flag(
        "--blocks",
        "model.blocks",
        "N",
        "Equal blocks that --params is cut into, for gathers at stage 3.",
        MODEL,
    ),
    Flag(
        "--kind",
        "model.kind",
        "gpt2|llama",
        "Kind of the layers described by the flags below (default gpt2).",
        MODEL,
    ),
    Flag("--layers", "model.layers", "N", "Transformer layers.", MODEL),
    Flag("--hidden", "model.hidden", "N", "Hidden size.", MODEL),
    Flag("--heads", "model.heads", "N", "Attention heads.", MODEL),
    Flag(
        "--kv-heads",
        "model.kv_heads",
        "N",
        "Key and value heads (default: as many as heads).",
        MODEL,
    ),
    Flag("--head-dim", "model.head_dim", "N", "Size of a head (default: hidden / heads).", MODEL),
    Flag(
        "--ffn",
        "model.ffn",
        "N",
        "MLP's inner size (default: 4 x hidden; kind llama: 8/3, rounded up).",
        MODEL,
    ),
    Flag(
        "--vocab",
        "model.vocab",
        "N",
        "Vocabulary size (default: GPT-2's 50257; kind llama: 32000).",
        MODEL,
    ),
    Flag(
        "--positions",
        "model.positions",
        "N",
        "Learned positions (kind gpt2; default 1024, or the sequence length).",
        MODEL,
    ),
    Flag(
        "--tied-embeddings",
        "model.tied_embeddings",
        "",
        "Head and embedding share one tensor (default: kind gpt2 yes, llama no).",
        MODEL,
    ),
    Flag(
        "--activation",
        "model.activation",
        "NAME",
        "MLP's activation: silu, gelu, gelu_new, relu … (default: the kind's).",
        MODEL,
    ),
    Flag("--gpus", "cluster.gpus", "N", "GPUs in all.", MACHINE),
    Flag(
        "--gpu",
        "cluster.gpu",
        "NAME|FILE",
        "Kind of GPU, for what fits: h100-80g.",
        MACHINE,
        "gpus",
    ),
    Flag(
        "--gpu-memory",
        "cluster.gpu_memory",
        "BYTES",
        "Usable memory of a GPU: 80GB (1e9) or 80GiB (2^30).",
        MACHINE,
    ),
    Flag(
        "--node",
        "cluster.node",
        "NAME|FILE",
        "Kind of node: which GPUs it has, and how many.",
        MACHINE,
        "nodes",
    ),
    Flag("--gpus-per-node", "cluster.gpus_per_node", "N", "GPUs in one node (default 8).", MACHINE),
    Flag(
        "--intra-node",
        "cluster.intra_node",
        "BANDWIDTH",
        "What a GPU sends inside its node, one way: 450GB/s.",
        MACHINE,
    ),
    Flag(
        "--inter-node",
        "cluster.inter_node",
        "BANDWIDTH",
        "What a node's network cards send together: 8x400Gbps as 3200Gbps.",
        MACHINE,
    ),
    Flag(
        "--cpu-memory",
        "cluster.cpu_memory",
        "BYTES",
        "Memory of a node's host: 1TB (1e12) or 1TiB.",
        MACHINE,
    ),
    Flag(
        "--cpu-bandwidth",
        "cluster.cpu_bandwidth",
        "BANDWIDTH",
        "What a host's memory carries: 400GB/s.",
        MACHINE,
    ),
    Flag(
        "--nvme-capacity",
        "cluster.nvme_capacity",
        "BYTES",
        "What a node's drives hold: 30TB.",
        MACHINE,
    ),
    Flag(
        "--nvme-bandwidth",
        "cluster.nvme_bandwidth",
        "BANDWIDTH",
        "What a node's drives read or write together: 25GB/s.",
        MACHINE,
    ),
    Flag(
        "--workspaces",
        "cluster.workspaces",
        "",
        "Count what libraries of matrix products work in.",
        MACHINE,
    ),
    Flag(
        "--cublas-workspace",
        "cluster.cublas_workspace",
        "BYTES",
        "A cuBLAS workspace (default: the GPU's), of which there are 2.",
        MACHINE,
    ),
    Flag("--tp", "parallel.tp", "N", "Tensor-parallel degree (default 1).", MACHINE),
    Flag("--pp", "parallel.pp", "N", "Pipeline-parallel degree (default 1).", MACHINE),
    Flag(
        "--first-stage-layers",
        "parallel.first_stage_layers",
        "N",
        "Layers of the first pipeline stage, if not as many as the others.",
        MACHINE,
    ),
    Flag(
        "--last-stage-layers",
        "parallel.last_stage_layers",
        "N",
        "Layers of the last pipeline stage, if not as many as the others.",
        MACHINE,
    ),
    Flag(
        "--interleave",
        "parallel.interleave",
        "N",
        "Chunks of layers on each pipeline stage (default 1).",
        MACHINE,
    ),
    Flag(
        "--pipeline-stage",
        "parallel.pipeline_stage",
        "N",
        "Whose memory: 1 is the first stage (default: the worst one's).",
        MACHINE,
    ),
    Flag(
        "--ep",
        "parallel.ep",
        "N",
        "Expert-parallel degree: ranks that share routed experts (default 1).",
        MACHINE,
    ),
    Flag(
        "--etp",
        "parallel.etp",
        "N",
        "Ranks that divide each routed expert (default: tp, or the framework's).",
        MACHINE,
    ),
    Flag("--cp", "parallel.cp", "N", "Context-parallel degree (default 1).", MACHINE),
    Flag(
        "--sequence-parallel",
        "parallel.sequence_parallel",
        "",
        "Split also what tensor parallelism replicates.",
        MACHINE,
    ),
    Flag("--seq", "training.seq", "N", "Sequence length in tokens.", RUN),
    Flag(
        "--micro-batch", "training.micro_batch", "N", "Sequences per GPU and pass (default 1).", RUN
    ),
    Flag(
        "--accumulation",
        "training.accumulation",
        "N",
        "Micro-batches per optimizer step (default 1).",
        RUN,
    ),
    Flag(
        "--recompute",
        "training.recompute",
        "none|selective|operators|full",
        "Activation recomputation (default none).",
        RUN,
    ),
    Flag(
        "--recompute-every",
        "training.recompute_every",
        "N",
        "Recompute one layer in N (default 1: all).",
        RUN,
    ),
    Flag(
        "--recompute-modules",
        "training.recompute_modules",
        "LIST",
        "Selective: core_attn, mlp, moe (default core_attn).",
        RUN,
    ),
    Flag(
        "--kernel-efficiency",
        "training.kernel_efficiency",
        "FRACTION",
        "Share of the dense peak that kernels reach (the GPU's, else 0.55).",
        RUN,
    ),
    Flag(
        "--tokens",
        "training.tokens",
        "COUNT",
        "Tokens of the whole training, for days and GPU-hours: 1T.",
        RUN,
    ),
    Flag(
        "--reentrant",
        "training.reentrant",
        "",
        "Recompute a layer's whole forward pass (use_reentrant).",
        RUN,
    ),
    Flag(
        "--attention",
        "training.attention",
        "flash|efficient|math|eager",
        "Attention kernel (default flash).",
        RUN,
    ),
    Flag(
        "--implementation",
        "implementation",
        "NAME|FILE",
        "Whose layers (default: the framework's): huggingface.",
        RUN,
        "implementations",
    ),
    Flag(
        "--loss",
        "loss",
        "NAME|FILE",
        "What the loss makes of logits (default: the implementation's).",
        RUN,
        "losses",
    ),
    Flag(
        "--recipe",
        "recipe",
        "NAME|FILE",
        "State rows and dtypes (default: the framework's, mixed-adam).",
        RUN,
        "recipes",
    ),
    Flag(
        "--framework",
        "framework",
        "NAME|FILE",
        "Whose behaviour (default paper: ZeRO as published).",
        ZERO,
        "frameworks",
    ),
    Flag("--stage", "zero.stage", "0,1,2,3", "ZeRO stages to show; 0 is DDP (default: all).", ZERO),
    Flag(
        "--grad-sync",
        "zero.grad_sync",
        "reduce-scatter|all-reduce",
        "How stage 1 or DeepSpeed reduces gradients (default reduce-scatter).",
        ZERO,
    ),
    Flag(
        "--defer-grad-sync",
        "zero.defer_grad_sync",
        "",
        "Reduce once a step, not every micro-batch; keep whole gradients.",
        ZERO,
    ),
    Flag(
        "--gather",
        "zero.gather",
        "all-gather|broadcast",
        "How stage 3 brings weights (default all-gather).",
        ZERO,
    ),
    Flag(
        "--reduce-dtype",
        "zero.reduce_dtype",
        "bf16|fp16|fp32",
        "Dtype of gradients in flight (default: the recipe's).",
        ZERO,
    ),
    Flag(
        "--shard-group",
        "zero.shard_group",
        "N",
        "Hybrid sharding: shards over N ranks, copies over the rest.",
        ZERO,
    ),
    Flag(
        "--secondary-group",
        "zero.secondary_group",
        "N",
        "hpZ: a second copy of stage 3's weights in each N ranks.",
        ZERO,
    ),
    Flag(
        "--quantised-weights",
        "zero.quantised_weights",
        "",
        "qwZ: stage 3 gathers weights in int8.",
        ZERO,
    ),
    Flag(
        "--quantised-gradients",
        "zero.quantised_gradients",
        "",
        "qgZ: stage 3 reduces in 4 bits, in and between nodes.",
        ZERO,
    ),
    Flag(
        "--reduce-to-owner",
        "zero.reduce_to_owner",
        "",
        "Stages 1 and 2: reduce to each owner (default all-reduce).",
        ZERO,
    ),
    Flag(
        "--grad-accum-dtype",
        "zero.grad_accum_dtype",
        "fp32",
        "Dtype in which gradients are added up, if not their own.",
        ZERO,
    ),
    Flag(
        "--offload-optimizer",
        "zero.offload_optimizer",
        "none|cpu|nvme",
        "Optimizer states, and gradients, in host memory or on drives.",
        ZERO,
    ),
    Flag(
        "--offload-params",
        "zero.offload_params",
        "none|cpu|nvme",
        "Stage 3's parameters in host memory or on drives.",
        ZERO,
    ),
    Flag(
        "--contiguous-gradients",
        "zero.contiguous_gradients",
        "",
        "Copy gradients into the bucket as they come (default on).",
        RESIDUAL,
    ),
    Flag(
        "--max-live-parameters",
        "zero.max_live_parameters",
        "COUNT",
        "Elements that may be gathered at once (default 1B).",
        RESIDUAL,
    ),
    Flag(
        "--max-reuse-distance",
        "zero.max_reuse_distance",
        "COUNT",
        "Elements within which a weight stays gathered (1B).",
        RESIDUAL,
    ),
    Flag(
        "--prefetch-bucket-size",
        "zero.prefetch_bucket_size",
        "COUNT",
        "Elements that are gathered ahead at once (default 50M).",
        RESIDUAL,
    ),
    Flag(
        "--persistence-threshold",
        "zero.persistence_threshold",
        "COUNT",
        "Largest tensor that is not sharded (default 100,000).",
        RESIDUAL,
    ),
    Flag(
        "--sub-group-size",
        "zero.sub_group_size",
        "COUNT",
        "Elements that one turn of a step handles (default 1B).",
        RESIDUAL,
    ),
    Flag(
        "--partition-activations",
        "zero.partition_activations",
        "",
        "P_a: split checkpoints over tensor-parallel ranks.",
        RESIDUAL,
        "",
        "--pa",
    ),
    Flag(
        "--cpu-checkpointing",
        "zero.cpu_checkpointing",
        "",
        "P_a+cpu: keep the split checkpoints in host memory.",
        RESIDUAL,
        "",
        "--pa-cpu",
    ),
    Flag(
        "--offload-activations",
        "zero.offload_activations",
        "none|cpu",
        "Where checkpoints of --recompute full lie (default none: GPU).",
        RESIDUAL,
    ),
    Flag(
        "--buffers",
        "zero.buffers",
        "constant|fused",
        "C_B buckets, or the fused fp32 buffer they replace.",
        RESIDUAL,
    ),
    Flag(
        "--reduce-bucket-size",
        "zero.reduce_bucket_size",
        "COUNT",
        "Elements per reduce bucket (default 500M).",
        RESIDUAL,
    ),
    Flag(
        "--allgather-bucket-size",
        "zero.allgather_bucket_size",
        "COUNT",
        "Elements per all-gather bucket (default 500M).",
        RESIDUAL,
    ),
    Flag(
        "--overlap-comm",
        "zero.overlap_comm",
        "",
        "Overlap traffic with backward; doubles buckets at 1 and 2 (default on).",
        RESIDUAL,
    ),
    Flag(
        "--defragment",
        "zero.defragment",
        "",
        "M_D: contiguous buffers, nothing lost (default on).",
        RESIDUAL,
    ),
    Flag(
        "--fragmentation",
        "zero.fragmentation",
        "FRACTION",
        "With --no-defragment: bytes lost per dynamic byte in use (0.3).",
        RESIDUAL,
    ),
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
JOB_PARAMETER = "job_file"


def _names(kind: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in presets.names(kind) if name.startswith(incomplete)]

    return complete


def option(flag: Flag) -> Any:
    """The typer option of a flag."""
    if flag.switch:
        names = [f"{flag.name}/--no-{flag.name[2:]}"] + ([flag.alias] if flag.alias else [])
        return typer.Option(*names, help=flag.help, rich_help_panel=flag.panel, show_default=False)
    complete = _names(flag.complete) if flag.complete else None
    return typer.Option(
        flag.name,
        metavar=flag.metavar,
        help=flag.help,
        rich_help_panel=flag.panel,
        show_default=False,
        autocompletion=complete,
    )


def job_flags(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a command every job flag, ``--config`` and ``--count-with``.

    It receives ``job_file`` and, as ``given``, the flags that were set: ``{path: value}``.
    """

    def wrapper(**values: Any) -> int | None:
        given = {
            flag.path: values.pop(flag.parameter) for flag in FLAGS if flag.parameter in values
        }
        given |= {name: values.pop(name, None) for name in (CONFIG, COUNT_WITH)}
        return command(
            given={path: value for path, value in given.items() if value is not None}, **values
        )

    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != "given"
    ]
    shared = [
        inspect.Parameter(
            flag.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Optional[bool] if flag.switch else Optional[str], option(flag)],
        )
        for flag in FLAGS
    ]
    files = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in ((CONFIG, ConfigFile), (COUNT_WITH, CountWith))
    ]
    parameters = [*own, *shared, *files]
    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


JobFile = Annotated[
    Optional[str],
    typer.Option(
        "--job",
        metavar="FILE|-",
        help="A job, or an answer's JSON, from a file or standard input.",
        rich_help_panel="Input and output",
    ),
]
ConfigFile = Annotated[
    Optional[str],
    typer.Option(
        "--config",
        metavar="FILE|-",
        help="A configuration of DeepSpeed, accelerate or torchtitan: under the flags, over --job.",
        rich_help_panel="Input and output",
    ),
]
CountWith = Annotated[
    Optional[str],
    typer.Option(
        "--count-with",
        metavar="transformers",
        help="Count a config.json by building its class (the extra zerocalc[transformers]).",
        rich_help_panel="Input and output",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON.", rich_help_panel="Input and output")
]
