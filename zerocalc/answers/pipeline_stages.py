"""A pipeline stage by stage: what each one holds, stages that are alike together."""

from __future__ import annotations

from zerocalc.estimator import estimate_with_assumptions
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import replaced
from zerocalc.memory.activations import in_flight
from zerocalc.model.architecture import stage_layers
from zerocalc.results import PipelineStages, Plan
from zerocalc.sharding.rank import Share, on_stage, shares
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job


def stages_table(plan: Plan) -> tuple[PipelineStages, ...]:
    """The rows of a plan's pipeline, for each ZeRO stage asked for. Raises `FieldError` where only
    an even share is known.
    """
    if not plan.details.pipeline_stages:
        raise FieldError(
            "parallel.pp",
            "only an even share is known for a parameter count only, for adapters and for "
            "partly frozen models",
        )
    return plan.details.pipeline_stages


def every_stage(job: Job, held: list[Share]) -> list[Share]:
    """The rank of each stage of a pipeline, the first one's first, from those of its kinds of
    stages (`shares`): stages with the same layers hold the same. Of an architecture only.
    """
    parallel = job.parallel
    if parallel.pipeline_stage is not None:  # the one asked for, and the others are wanted too
        held = shares(
            job.model_copy(
                update={"parallel": parallel.model_copy(update={"pipeline_stage": None})}
            )
        )
    whole = held[0][1].whole
    if whole is None:
        return []
    layers = stage_layers(whole, parallel, job.framework.ends_as_layers)

    def kind(number: int) -> tuple[bool, bool, tuple[int, ...]]:
        return number == 1, number == parallel.pp, layers[number - 1]

    ranks = {kind(own.parallel.pipeline_stage or 1): rank for own, rank in held}
    return [(on_stage(job, n), ranks[kind(n)]) for n in range(1, parallel.pp + 1)]


def pipeline_stages(job: Job, held: list[Share]) -> tuple[PipelineStages, ...]:
    """What each stage of a job's pipeline holds, at each ZeRO stage asked for; nothing where only
    an even share is known.
    """
    if job.even_share or job.model.is_bare:
        return ()
    rows: list[PipelineStages] = []
    own = every_stage(job, held)
    for stage in job.stages:
        for number, share in enumerate(own, 1):
            row = _row(number, share, stage)
            if rows and replaced(row, first=rows[-1].first) == replaced(rows[-1], last=number):
                rows[-1] = replaced(rows[-1], last=number)
            else:
                rows.append(row)
    return tuple(rows)


def _row(number: int, share: Share, stage: int) -> PipelineStages:
    job, rank = share
    answer, _ = estimate_with_assumptions(job, stage, [share])
    gpu, arch, whole = answer.memory.gpu, rank.arch, rank.whole
    copied = (
        ceil_div(whole.vocab * whole.hidden, job.parallel.tp)
        if whole and whole.tied and number == job.parallel.pp > 1
        else 0
    )
    return PipelineStages(
        answer.name,
        stage,
        number,
        number,
        arch.layers if arch else job.model.layer_count or 0,
        rank.parameters,
        copied,
        in_flight(job),
        gpu.states_bytes,
        gpu.at_peak.activations_bytes if gpu.activations_known else None,
        gpu.peak_bytes,
        gpu.peak_moment,
        answer.fits,
    )
