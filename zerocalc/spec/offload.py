"""The checks that cross a job's offloading with its stages, its framework and its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocalc.spec.base import FieldError

if TYPE_CHECKING:
    from zerocalc.spec.framework import FrameworkStage
    from zerocalc.spec.job import Job
    from zerocalc.spec.zero import Zero

NOT_KNOWN_WITH = (
    "defer_grad_sync",
    "secondary_group",
    "quantised_weights",
    "quantised_gradients",
    "grad_accum_dtype",
)
"""Options that no source describes, and no recorded run shows, together with offloading; off by
default.
"""


def check_offload(job: Job) -> None:
    """Raise `FieldError` if a stage does not support the offloading, a node has no NVMe drives, or
    a combination is not modelled.
    """
    zero, framework = job.zero, job.framework
    chosen = {"offload_optimizer": zero.offload_optimizer, "offload_params": zero.offload_params}
    field, device = next(
        (f"zero.{name}", device) for name, device in chosen.items() if device != "none"
    )
    stages = [
        framework.stage(number)
        for number in zero.stage or [stage.stage for stage in framework.stages]
    ]
    able = [stage.stage for stage in framework.stages if job.can_offload(stage)]
    if not able:
        raise _unable(job, framework.stages)
    for stage in stages if zero.stage else ():
        if not job.can_offload(stage):
            raise FieldError(
                field,
                f"{device} is not supported at stage {stage.stage} of {framework.name} "
                f"(supported: {_listed(able)})",
            )
    if "nvme" in chosen.values() and job.cluster.capacity("nvme") is None:
        field = next(f"zero.{name}" for name, device in chosen.items() if device == "nvme")
        raise FieldError(
            field,
            "nvme needs a capacity: give nvme_capacity, such as 30TB, or a node with NVMe drives",
        )
    for name in unmodelled_with(zero):
        raise FieldError(field, f"{device} is not modelled with {name}")
    if job.experts_apart:
        raise FieldError(field, f"{device} is not modelled with expert parallelism")
    if zero.gather == "broadcast" and zero.offload_params != "none":
        raise FieldError(
            "zero.offload_params",
            "contradicts gather broadcast: every rank copies its shard of each layer to the GPU",
        )


def unmodelled_with(zero: Zero) -> list[str]:
    """The options of a job that are not modelled together with offloading."""
    return [name for name in NOT_KNOWN_WITH if getattr(zero, name)]


def _unable(job: Job, stages: tuple[FrameworkStage, ...]) -> FieldError:
    """The error if no stage of the framework supports the offloading, and what is supported."""
    zero, name = job.zero, job.framework.name
    offloads = [stage.offload for stage in stages if stage.offload is not None]
    if not offloads:
        return FieldError(
            "zero.offload_optimizer" if zero.offload_optimizer != "none" else "zero.offload_params",
            f"not supported by {name}",
        )
    for field, device, takes in (
        (
            "offload_optimizer",
            zero.offload_optimizer,
            {device for o in offloads for device in o.optimizer},
        ),
        ("offload_params", zero.offload_params, {device for o in offloads for device in o.params}),
    ):
        if device != "none" and device not in takes:
            return FieldError(
                f"zero.{field}",
                f"{device} is not supported by {name} "
                f"(supported: {', '.join(sorted(takes)) or 'none'})",
            )
    wanting = "offload_params" if zero.offload_params == "none" else "offload_optimizer"
    return FieldError(
        f"zero.{wanting}",
        f"{name} offloads parameters, gradients and optimizer states together: give "
        "offload_optimizer and offload_params the same value",
    )


def _listed(stages: list[int]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
