"""The checks that cross what a job keeps elsewhere than on the GPU with its stage, its framework
and its machine.
"""

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
    """Raise `FieldError` where a stage asked for cannot offload that, where there is no drive, or
    where nothing is known of a combination.
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
                f"{device} is not for stage {stage.stage} of {framework.name}, but for "
                f"{_listed(able)}",
            )
    if "nvme" in chosen.values() and job.cluster.capacity("nvme") is None:
        field = next(f"zero.{name}" for name, device in chosen.items() if device == "nvme")
        raise FieldError(
            field,
            "nvme needs drives: give nvme_capacity, such as 30TB, or a node that is known "
            "to have some",
        )
    for name in unmodelled_with(zero):
        raise FieldError(field, f"{device} together with {name} is not known")
    if job.experts_apart:
        raise FieldError(
            field, f"{device} together with experts on ranks of their own is not known"
        )
    if zero.gather == "broadcast" and zero.offload_params != "none":
        raise FieldError(
            "zero.offload_params",
            "has every rank bring its part of each layer, which contradicts gather broadcast",
        )


def unmodelled_with(zero: Zero) -> list[str]:
    """The options of a job that are not modelled together with offloading."""
    return [name for name in NOT_KNOWN_WITH if getattr(zero, name)]


def _unable(job: Job, stages: tuple[FrameworkStage, ...]) -> FieldError:
    """What no stage of the framework can do, and what would be possible."""
    zero, name = job.zero, job.framework.name
    offloads = [stage.offload for stage in stages if stage.offload is not None]
    if not offloads:
        return FieldError(
            "zero.offload_optimizer" if zero.offload_optimizer != "none" else "zero.offload_params",
            f"{name} keeps all states on the GPU",
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
                f"{device} is nowhere that {name} keeps them; it has "
                f"{', '.join(sorted(takes)) or 'none'}",
            )
    wanting = "offload_params" if zero.offload_params == "none" else "offload_optimizer"
    return FieldError(
        f"zero.{wanting}",
        f"{name} moves parameters, gradients and optimizer together: give "
        "offload_optimizer and offload_params alike",
    )


def _listed(stages: list[int]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
