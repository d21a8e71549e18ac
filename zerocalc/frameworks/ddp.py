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

    step.forward()
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    step.compute_layers_backward()
    for elements, count in arrival_buckets(step):
        calls = count * step.reductions
        step.send(step.shards, "all_reduce", "gradients", step.dtype("reduce"), elements, calls)

    step.update()
    temporaries = step.hold("optimizer temporaries", "buffers", rank.part("trainable"), "weights")
    step.compute_update()
    step.free(buckets, temporaries)


PROGRAM = Program(run, padding={})
