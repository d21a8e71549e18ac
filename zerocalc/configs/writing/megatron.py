"""Megatron-LM's command-line flags for a job.

Read against megatron-core 0.16.1 and Megatron-LM's training/arguments.py.
"""

from __future__ import annotations

from zerocalc.configs.recipes import WITH_MASTER_WEIGHTS, recognised
from zerocalc.configs.writing.common import Exported, batch_of, fields, no_recipe, remarks_on
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model, dimensions

FRAMEWORK = "megatron"
VOCABULARY_MULTIPLE = 128
"""--make-vocab-size-divisible-by."""
IMPLEMENTATIONS = {"megatron": "local", "megatron-te": "transformer_engine"}
"""--transformer-impl by our name for the layers."""
HELD = fields(
    training="seq micro_batch accumulation recompute recompute_every recompute_modules attention",
    parallel="tp pp cp ep etp interleave sequence_parallel first_stage_layers last_stage_layers",
    zero="reduce_dtype overlap_comm shard_group partition_activations",
)
"""Fields that flags of Megatron-LM hold."""
BACKENDS = {"flash": "flash", "eager": "unfused"}


def write(job: Job, stage: int) -> Exported:
    """A job at one stage as flags, one a line, and what they do not hold. Raises `FieldError` for
    what Megatron-LM cannot do.
    """
    t, p = job.training, job.parallel
    flags: list[tuple[str, object]] = [
        ("tensor-model-parallel-size", p.tp),
        ("pipeline-model-parallel-size", p.pp),
        ("context-parallel-size", p.cp),
    ]
    if job.experts_apart:
        flags += [
            ("expert-model-parallel-size", p.ep),
            ("expert-tensor-parallel-size", job.expert_tensor_parallel),
        ]
    if p.sequence_parallel:
        flags.append(("sequence-parallel", None))
    for name, count in (
        ("decoder-first-pipeline-num-layers", p.first_stage_layers),
        ("decoder-last-pipeline-num-layers", p.last_stage_layers),
    ):
        if count is not None:
            flags.append((name, count))
    if p.interleave > 1:
        flags.append(("num-virtual-stages-per-pipeline-rank", p.interleave))
    flags += [("micro-batch-size", t.micro_batch), ("global-batch-size", batch_of(job))]
    if t.seq is not None:
        flags.append(("seq-length", t.seq))
    flags += [*_precision(job), *_recomputation(job), *_attention(job)]
    if stage == 1:
        flags.append(("use-distributed-optimizer", None))
        if job.replicas > 1:
            flags.append(("num-distributed-optimizer-instances", job.replicas))
    if job.overlaps(stage):
        flags.append(("overlap-grad-reduce", None))
    described = job.model.kind is not None
    flags += _model(job.model, t.seq) if described else []
    known = job.implementation.name in IMPLEMENTATIONS
    said = remarks_on(
        job, HELD | ({"model"} if described else set()) | ({"implementation"} if known else set())
    )
    if described:
        said += (
            f"the vocabulary is padded to a multiple of {VOCABULARY_MULTIPLE * p.tp}: "
            "--make-vocab-size-divisible-by",
        )
    if known:
        flags.append(("transformer-impl", IMPLEMENTATIONS[job.implementation.name]))
    return Exported(
        "\n".join(f"--{name}" if value is None else f"--{name} {value}" for name, value in flags),
        said,
    )


def _precision(job: Job) -> list[tuple[str, object]]:
    found = recognised(WITH_MASTER_WEIGHTS, job.recipe)
    if found is None or found[0] not in ("AdamW", "SGD with momentum", "SGD"):
        raise no_recipe(job, "Megatron-LM's flags stand")
    optimizer, compute, kept = found
    gradients = kept or compute
    if job.reduce_dtype != gradients:
        raise FieldError(
            "zero.reduce_dtype",
            f"{job.reduce_dtype}: Megatron-LM sends gradients as it keeps them, in {gradients}",
        )
    out: list[tuple[str, object]] = [] if compute == "fp32" else [(compute, None)]
    if gradients == "bf16":
        out.append(("grad-reduce-in-bf16", None))
    elif compute == "fp16" and gradients == "fp16":
        raise FieldError(
            "recipe",
            f"{job.recipe.name} keeps gradients in fp16; Megatron-LM keeps them in fp32 or bf16",
        )
    elif compute != "fp32":
        out.append(("accumulate-allreduce-grads-in-fp32", None))
    if optimizer != "AdamW":
        out += [
            ("optimizer", "sgd"),
            ("sgd-momentum", 0.9 if optimizer.endswith("momentum") else 0.0),
        ]
    return out


def _recomputation(job: Job) -> list[tuple[str, object]]:
    t = job.training
    if t.recompute == "operators":
        raise FieldError(
            "training.recompute",
            "operators: Megatron-LM recomputes whole layers or named modules (selective)",
        )
    if t.recompute == "selective":
        return [
            ("recompute-granularity", "selective"),
            ("recompute-modules", " ".join(t.recompute_modules)),
        ]
    if t.recompute == "full":
        if t.recompute_every > 1:
            raise FieldError(
                "training.recompute_every",
                f"{t.recompute_every}: Megatron-LM's --recompute-num-layers counts otherwise",
            )
        out: list[tuple[str, object]] = [
            ("recompute-granularity", "full"),
            ("recompute-method", "uniform"),
            ("recompute-num-layers", 1),
        ]
        return (
            [*out, ("distribute-saved-activations", None)]
            if job.zero.partition_activations
            else out
        )
    return []


def _attention(job: Job) -> list[tuple[str, object]]:
    backend = BACKENDS.get(job.training.attention)
    if backend is None:
        raise FieldError(
            "training.attention",
            f"{job.training.attention}: Megatron-LM has flash and unfused (eager)",
        )
    return [("attention-backend", backend)]


def _model(model: Model, seq: int | None) -> list[tuple[str, object]]:
    """The architecture's flags: Megatron-LM's own defaults are GPT-2's."""
    d = dimensions(model)
    llama = model.kind == "llama"
    out: list[tuple[str, object]] = [
        ("num-layers", d.layers),
        ("hidden-size", d.hidden),
        ("ffn-hidden-size", d.ffn),
        ("num-attention-heads", d.heads),
        ("kv-channels", d.head_dim),
        ("vocab-size", d.vocab),
        ("max-position-embeddings", max(d.positions, seq or 1)),
    ]
    if d.kv_heads != d.heads:
        out += [("group-query-attention", None), ("num-query-groups", d.kv_heads)]
    if llama:
        out += [("swiglu", None), ("normalization", "RMSNorm"), ("position-embedding-type", "rope")]
    if not model.tied_embeddings:
        out.append(("untie-embeddings-and-output-weights", None))
    if not model.mlp_bias:
        out.append(("disable-bias-linear", None))
        out += [("add-qkv-bias", None)] if model.qkv_bias else []
    if model.qk_norm:
        out.append(("qk-layernorm", None))
    dropout = model.dropout or 0.0
    return [*out, ("attention-dropout", dropout), ("hidden-dropout", dropout)]
