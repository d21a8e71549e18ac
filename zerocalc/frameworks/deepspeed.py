"""DeepSpeed's ZeRO: DDP (stage 0), ZeRO-1 and ZeRO-2, in which every rank has all weights; ZeRO-3
is in deepspeed_zero3.py.

DeepSpeed 0.19.8, runtime/engine.py and runtime/fp16/fused_optimizer.py (stage 0),
runtime/zero/stage_1_and_2.py (stages 1 and 2), runtime/bf16_optimizer.py (stage 1 that accumulates
gradients in fp32).
"""

from __future__ import annotations

from functools import partial

from zerocalc.frameworks.deepspeed_zero3 import zero_3
from zerocalc.frameworks.flat_buffer import elements_beyond_share, touched_elements
from zerocalc.frameworks.offload import Offload, Offloading
from zerocalc.frameworks.program import Program
from zerocalc.frameworks.reduce_buckets import (
    Order,
    ReduceBuckets,
    hold_accumulated,
    hold_gradient_being_computed,
)
from zerocalc.frameworks.step import Step
from zerocalc.ledger import Term
from zerocalc.spec.job import Job

OFFLOADING = Offloading("deepspeed, stage_1_and_2.py", gradients="replaced", pinned=("master",))


def run(step: Step) -> None:
    """One optimizer step at a stage."""
    step.assume_placed()
    if step.stage == 1 and step.zero.grad_accum_dtype == "fp32":
        zero_1_in_fp32(step)
    else:
        {0: ddp, 1: zero_1, 2: zero_2, 3: zero_3}[step.stage](step)


def ddp(step: Step) -> None:
    """Every rank has everything; gradients are all-reduced in buckets, once a step."""
    step.keep(step.states())

    step.run_forward()

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
    bucket = buckets.hold() if step.accumulates else None  # of the micro-batch before
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    bucket = bucket or buckets.hold()
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
    accumulated = step.hold("accumulated gradients", "gradients", trained, "fp32")

    step.run_forward()

    step.backward()
    computed = hold_gradient_being_computed(step) if step.accumulates else None
    step.compute_layers_backward()
    step.free(computed)
    reduced = step.dtype("reduce")
    step.send(step.shards, "all_reduce", "gradients", reduced, trained, step.reductions)

    step.update()
    step.compute_update()
    step.free(accumulated)
    gather_weights(step)


def zero_2(step: Step) -> None:
    """Gradients are sharded too: they are reduced after every micro-batch, as they arrive, and a
    rank keeps its share. Until the step it keeps each tensor with a part in its share whole; the
    sum over micro-batches in fp32 has its share alone.
    """
    rank, offload = step.rank, Offload(step, OFFLOADING)
    buckets = ReduceBuckets(step)
    in_fp32, offloads = step.zero.grad_accum_dtype == "fp32", step.zero.offload_optimizer != "none"
    rows = step.states(until="backward_end", gradients=not in_fp32)
    step.keep(offload.place(rows, step.stage))
    added = hold_for_offloading(step, offload)

    step.forward()
    accumulated = hold_accumulated(step) if in_fp32 and step.accumulates else None
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    bucket = buckets.hold()
    waiting, flat = buckets.hold_unreduced(), buckets.hold_flat_copy()
    computed = hold_gradient_being_computed(step) if in_fp32 or offloads else None
    step.compute_last_layer_backward()
    accumulated = accumulated or (hold_accumulated(step) if in_fp32 else None)
    beyond = None if in_fp32 else hold_beyond_share(step)
    step.compute_first_layer_backward()
    step.free(bucket, waiting, flat, computed, beyond)
    reduce_gradients(step, buckets)
    if offloads and step.accumulates:  # each micro-batch but the first adds to what is on the CPU
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
    rank, tier, shards = step.rank, offload.tiers["optimizer"], step.rank.shards
    trained, largest = rank.part("trainable"), rank.part("tensor", trained=True)
    hold = partial(offload.hold, pinned="whole")
    hold("fp32 gradients", "gradients", trained, "fp32", tier=tier, shards=shards)
    hold("weights to copy", "buffers", trained, "gather", shards=shards)
    hold("gradient to copy", "buffers", largest, "weights")
    if step.stage == 2 and step.accumulates:
        offload.hold_touched("summed gradients", "buffers", "weights")
    return step.hold("gradient to accumulate", "buffers", largest, "weights")


