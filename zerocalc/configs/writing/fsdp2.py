"""PyTorch's FSDP2 as the Python that shards a model: `fully_shard` on each layer and, around them,
on the root.

Read against torch 2.13, torch/distributed/fsdp/_fully_shard.
"""

from __future__ import annotations

from collections.abc import Iterable

from zerocalc.configs.recipes import (
    TORCH_NAME,
    WITH_FP32_WEIGHTS,
    WITHOUT_MASTER_WEIGHTS,
    recognised,
)
from zerocalc.configs.writing.common import Exported, fields, no_recipe, remarks_on
from zerocalc.spec.job import Job

FRAMEWORK = "fsdp2"


def write(job: Job, stage: int) -> Exported:
    """A function that shards a model as a job does at one stage, and what it does not hold. Raises
    `FieldError` for what FSDP2 cannot do.
    """
    names, sizes = _mesh(job)
    called = f'"{names[0]}",' if len(names) == 1 else _quoted(names)
    lines, policy = _precision(job)
    offload = ", offload_policy=CPUOffloadPolicy()" if job.zero.offloads else ""
    policy += offload
    reshard = ", reshard_after_forward=False" if stage == 2 else ""
    layers = (
        f", reshard_after_forward={job.zero.secondary_group or True}" if stage == 3 else reshard
    )
    sharded = [name for name in ("replicate", "shard") if name in names]
    mesh = "mesh" if len(names) == len(sharded) else f"mesh[{_quoted(sharded)}]"
    body = [
        f'mesh = init_device_mesh("cuda", {sizes!r}, mesh_dim_names=({called}))',
        *lines,
        *_recomputation(job),
        "for layer in layers:",
        f"    fully_shard(layer, mesh={mesh}{policy}{layers})",
        f"return fully_shard(model, mesh={mesh}{policy}{reshard})",
    ]
    names_used = [
        name
        for name in ("CPUOffloadPolicy", "MixedPrecisionPolicy", "fully_shard")
        if any(name in line for line in body)
    ]
    text = "\n".join(
        [
            "import torch",
            *([CHECKPOINT_IMPORT] if job.training.recompute == "full" else []),
            "from torch.distributed.device_mesh import init_device_mesh",
            f"from torch.distributed.fsdp import {', '.join(names_used)}",
            "",
            "",
            "def shard(model: torch.nn.Module, layers: torch.nn.ModuleList) -> torch.nn.Module:",
            '    """Shard each layer and, around them, the root."""',
            *(f"    {line}" for line in body),
        ]
    )
    return Exported(text, (*remarks_on(job, HELD), *_beside(job)))


HELD = fields(
    training="recompute recompute_every",
    parallel="tp cp",
    zero="offload_optimizer offload_params secondary_group reduce_dtype shard_group "
    "defer_grad_sync",
)
"""Fields that the function holds, or that `_beside` speaks of."""
CHECKPOINT_IMPORT = (
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
)


def _mesh(job: Job) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and sizes of the mesh's dimensions; context-parallel ranks share shards, so that they
    belong to ``shard``.
    """
    sizes = {
        "pp": job.parallel.pp,
        "replicate": job.replicas,
        "shard": job.shards,
        "tp": job.parallel.tp,
    }
    kept = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    return tuple(kept), tuple(kept.values())


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _precision(job: Job) -> tuple[list[str], str]:
    """Lines that prepare a policy or the model, and the argument that passes the policy."""
    for recipes in (WITH_FP32_WEIGHTS, WITHOUT_MASTER_WEIGHTS):
        found = recognised(recipes, job.recipe)
        if found is None or found[2] is not None:
            continue
        compute, sent = found[1], job.reduce_dtype
        cast = recipes is WITHOUT_MASTER_WEIGHTS and compute != "fp32"
        lines = [f"model.to(torch.{TORCH_NAME[compute]})"] if cast else []
        dtypes = [] if cast or compute == "fp32" else [f"param_dtype=torch.{TORCH_NAME[compute]}"]
        if dtypes or sent != compute:
            dtypes.append(f"reduce_dtype=torch.{TORCH_NAME[sent]}")
        return (
            (lines, "")
            if not dtypes
            else (
                [*lines, f"policy = MixedPrecisionPolicy({', '.join(dtypes)})"],
                ", mp_policy=policy",
            )
        )
    raise no_recipe(job, "FSDP2's MixedPrecisionPolicy stands")


def _recomputation(job: Job) -> list[str]:
    """Lines that wrap the layers to recompute, before they are sharded."""
    t = job.training
    if t.recompute != "full":
        return []
    every = "" if t.recompute_every == 1 else f", {t.recompute_every}"
    return [
        f"for index in range({'0, ' if every else ''}len(layers){every}):",
        "    layers[index] = checkpoint_wrapper(layers[index])",
    ]


def _beside(job: Job) -> list[str]:
    """What the script does besides, in words."""
    said = []
    if job.parallel.tp > 1:
        said.append(
            f"tensor parallelism over mesh['tp'] ({job.parallel.tp}) comes first: "
            "parallelize_module"
        )
    if job.parallel.cp > 1:
        said.append(
            f"context parallelism ({job.parallel.cp}) is the script's; its ranks share the shards"
        )
    if job.training.recompute in ("selective", "operators"):
        every = (
            f", one layer in {job.training.recompute_every}"
            if job.training.recompute_every > 1
            else ""
        )
        said.append(f"recomputation is the script's to switch on: {job.training.recompute}{every}")
    if job.zero.defer_grad_sync:
        said.append(
            "model.set_requires_gradient_sync(False) before all micro-batches but the last "
            "of a step"
        )
    return said
