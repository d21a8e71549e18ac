"""DeepSpeed's ZeRO: DDP (stage 0), ZeRO-1 and ZeRO-2, in which every rank has all weights; ZeRO-3
is in deepspeed_zero3.py.

DeepSpeed 0.19.8, runtime/engine.py and runtime/fp16/fused_optimizer.py (stage 0),
runtime/zero/stage_1_and_2.py (stages 1 and 2), runtime/bf16_optimizer.py (stage 1 that accumulates
gradients in fp32).
"""

from __future__ import annotations

from zerocalc.frameworks.deepspeed_zero3 import zero_3
from zerocalc.frameworks.flat_buffer import elements_beyond_share, touched_elements
from zerocalc.frameworks.offload import Offload, Offloading
from zerocalc.frameworks.program import Program
from zerocalc.frameworks.reduce_buckets import Order, ReduceBuckets
from zerocalc.frameworks.step import Step
from zerocalc.ledger import Term
from zerocalc.spec.job import Job

ANYWHERE = (
    "which parameters are trained is not known: gradients of a layer or tensor counted as if "
    "all of it that can be were, reduced as one"
)
OFFLOADING = Offloading("deepspeed, stage_1_and_2.py", gradients="replaced", pinned=("master",))


def run(step: Step) -> None:
    """One optimizer step at a stage."""
    if not step.rank.placed:
        step.assume(ANYWHERE)
    if step.stage == 1 and step.zero.grad_accum_dtype == "fp32":
        zero_1_in_fp32(step)
    else:
        {0: ddp, 1: zero_1, 2: zero_2, 3: zero_3}[step.stage](step)


def ddp(step: Step) -> None:
    """Every rank has everything; gradients are all-reduced in buckets, once a step."""
    step.keep(step.states())

    step.forward()
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    computed = hold_gradient_being_computed(step) if step.accumulates else None
    step.compute_layers_backward()
    step.free(computed)
    ReduceBuckets(step, once_a_step(step)).all_reduce()

    step.update()
    copied = None
    if step.job.trained_recipe.gradient_dtype != "fp32":  # the optimizer computes in fp32
        copied = step.hold("fp32 gradients", "buffers", step.rank.part("trainable"), "fp32")
    step.compute_update()
    step.free(copied)


def zero_1(step: Step) -> None:
    """Optimizer states are sharded: gradients are reduced once a step, each rank updates its share
    of the weights, and all gather the others'.

    Gradients stay whole until they are reduced. Where reduction overlaps backward and nothing
    accumulates, a rank keeps those with a part in its share alone, as at stage 2.
    """
    stage, offload = sharded_as(step.job, step.stage), Offload(step, OFFLOADING)
    buckets = ReduceBuckets(step, once_a_step(step))
    step.keep(offload.place(step.states(as_stage=stage, until="backward_end"), stage))
    added = hold_for_offloading(step, offload)

    step.forward()
    bucket = None
    if step.accumulates:  # the bucket of the micro-batch before
        bucket = buckets.hold(copies=2 if step.overlaps else 1)
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    bucket = bucket or buckets.hold(copies=2 if step.overlaps else 1)
    computed = hold_gradient_being_computed(step) if step.accumulates else None
    step.compute_last_layer_backward()
    flat = buckets.hold_flat_copy()
    beyond = hold_beyond_share(step) if stage == 2 else None
    step.compute_first_layer_backward()
    step.free(bucket, computed, flat, beyond)
    reduce_gradients(step, buckets)
    offload.copy_gradients("down", "fp32", 1)

    update_share(step)
    step.free(added)
    gather_weights(step)
    offload.finish()


def zero_1_in_fp32(step: Step) -> None:
    """BF16_Optimizer, which engine.py takes for stage 1 where gradients accumulate in fp32: all of
    them are there in both dtypes, and are reduced at once.
    """
    trained = step.rank.part("trainable")
    step.keep(step.states())
    step.hold("accumulated gradients", "gradients", trained, "fp32")

    step.forward()
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    computed = hold_gradient_being_computed(step) if step.accumulates else None
    step.compute_layers_backward()
    step.free(computed)
    reduced = step.dtype("reduce")
    step.send(step.shards, "all_reduce", "gradients", reduced, trained, step.reductions)

    step.update()
    step.compute_update()
    gather_weights(step)


