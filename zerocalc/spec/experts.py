"""The checks that cross expert parallelism with a job's model, its framework and its other
degrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocalc.spec.base import FieldError

if TYPE_CHECKING:
    from zerocalc.spec.job import Job


def check_experts(job: Job) -> None:
    """Raise `FieldError` if routed experts cannot be assigned to ranks as the job says."""
    p, m, gpus, framework = job.parallel, job.model, job.cluster.gpus, job.framework
    name = "parallel.ep" if p.ep > 1 else "parallel.etp"
    if not m.expert_counts or not job.cut_by_stage:
        raise FieldError(
            name,
            "needs a mixture-of-experts architecture with all parameters trained",
        )
    if not job.experts_apart:
        return
    if not framework.experts_at:
        raise FieldError(name, f"expert parallelism is not supported by {framework.name}")
    for stage in job.stages:
        if framework.stage(stage).stage not in framework.experts_at:
            at = ", ".join(map(str, framework.experts_at))
            raise FieldError(
                "zero.stage",
                f"{stage} of {framework.name} does not support expert parallelism (stages {at} do)",
            )
    for experts in m.expert_counts:
        if experts % p.ep:
            raise FieldError("parallel.ep", f"{p.ep} does not divide the {experts} experts")
    etp = job.expert_tensor_parallel
    if gpus % job.expert_ranks:
        raise FieldError(
            name,
            f"pp·ep·etp = {p.pp}·{p.ep}·{etp} = {job.expert_ranks} does not divide the {gpus} GPUs",
        )
    if p.tp > 1 and not p.sequence_parallel:
        raise FieldError(
            name,
            "with tp above 1 needs sequence_parallel: else tensor-parallel ranks route the same "
            "tokens",
        )
    if p.tp % etp:
        raise FieldError("parallel.etp", f"{etp} does not divide tp = {p.tp}")
    z = job.zero
    if z.shard_group or z.secondary_group or z.quantised_gradients or z.gather == "broadcast":
        raise FieldError(
            name, "not modelled with hybrid sharding, quantised gradients or broadcast blocks"
        )
