"""What jobs can be written as, and the module that writes each."""

from __future__ import annotations

from importlib import import_module

from zerocalc.configs.writing.common import Exported
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job

FORMS = {
    "deepspeed": "DeepSpeed's JSON",
    "accelerate": "YAML",
    "fsdp2": "Python",
    "torchtitan": "TOML",
    "megatron": "command-line flags",
}
"""What jobs are written as, by what --to calls it."""
FRAMEWORKS = {"accelerate": ("fsdp2", "fsdp1", "deepspeed", "torch-ddp")}
"""Frameworks that a tool runs, the usual one first, where these are not its own."""
WITH_EXPERTS = ("deepspeed", "torchtitan", "megatron")
"""Tools whose configuration says over how many ranks experts are dealt."""
BESIDES = {"accelerate": {"zero.reduce_dtype": "bf16"}}
"""What a tool does by itself with the usual framework, where that is not the framework's own way.
"""


def frameworks(target: str) -> tuple[str, ...]:
    """The frameworks whose jobs can be written for a tool, the usual one first."""
    return FRAMEWORKS.get(target, (target,))


def defaults(target: str) -> dict[str, str]:
    """What to take of a job's fields where no framework is named: as the tool runs it."""
    return {"framework": frameworks(target)[0], **BESIDES.get(target, {})}


def write(target: str, job: Job, stage: int) -> Exported:
    """A job at one stage as a tool's configuration. Raises `FieldError` for what the tool cannot
    express.
    """
    run_by = frameworks(target)
    if job.framework.name not in run_by:
        raise FieldError(
            "framework",
            f"{job.framework.name} is not what {target} runs; --framework "
            f"{' or '.join(run_by)} counts as it does",
        )
    if job.experts_apart and target not in WITH_EXPERTS:
        raise FieldError(
            "parallel.ep",
            f"{job.parallel.ep}: {target}'s configuration says nothing of experts on ranks "
            "of their own",
        )
    writer = import_module(f"zerocalc.configs.writing.{target}")
    exported: Exported = writer.write(job, stage)
    return exported
