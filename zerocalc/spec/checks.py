"""The checks that cross the parts of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocalc.spec.base import FieldError
from zerocalc.spec.zero import OPTIONS

if TYPE_CHECKING:
    from zerocalc.spec.job import Job


def check_job(job: Job) -> None:
    """Raise `FieldError` where parts contradict each other, as those of a changed copy may."""
    if job.zero.offloads:
        from zerocalc.spec.offload import check_offload  # most jobs keep all on the GPU

        check_offload(job)
    _check_degrees(job)
    _check_stages(job)
    _check_activations(job)
    if job.model.is_bare and any(row.of == "factored" for row in job.recipe.rows):
        raise FieldError(
            "recipe",
            f"{job.recipe.name} keeps a sum per row and column of each matrix: give "
            "the architecture, not just params",
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
            f"{job.model_parallel}; {nearby} would be",
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
        from zerocalc.spec.pipelines import check_pipeline  # most jobs have none

        check_pipeline(job)
    if p.pipeline_stage is not None and not job.cut_by_stage:
        raise FieldError(
            "parallel.pipeline_stage",
            "needs an architecture that is trained as a whole: no bare count, no "
            "adapters, no frozen base",
        )
    if p.ep > 1 or p.etp is not None:
        from zerocalc.spec.experts import check_experts  # most models have none

        check_experts(job)
    if p.cp > 1:
        _check_sequence(job, p.cp)


def _check_sequence(job: Job, parts: int) -> None:
    seq = job.training.seq
    if not seq:
        raise FieldError(
            "parallel.cp", f"{parts} splits sequences: say how long they are (training.seq)"
        )
    if parts > seq:
        raise FieldError("parallel.cp", f"{parts} is more than the {seq} tokens of a sequence")
    if seq % parts:
        raise FieldError("parallel.cp", f"{parts} does not divide the {seq} tokens of a sequence")


def _check_stages(job: Job) -> None:
    z = job.zero
    _check_options(job)
    _check_time(job)
    for stage in z.stage or ():
        job.framework.stage(stage)
    variants = job.framework.all_reduce_at
    if z.grad_sync == "all-reduce" and variants and not set(variants) & set(job.stages):
        raise FieldError(
            "zero.grad_sync",
            "all-reduce is a variant of stage 1, which is not among the stages asked for",
        )
    if z.gather == "broadcast" and 3 not in job.stages:
        raise FieldError(
            "zero.gather",
            "broadcast is a variant of stage 3, which is not among the stages asked for",
        )
    each = [stage.stage for stage in job.framework.stages if stage.sync == "micro_batch"]
    if z.defer_grad_sync and not set(each) & set(job.stages):
        only = f"is for stages {', '.join(map(str, each))}; " if each else ""
        raise FieldError("zero.defer_grad_sync", f"{only}the others reduce once a step anyway")
    if z.secondary_group and 3 not in job.stages:
        raise FieldError(
            "zero.secondary_group",
            "is a second copy of the weights that stage 3 shards, and stage 3 is not asked for",
        )
    if z.quantised_weights and 3 not in job.stages:
        raise FieldError(
            "zero.quantised_weights",
            "is how stage 3 gathers weights, and stage 3 is not asked for",
        )
    if z.reduce_to_owner and not {1, 2} & set(job.stages):
        raise FieldError(
            "zero.reduce_to_owner", "is for stages 1 and 2, none of which is asked for"
        )
    if z.gather == "broadcast" and job.model.is_bare and job.model.blocks is None:
        raise FieldError(
            "zero.gather",
            "broadcast sends block by block: say how many blocks the parameters are "
            "cut into (model.blocks)",
        )


def _check_time(job: Job) -> None:
    if job.training.kernel_efficiency == 0 or job.cluster.kernel_efficiency[0] == 0:
        raise FieldError(
            "training.kernel_efficiency",
            "0 of the peak computes nothing: a share above 0 and below 1 is wanted, such as 0.5",
        )


def _check_options(job: Job) -> None:
    z, known = job.zero, job.framework.options
    for name in OPTIONS:
        if (
            known is not None
            and name not in known
            and getattr(z, name) != type(z).model_fields[name].default
        ):
            raise FieldError(
                f"zero.{name}",
                f"means nothing to {job.framework.name}, which has "
                f"{', '.join(known) or 'no such choice'}",
            )
    every = job.gradient_group
    if z.shard_group and every % z.shard_group:
        raise FieldError(
            "zero.shard_group",
            f"{z.shard_group} does not divide the {every} ranks that hold the same parameters",
        )
    if z.secondary_group and job.shards % z.secondary_group:
        raise FieldError(
            "zero.secondary_group",
            f"{z.secondary_group} does not divide the {job.shards} ranks over which "
            "weights are sharded",
        )
    if z.quantised_gradients and 3 not in job.stages:
        raise FieldError(
            "zero.quantised_gradients",
            "is how stage 3 reduces gradients, and stage 3 is not asked for",
        )
    if z.quantised_gradients and (job.model_parallel > 1 or job.shards % job.cluster.gpus_per_node):
        raise FieldError(
            "zero.quantised_gradients",
            f"needs whole nodes of {job.cluster.gpus_per_node} ranks that shard the "
            "same parameters",
        )
    if z.shard_group and z.quantised_gradients:
        raise FieldError(
            "zero.shard_group",
            "and quantised_gradients, which reduces over all ranks in two hops, exclude each other",
        )
    if job.experts_apart and (z.secondary_group or job.zero.quantises):
        raise FieldError(
            "parallel.ep",
            "with secondary shards or quantised traffic is not modelled: nothing says "
            "over whom experts' are shared",
        )
    for stage in job.stages if z.shard_group and z.shard_group < every else ():
        if not job.framework.stage(stage).copies and (stage or len(job.stages) == 1):
            raise FieldError(
                "zero.shard_group",
                f"{job.framework.name} keeps no copies of shards at stage "
                f"{stage}{_with_copies(job)}",
            )


def _with_copies(job: Job) -> str:
    able = [str(stage.stage) for stage in job.framework.stages if stage.copies]
    return f"; it does at {', '.join(able)}: name one with zero.stage" if able else ""


def _check_activations(job: Job) -> None:
    z, t, p, m = job.zero, job.training, job.parallel, job.model
    if t.recompute_every > 1 and t.recompute not in ("full", "operators"):
        raise FieldError(
            "training.recompute_every",
            f"recomputes one layer in {t.recompute_every}: it needs recompute full or operators",
        )
    if z.offload_activations != "none" and t.recompute != "full":
        raise FieldError(
            "zero.offload_activations",
            "moves stored checkpoints to the host: it needs recompute full",
        )
    if z.partition_activations:
        if p.tp == 1:
            raise FieldError(
                "zero.partition_activations",
                "splits what tensor-parallel ranks hold alike; with tp = 1 there is "
                "nothing (data-parallel ranks hold different data)",
            )
        if t.recompute != "full":
            raise FieldError(
                "zero.partition_activations",
                "splits stored checkpoints (P_a): it needs recompute full",
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
            f"{t.attention}: of the class of {m.family or 'this model'} only unfused "
            "attention is known: --attention eager counts it",
        )
    if t.seq and m.longest and t.seq > m.longest:
        raise FieldError(
            "training.seq", f"{t.seq} is more than the model's {m.longest} learned positions"
        )
