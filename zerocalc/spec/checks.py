"""The checks that cross the parts of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocalc import spec
from zerocalc.spec.base import FieldError
from zerocalc.spec.zero import OPTIONS

if TYPE_CHECKING:
    from zerocalc.spec.job import Job


def check_job(job: Job) -> None:
    """Raise `FieldError` if parts contradict each other; `model_copy` validates none of a copy."""
    if job.zero.offloads:
        spec.offload.check_offload(job)
    _check_degrees(job)
    _check_stages(job)
    _check_activations(job)
    if job.training.kernel_efficiency == 0 or job.cluster.kernel_efficiency[0] == 0:
        raise FieldError(
            "training.kernel_efficiency", "0 is too small: give a fraction above 0 and below 1"
        )
    if job.model.is_bare and any(row.of == "factored" for row in job.recipe.rows):
        raise FieldError(
            "recipe",
            f"{job.recipe.name} stores a sum per row and column of each matrix: give "
            "an architecture, not params only",
        )


def _check_degrees(job: Job) -> None:
    p, gpus = job.parallel, job.cluster.gpus
    for name, degree in (("tp", p.tp), ("pp", p.pp), ("cp", p.cp)):
        if degree > gpus:
            raise FieldError(f"parallel.{name}", f"{degree} is more than the {gpus} GPUs")
    if gpus % job.model_parallel:
        lower = gpus - gpus % job.model_parallel
        nearby = f"{lower} or {lower + job.model_parallel}" if lower else f"{job.model_parallel}"
        raise FieldError(
            "cluster.gpus",
            f"{gpus} is not divisible by tp·pp·cp = {p.tp}·{p.pp}·{p.cp} = "
            f"{job.model_parallel}; use {nearby}",
        )
    m = job.model
    if undivided := m.undivided(p.tp, job.expert_tensor_parallel):
        raise FieldError("parallel.tp", f"{p.tp} does not divide {undivided}")
    if p.sequence_parallel and job.tokens_on_rank % p.tp:
        raise FieldError(
            "parallel.sequence_parallel",
            f"tp = {p.tp} does not divide the {job.tokens_on_rank} tokens of a sequence on a rank",
        )
    if m.layer_count and p.pp > m.layer_count:
        raise FieldError("parallel.pp", f"{p.pp} stages are more than the {m.layer_count} layers")
    if p.pp > 1 or p.interleave > 1:
        spec.pipelines.check_pipeline(job)
    if p.pipeline_stage is not None and not job.cut_by_stage:
        raise FieldError(
            "parallel.pipeline_stage",
            "needs an architecture with all parameters trained: not a parameter count only, "
            "no adapters, no frozen base",
        )
    if p.ep > 1 or p.etp is not None:
        spec.experts.check_experts(job)
    if p.cp > 1:
        _check_sequence(job, p.cp)


def _check_sequence(job: Job, parts: int) -> None:
    seq = job.training.seq
    if not seq:
        raise FieldError("parallel.cp", f"{parts} needs a sequence length (training.seq)")
    if parts > seq:
        raise FieldError("parallel.cp", f"{parts} is more than the {seq} tokens of a sequence")
    if seq % parts:
        raise FieldError("parallel.cp", f"{parts} does not divide the {seq} tokens of a sequence")


def _check_stages(job: Job) -> None:
    for stage in job.zero.stage or ():
        job.framework.stage(stage)
    _check_supported(job)
    _check_options_of_stages(job)
    _check_groups(job)
    if job.zero.gather == "broadcast" and job.model.is_bare and job.model.blocks is None:
        raise FieldError(
            "zero.gather", "broadcast sends whole blocks: give their number (model.blocks)"
        )


def _check_supported(job: Job) -> None:
    """Refuse options that the framework does not have."""
    zero, supported = job.zero, job.framework.options
    if supported is None:
        return
    for name in OPTIONS:
        default = type(zero).model_fields[name].default
        if name not in supported and getattr(zero, name) != default:
            raise FieldError(
                f"zero.{name}",
                f"not supported by {job.framework.name} "
                f"(supported: {', '.join(supported) or 'none'})",
            )


def _check_options_of_stages(job: Job) -> None:
    """Refuse options that none of the estimated stages has."""
    zero, framework = job.zero, job.framework
    several = tuple(stage.stage for stage in framework.stages if stage.sync == "micro_batch")
    if zero.defer_grad_sync and not several:
        raise FieldError(
            "zero.defer_grad_sync", f"no effect: {framework.name} reduces gradients once per step"
        )
    all_reduce = zero.grad_sync == "all-reduce" and bool(framework.all_reduce_at)
    for name, chosen, stages, value in (
        ("grad_sync", all_reduce, framework.all_reduce_at, "all-reduce "),
        ("gather", zero.gather == "broadcast", (3,), "broadcast "),
        ("defer_grad_sync", zero.defer_grad_sync, several, ""),
        ("secondary_group", zero.secondary_group is not None, (3,), ""),
        ("quantised_weights", zero.quantised_weights, (3,), ""),
        ("quantised_gradients", zero.quantised_gradients, (3,), ""),
        ("reduce_to_owner", zero.reduce_to_owner, (1, 2), ""),
    ):
        if chosen and not set(stages) & set(job.stages):
            raise FieldError(
                f"zero.{name}",
                f"{value}needs stage {_listed(stages, 'or')}, not {_listed(job.stages, 'or')}",
            )


def _listed(stages: tuple[int, ...], conjunction: str) -> str:
    """Stages in words: ``1``, ``1 or 2``, ``1, 2 or 3``."""
    *first, last = map(str, stages)
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def _check_groups(job: Job) -> None:
    """Refuse groups of ranks that cannot be formed."""
    z, ranks = job.zero, job.gradient_group
    if z.shard_group and ranks % z.shard_group:
        raise FieldError(
            "zero.shard_group",
            f"{z.shard_group} does not divide the {ranks} ranks with the same parameters (dp·cp)",
        )
    if z.secondary_group and job.shards % z.secondary_group:
        raise FieldError(
            "zero.secondary_group",
            f"{z.secondary_group} does not divide the {job.shards} ranks over which "
            "parameters are sharded",
        )
    node = job.cluster.gpus_per_node
    if z.quantised_gradients and (job.model_parallel > 1 or job.shards % node):
        raise FieldError(
            "zero.quantised_gradients",
            f"needs tp·pp·cp = 1 and shards over whole nodes of {node} ranks",
        )
    if z.shard_group and z.quantised_gradients:
        raise FieldError(
            "zero.shard_group",
            "not supported with quantised_gradients, which reduces over all ranks",
        )
    if job.experts_apart and (z.secondary_group or z.quantises):
        raise FieldError(
            "parallel.ep", "not modelled with secondary shards or quantised communication"
        )
    for stage in job.stages if z.shard_group and z.shard_group < ranks else ():
        if not job.framework.stage(stage).copies and (stage or len(job.stages) == 1):
            able = tuple(stage.stage for stage in job.framework.stages if stage.copies)
            choose = f"; choose zero.stage {_listed(able, 'or')}" if able else ""
            raise FieldError(
                "zero.shard_group",
                f"not supported by {job.framework.name} at stage {stage}{choose}",
            )


def _check_activations(job: Job) -> None:
    z, t, p, m = job.zero, job.training, job.parallel, job.model
    if t.recompute_every > 1 and t.recompute not in ("full", "operators"):
        raise FieldError(
            "training.recompute_every",
            "needs recompute full or operators",
        )
    if z.offload_activations != "none" and t.recompute != "full":
        raise FieldError(
            "zero.offload_activations",
            "needs recompute full: it moves activation checkpoints to the CPU",
        )
    if z.partition_activations:
        if p.tp == 1:
            raise FieldError(
                "zero.partition_activations",
                "needs tp above 1: it splits activation checkpoints among tensor-parallel ranks "
                "(data-parallel ranks hold different data)",
            )
        if t.recompute != "full":
            raise FieldError(
                "zero.partition_activations",
                "needs recompute full: it splits activation checkpoints (P_a)",
            )
        if p.sequence_parallel:
            raise FieldError(
                "zero.partition_activations",
                "contradicts sequence_parallel, which splits the checkpoints already",
            )
    if (
        t.seq
        and t.attention != "eager"
        and job.implementation.softmax == "as_written"
        and m.stack is not None
        and m.stack.only_eager
    ):
        raise FieldError(
            "training.attention",
            f"{t.attention} is not known for {m.family or 'this model'}, only unfused attention: "
            "choose training.attention eager",
        )
    if t.seq and m.longest and t.seq > m.longest:
        raise FieldError(
            "training.seq", f"{t.seq} is more than the model's {m.longest} learned positions"
        )
