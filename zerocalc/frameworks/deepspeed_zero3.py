"""DeepSpeed's ZeRO-3: parameters are sharded too, and gathered module by module.

DeepSpeed 0.19.8, runtime/zero/stage3.py, partitioned_param_coordinator.py, parameter_offload.py;
swap_tensor/ (NVMe); mics.py (copies of the shards).
"""

from __future__ import annotations

from functools import partial

from zerocalc.frameworks.buckets import grouped
from zerocalc.frameworks.offload import Offload, Offloading
from zerocalc.frameworks.qgz import reduce_in_two_hops
from zerocalc.frameworks.reduce_buckets import (
    ReduceBuckets,
    hold_accumulated,
    hold_gradient_being_computed,
)
from zerocalc.frameworks.step import Step
from zerocalc.frameworks.zero3_parameters import Parameters
from zerocalc.ledger import Term

OFFLOADING = Offloading(
    "deepspeed, stage3.py and swap_tensor/",
    gradients="replaced",
    pinned=("weights",),
    params_in_cpu=1_000_000_000,  # offload_param.max_in_cpu
    buffers_known=True,
)
OPTIMIZER_BUFFERS = 4
"""offload_optimizer.buffer_count, each of a sub-group."""
PARAMETER_BUFFERS, PARAMETER_BUFFER_SIZE = 5, 100_000_000
"""offload_param.buffer_count and buffer_size [elements]."""


def zero_3(step: Step) -> None:
    """Gather a module's parameters when its turn comes, with those of modules to come; release them
    behind it. Gradients are reduced to their owners after every micro-batch, as they arrive.

    Small (persistent) parameters are whole on every rank from the end of one step to the next one's
    backward.
    """
    rank, offload, parameters = step.rank, Offload(step, OFFLOADING), Parameters(step)
    in_fp32 = step.zero.grad_accum_dtype == "fp32"
    # A rank's share of the gradients is one buffer, which is there from the start.
    step.keep(offload.place(step.states(since="load", gradients=not in_fp32), step.stage))
    accumulated = hold_accumulated(step) if in_fp32 else None
    hold_for_offloading(step, offload)
    bucket = step.hold("reduce bucket", "buffers", step.zero.reduce_bucket_size, "reduce")
    persistent = step.hold("persistent parameters", "buffers", rank.part("persistent"), "gather")

    step.forward()
    secondary = hold_secondary_shards(step)
    parameters.gather_for_forward()
    parameters.compute_forward()

    step.backward()
    parameters.gather_for_backward()
    computed = hold_gradient_being_computed(step)
    parameters.compute_backward()
    step.free(computed, persistent)
    reduce_gradients(step)
    # With offloading the buffer of gradients is in CPU memory, where micro-batches are added up.
    offload.copy_gradients("down", "weights", step.micro_batches)
    offload.copy_gradients("up", "weights", step.micro_batches)
    offload.copy_gradients("down", "fp32", 1)

    step.update()
    sub_group = hold_sub_group(step)
    step.compute_update()
    step.free(accumulated, bucket, secondary, sub_group)
    gather_persistent(step)
    offload.finish()


# What is held.


def hold_secondary_shards(step: Step) -> Term | None:
    """hpZ: a second copy of the weights, sharded within a smaller group."""
    group = step.zero.secondary_group
    if group is None:
        return None
    return step.hold("secondary shards", "copies", step.rank.part("all"), "gather", group=group)


def hold_sub_group(step: Step) -> Term | None:
    """The optimizer updates a rank's share part by part, whose gradients it makes fp32."""
    if step.zero.offload_optimizer != "none":
        return None
    shards = step.rank.shards
    elements = min(step.rank.part("trainable"), step.zero.sub_group_size * shards)
    name = "fp32 gradients of a sub-group"
    return step.hold(name, "buffers", elements, "fp32", shards=shards)


def hold_for_offloading(step: Step, offload: Offload) -> None:
    """What is in CPU memory, or on NVMe, with the optimizer and with parameters."""
    rank, zero, shards = step.rank, step.zero, step.rank.shards
    trained, sub_group = rank.part("trainable"), zero.sub_group_size
    hold = partial(offload.hold, shards=shards, pinned="whole")
    if zero.offload_optimizer != "none":
        tier = offload.tiers["optimizer"]
        hold("gradient buffer", "buffers", trained, "weights")
        hold("fp32 gradients", "gradients", trained, "fp32", tier=tier, pieces=sub_group)
    if zero.offload_optimizer == "nvme":
        elements = min(trained, sub_group * shards)
        name = "optimizer swap buffers"
        offload.hold(name, "buffers", elements, "fp32", copies=OPTIMIZER_BUFFERS, shards=shards)
    if zero.offload_params == "nvme":
        size, copies = PARAMETER_BUFFER_SIZE, PARAMETER_BUFFERS
        offload.hold("parameter swap buffers", "buffers", size, "gather", copies=copies)


# Traffic.


def reduce_gradients(step: Step) -> None:
    """Reduce all gradients to their owners, then among the copies of a share, if there are some.

    A linear layer's weight has its gradient before its bias: runtime/zero/linear.py is in the place
    of PyTorch's linear (memory_efficient_linear).
    """
    buckets = ReduceBuckets(step, weights_first=True)
    if step.shards.ranks > 1:
        if step.zero.quantised_gradients:
            reduce_in_two_hops(step)
        elif step.zero.grad_sync == "all-reduce":
            buckets.all_reduce_in_place()
        else:
            buckets.reduce_scatter()
    buckets.all_reduce_among_replicas()


def gather_persistent(step: Step) -> None:
    """All-gather the updated parameters that stay whole, each tensor in a call of its own."""
    rank, dtype = step.rank, step.dtype("gather")
    calls = [(rank.part("persistent"), 1)]
    if rank.split == 1:
        calls = grouped(rank.tensors("persistent"))
    for elements, count in calls:
        step.send(step.shards, "all_gather", "weights", dtype, elements, count, overlapped=False)
