"""Megatron-LM, with and without its distributed optimizer: gradients are added up in one buffer,
and reduced once a step.

megatron-core 0.16.1, core/distributed: distributed_data_parallel.py, param_and_grad_buffer.py;
core/optimizer/distrib_optimizer.py; core/transformer/module.py (Float16Module).
"""

from __future__ import annotations

from typing import Literal

from zerocalc.frameworks.program import Program
from zerocalc.frameworks.step import Step
from zerocalc.schedule import Op

FULL: Literal["fp32"] = "fp32"


def run(step: Step) -> None:
    """One optimizer step; stage 1 is the distributed optimizer, which shards its states alone."""
    rank, distributed = step.rank, step.stage == 1
    shards = rank.shards if distributed else 1
    step.keep(step.states(since="load"))

    step.run_forward()

    step.backward()
    step.compute_layers_backward()
    trained, reduced = rank.shardable("trainable"), step.dtype("reduce")
    reduction: Op = "reduce_scatter" if distributed else "all_reduce"
    step.send(step.shards, reduction, "gradients", reduced, trained, 1, overlapped=False)
    if distributed:
        share = -(-trained // rank.shards)
        step.send(step.replicas, "all_reduce", "gradients", reduced, share, 1, overlapped=False)

    step.update()
    copied = None
    if step.job.trained_recipe.gradient_dtype != FULL:  # the optimizer computes in fp32
        elements = rank.part("trainable")
        copied = step.hold("fp32 gradients", "buffers", elements, FULL, shards=shards)
    step.compute_update()
    step.free(copied)
    if distributed:
        step.send(
            step.shards,
            "all_gather",
            "weights",
            step.dtype("gather"),
            rank.shardable("trainable"),
            1,
            overlapped=False,
        )


LIMITS = (
    "Only the local layer specification was recorded. Buffers of Transformer Engine and of Apex "
    "are not counted.",
)
PROGRAM = Program(run, padding={0: "aligned", 1: "aligned"}, limits=LIMITS)