def zero_2(step: Step) -> None:
    """Gradients are sharded too: they are reduced after every micro-batch, as they arrive, and a
    rank keeps its share. Until the step it keeps each tensor with a part in its share whole; the
    sum over micro-batches in fp32 has its share alone.
    """
    rank, offload = step.rank, Offload(step, OFFLOADING)
    buckets = ReduceBuckets(step)
    in_fp32 = step.zero.grad_accum_dtype == "fp32"
    rows = step.states(until="backward_end", gradients=not in_fp32)
    step.keep(offload.place(rows, step.stage))
    added = hold_for_offloading(step, offload)

    step.forward()
    accumulated = hold_accumulated(step) if in_fp32 and step.accumulates else None
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    bucket = buckets.hold(copies=2 if step.overlaps else 1)
    waiting, flat = buckets.hold_unreduced(), buckets.hold_flat_copy()
    computed = None
    if in_fp32 or step.zero.offload_optimizer != "none":
        computed = hold_gradient_being_computed(step)
    step.compute_last_layer_backward()
    accumulated = accumulated or (hold_accumulated(step) if in_fp32 else None)
    beyond = None if in_fp32 else hold_beyond_share(step)
    step.compute_first_layer_backward()
    step.free(bucket, waiting, flat, computed, beyond)
    reduce_gradients(step, buckets)
    if step.accumulates:  # the sum is in CPU memory: each micro-batch but the first one adds to it
        touched = max(touched_elements(step.job, rank))
        offload.copy_gradients("down", "weights", step.micro_batches, touched)
        offload.copy_gradients("up", "weights", step.micro_batches - 1, touched)
    offload.copy_gradients("down", "fp32", 1)

    update_share(step)
    step.free(accumulated, added)
    gather_weights(step)
    offload.finish()


def once_a_step(step: Step) -> Order:
    """In which order gradients that are reduced once a step go into buckets: as the model lists
    them once backward is over, as they arrive where reduction overlaps it.
    """
    return "arriving" if step.overlaps else "listed"


def sharded_as(job: Job, stage: int) -> int:
    """Stage 1 is sharded as stage 2, which frees gradients that other ranks own, where reduction
    overlaps backward and nothing accumulates.
    """
    in_fp32 = job.zero.grad_accum_dtype == "fp32"
    early = job.overlaps(stage) and job.training.accumulation == 1 and not in_fp32
    return 2 if stage == 1 and early else stage


# What backward holds.


def hold_gradient_being_computed(step: Step) -> Term | None:
    """The gradient that is added to, or copied into, one that is there already."""
    elements = step.rank.part("tensor", trained=True)
    return step.hold("gradient being computed", "buffers", elements, "weights")


def hold_accumulated(step: Step) -> Term | None:
    """A rank's share of the sum of gradients over micro-batches."""
    elements, shards = step.rank.part("trainable"), step.rank.shards
    return step.hold("accumulated gradients", "gradients", elements, "fp32", shards=shards)


def hold_beyond_share(step: Step) -> Term | None:
    """What tensors have outside of a rank's share, in addition to its gradients' row."""
    if step.zero.offload_optimizer != "none":
        return None
    elements = elements_beyond_share(step.job, step.rank)
    return step.hold("gradients outside the rank's shard", "buffers", elements, "weights")


# Traffic.


def reduce_gradients(step: Step, buckets: ReduceBuckets) -> None:
    """Reduce all gradients at stages 1 and 2 (average_tensor)."""
    if step.shards.ranks == 1:
        return
    if step.zero.grad_sync == "all-reduce" or not buckets.contiguous:
        buckets.all_reduce()
    elif step.zero.reduce_to_owner:
        buckets.reduce_to_owners()
    else:
        buckets.all_reduce_for_owners()


def gather_weights(step: Step) -> None:
    """All-gather the weights that the other ranks have updated."""
    over, dtype, elements = step.shards, step.dtype("gather"), step.rank.shardable("trainable")
    step.send(over, "all_gather", "weights", dtype, elements, 1, overlapped=False)


# The update.


def update_share(step: Step) -> None:
    """Update a rank's share, for which its gradients are made fp32 unless they are already."""
    step.update()
    copied = None
    if step.zero.grad_accum_dtype is None and step.zero.offload_optimizer == "none":
        elements, shards = step.rank.part("trainable"), step.rank.shards
        copied = step.hold("fp32 gradients", "buffers", elements, "fp32", shards=shards)
    step.compute_update()
    step.free(copied)


def hold_for_offloading(step: Step, offload: Offload) -> Term | None:
    """With the optimizer in CPU memory: its gradients, the weights that it updates in their own
    dtype, and a tensor's gradient on its way there. The GPU has room for such a tensor, too.

    Stage 2 adds gradients up in CPU memory, whole tensors with a part in a rank's share.
    """
    if step.zero.offload_optimizer == "none":
        return None
    rank, tier = step.rank, offload.tiers["optimizer"]
    trained, shards, largest = (
        rank.part("trainable"),
        rank.shards,
        rank.part("tensor", trained=True),
    )
    offload.hold(
        *("fp32 gradients", "gradients", trained, "fp32"), tier=tier, shards=shards, pinned="whole"
    )
    offload.hold("weights to copy", "buffers", trained, "gather", shards=shards, pinned="whole")
    offload.hold("gradient to copy", "buffers", largest, "weights", pinned="whole")
    if step.stage == 2 and step.accumulates:
        offload.hold_touched("summed gradients", "buffers", "weights")
    return step.hold("gradient to accumulate", "buffers", largest, "weights")


PROGRAM = Program(
    run, padding={1: "flat_twice", 2: "flat_twice", 3: "tensor"}, sharded_as=sharded_as
)
