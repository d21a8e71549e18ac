"""The checks that cross expert parallelism with a job's model, its framework and its other
degrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocalc.spec.base import FieldError

if TYPE_CHECKING:
    from zerocalc.spec.job import Job


def check_experts(job: Job) -> None:
    """Raise `FieldError` where routed experts cannot be dealt as is asked for."""
    p, m, gpus, framework = job.parallel, job.model, job.cluster.gpus, job.framework
    name = "parallel.ep" if p.ep > 1 else "parallel.etp"
    if not m.expert_counts or not job.cut_by_stage:
        raise FieldError(
            name,
            "divides routed experts: it needs an architecture that has some and is trained "
            "as a whole",
        )
    if not job.experts_apart:
        return
    if not framework.experts_at:
        raise FieldError(name, f"{framework.name} does not deal experts to ranks of their own")
    for stage in job.stages:
        if framework.stage(stage).stage not in framework.experts_at:
            at = ", ".join(map(str, framework.experts_at))
            raise FieldError(
                "zero.stage",
                f"{framework.name} deals experts to ranks of their own at stages {at}, not "
                f"at {stage}",
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
            "beside tensor parallelism needs sequence_parallel: its ranks would route the "
            "same tokens",
        )
    if p.tp % etp:
        raise FieldError("parallel.etp", f"{etp} does not divide tp = {p.tp}")
    z = job.zero
    if z.shard_group or z.secondary_group or z.quantised_gradients or z.gather == "broadcast":
        raise FieldError(
            name, "is not counted beside hybrid sharding, quantised gradients or broadcast blocks"
        )