LIMITS = (
    "Control collectives are not counted: the overflow flag, the gradient norm, the check that "
    "all ranks saw the same trace. They are up to 3 calls of 8 bytes a step.",
    "The first two steps are not modelled. The order of modules is not known in them, and nothing "
    "is prefetched.",
    "A module without tensors next to an MLP's activation (GPT-2's dropout) is one more place to "
    "prefetch from. A call may be split in two; the bytes stay.",
    "The trace changes from step to step where layers are not called in the order of their list, "
    "or experts are called one by one. DeepSpeed asks for `set_z3_leaf_module` then, and experts "
    "are counted in that way.",
    "recompute_every: the first layers of their kind are taken as the recomputed ones, not every "
    "k-th. Bytes differ by one window at most.",
    "Pipeline stages and bare parameter counts: prefetch windows and bucket edges are not "
    "followed. Backward gathers what is beyond max_reuse_distance. Gradients on the edges of a "
    "share are not counted (two tensors at most).",
    "Windows are not followed either with adapters of embeddings, of experts or of a tied head. "
    "With hpZ the calls of later micro-batches are counted as one where DeepSpeed makes two.",
    "Adapters under zero.Init stay in PEFT's dtype, because they are made after the cast. They "
    "are counted as cast.",
    "A coalesced gather holds its output while tensors are copied out of it. These "
    "prefetch_bucket_size elements, and a tensor more, are not counted.",
    "Stage 1 with overlap_comm: the gradient of a tensor that is larger than a bucket is freed "
    "one bucket later (one tensor).",
    "Stage 1 in fp32: a rank whose share is within one tensor keeps that tensor's gradient and "
    "makes no copy. The difference is the largest tensor less P/N at most.",
    "Without contiguous_gradients, unreduced gradients and their flat copy are counted as one "
    "full bucket each, an upper bound.",
    "Buckets follow an assumed order of tensors. Where a model lists norms of attention heads in "
    "another order, the sizes of two calls differ by these tensors. So do stages 1 and 2 of "
    "families that list all norms first (GPT-NeoX) or the final norm before the layers (OPT).",
    "qgZ's buffers (a tensor in 4 bits, twice) are not counted.",
    "MiCS, until DeepSpeed 0.19.8, which refuses it, follows the source and was not recorded. Its "
    "hierarchical gathers are not followed.",
    "ZenFlow, Muon, SuperOffload, compiled stage 3 and GPUDirect Storage are not offered.",
    "stage3_model_persistence_threshold, stage3_use_all_reduce_for_fetch_params, "
    "stage3_allgather_sequential, stage3_module_granularity_threshold and parameter_alignment are "
    "named in a note and not modelled.",
    "OPT's layers call the parts of their MLP themselves, so that there is one module less to "
    "prefetch from. A tensor or two more may be gathered.",
    "round_robin_gradients: bytes stay. Sizes of calls differ without "
    "use_multi_rank_bucket_allreduce, and for a tensor that is larger than a bucket.",
    "fp16 with grad_accum_dtype fp32 at stage 1: bytes are as recorded, in buckets of "
    "reduce_bucket_size. Memory is taken as that of bf16.",
    "qwZ: the int8 copy from which a gather's weights are made is not counted (one byte an "
    "element).",
    "Offload: CPU memory was recorded in 9 runs. Transfers, rounding of pinned memory and what is "
    "on drives follow the source. The part of a tensor's gradients that becomes fp32 on its way "
    "to the CPU is not counted. Offload together with grad_accum_dtype, hpZ, qwZ or qgZ is "
    "refused.",
    "Allocator fragmentation, NCCL's buffers and kernel workspaces were not recorded: no run was "
    "on a GPU.",
)
PROGRAM = Program(
    run,
    padding={1: "flat_twice", 2: "flat_twice", 3: "tensor"},
    limits=LIMITS,
    sharded_as=sharded_as,
)
