"""PyTorch's DistributedDataParallel: every rank has everything; gradients are all-reduced in
buckets while backward goes on.

torch 2.13, torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

from zerocalc.frameworks.buckets import arrival_buckets
from zerocalc.frameworks.program import Program
from zerocalc.frameworks.step import Step


def run(step: Step) -> None:
    """One optimizer step. Gradients are copied into buckets, which are there from the start."""
    rank = step.rank
    step.keep(step.states())
    buckets = step.hold("gradient buckets", "buffers", rank.part("trainable"), "weights")

    step.run_forward()

    step.backward()
    step.compute_layers_backward()
    for elements, count in arrival_buckets(step):
        calls = count * step.reductions
        step.send(step.shards, "all_reduce", "gradients", step.dtype("reduce"), elements, calls)

    step.update()
    temporaries = step.hold("optimizer temporaries", "buffers", rank.part("trainable"), "weights")
    step.compute_update()
    step.free(buckets, temporaries)


LIMITS = (
    "Buffers (batch norm statistics, masks) are broadcast before each synchronised forward. That "
    "traffic is not counted.",
    "The first step uses one bucket. With find_unused_parameters=True buckets keep their first "
    "order, in which the model lists its tensors.",
    "T5: the sizes of two calls differ by a norm.",
    "Pipeline stages: each bucket has a stage's share of each tensor.",
)
PROGRAM = Program(run, padding={}, limits=LIMITS)
