"""ZeRO as published, idealised: what [ZeRO] describes, with what [++], [Inf] and [Off] add.

[ZeRO] §5 and §7; buckets that overlap backward: DeepSpeed's configuration documentation; gathers in
flight: [FSDP] §4.3; copies of the shards: [FSDP] §3.2.2; secondary shards, quantised weights and
gradients: [++] §3.
"""

from __future__ import annotations

from zerocalc.formulas.buffers import bucket_bytes, fused_bytes, gathered_bytes
from zerocalc.formulas.formula import ceil_div
from zerocalc.frameworks.offload import Offload, Offloading
from zerocalc.frameworks.program import Program
from zerocalc.frameworks.step import Step
from zerocalc.ledger import GATHERED, MOMENTS, Term, term
from zerocalc.schedule import Link, Op
from zerocalc.sharding.gather_units import Unit
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.spec.zero import FUSED_BUFFER_BYTES
from zerocalc.traffic.groups import PACKED, hops

SOURCES = {0: "[ZeRO] §7.1", 1: "[ZeRO] §7.2.1", 2: "[ZeRO] §7.2.1", 3: "[ZeRO] §7.2.2"}
ZERO_PLUS, HYBRID = "[++] §3", "[FSDP] §3.2.2"
QUANTISED = "int8"
"""The dtype of what is sent quantised; 4-bit numbers go two in a byte."""
OVERLAPPING_BUCKETS = 2
"""Reduce buckets at stages 1 and 2 while reduction overlaps backward: one fills, one is reduced."""
HOST_FACTOR = 1.5
"""What buffers take on the host at most, as a factor (DeepSpeed's estimators)."""


def run(step: Step) -> None:
    """One optimizer step: with all weights on every rank, or with their shards."""
    step.source = SOURCES[step.stage]
    if step.stage == 3:
        zero_3(step)
    else:
        up_to_zero_2(step)


def up_to_zero_2(step: Step) -> None:
    """Every rank has all weights. Gradients are reduced in buckets while backward goes on: to all
    ranks (DDP), or to the one that updates them; that one's weights are gathered after the step.
    """
    zero, stage, offload = step.zero, step.stage, Offload(step, offloading(step.stage))
    step.keep(offload.place(step.states(), stage))

    step.run_forward()

    step.backward()
    bucket = reduce_bucket(step)
    step.compute_layers_backward()
    to_all = stage == 0 or (stage == 1 and zero.grad_sync == "all-reduce")
    reduce_in_buckets(step, "all_reduce" if to_all else "reduce_scatter")
    if zero.buffers != "fused":
        step.free(bucket)

    step.update()
    gathered = all_gather_bucket(step) if stage else None
    step.compute_update()
    step.free(gathered)
    dtype = step.job.trained_recipe.gather
    for elements, count in in_buckets(step, zero.allgather_bucket_size) if stage else ():
        step.send(step.shards, "all_gather", "weights", dtype, elements, count, overlapped=False)
    offload.copy_gradients("down", "reduce", step.reductions)
    offload.finish()


def zero_3(step: Step) -> None:
    """Weights are sharded too: each unit is gathered for forward and again for backward, freed
    after use, and its gradients are reduced to their owners.
    """
    zero, rank = step.zero, step.rank
    offload = Offload(step, offloading(step.stage))
    by_owner = zero.gather == "broadcast"
    step.keep(offload.place(step.states(owner_blocks=owner_blocks(step)), step.stage))
    if zero.secondary_group is not None:
        size = rank.parameters
        step.hold("secondary shards", "copies", size, "gather", group=zero.secondary_group)

    step.forward()
    gather_units(step, "broadcast" if by_owner else "all_gather", rank.units, step.shards)
    tied = rank.arch is not None and rank.arch.tied
    layers, head = hold_units(step, "layer"), hold_units(step, "head")
    embedding = hold_units(step, "embedding") if tied else []  # else freed before the first layer
    step.compute_layers()
    step.compute_head()
    step.compute_loss()
    step.free(*head)

    step.backward()
    again = step.shards
    if zero.secondary_group is not None:  # hpZ: the group has what forward gathered
        again = step.link(zero.secondary_group, ZERO_PLUS)
    gather_units(step, "broadcast" if by_owner else "all_gather", rank.units[::-1], again)
    bucket = reduce_bucket(step)
    step.compute_last_layer_backward()
    embedding = embedding or hold_units(step, "embedding")
    step.compute_first_layer_backward()
    step.free(*layers, *embedding)
    reduce_units(step, "reduce" if by_owner else "reduce_scatter")
    if zero.buffers != "fused":
        step.free(bucket)

    step.update()
    step.compute_update()
    offload.copy_gradients("down", "reduce", step.reductions)
    offload.finish()


# Units at stage 3.


def gather_units(step: Step, op: Op, units: tuple[Unit, ...], over: Link) -> None:
    """Gather units, or have their owners broadcast them; adapters have a dtype of their own."""
    job, calls = step.job, step.micro_batches
    dtype = QUANTISED if step.zero.quantised_weights else job.gather_dtype
    own = job.trained_recipe.gather
    for unit in units:
        step.send(over, op, f"{unit.name} weights", dtype, unit.elements, unit.count * calls)
        what = f"{unit.name} adapters' weights"
        step.send(over, op, what, own, unit.adapters, unit.count * calls)


def hold_units(step: Step, place: str) -> list[Term]:
    """Units that are whole while they are used or prefetched; the larger layers come first, so that
    later, smaller ones only fill what is left in flight.
    """
    job, rank = step.job, step.rank
    brought = step.zero.offload_params != "none"
    if rank.shards == 1 and not brought:
        return []
    out: list[Term] = []
    left = job.framework.units_in_flight
    for unit in rank.units:
        if not unit.known:
            step.unknown(GATHERED)
        elif unit.place == place:
            in_flight = min(left, unit.count) if place == "layer" else 1
            left -= in_flight
            several = "s" if in_flight > 1 else ""
            name = f"gathered {unit.name}{several}"
            adapters = f"{name}' adapters" if several else f"{name}'s adapters"
            for what, elements, dtype in (
                (name, unit.elements, job.gather_dtype),
                (adapters, unit.adapters, job.trained_recipe.gather),
            ):
                if in_flight and elements:
                    made = term(
                        what,
                        "gathered",
                        MOMENTS,
                        gathered_bytes,
                        units_in_flight=in_flight,
                        unit_elements=elements,
                        bytes_per_element=DTYPE_BYTES[dtype],
                    )
                    out.append(step.allocate(made))
    return out


def reduce_units(step: Step, op: Op) -> None:
    """Reduce gradients to their owners, unit by unit from the last one on; where it is not known
    which units hold what is trained, in buckets.
    """
    rank = step.rank
    if not rank.placed:
        reduce_in_buckets(step, op, smaller_first=True)
        return
    for unit in rank.units[::-1]:
        if rank.adapters is None:
            reduce(step, op, f"{unit.name} gradients", unit.elements, unit.count)
        else:
            reduce(step, op, f"{unit.name} adapters' gradients", unit.adapters, unit.count)


def owner_blocks(step: Step) -> int | None:
    """Into how many blocks the parameters are cut where each block has one owner."""
    return step.job.model.blocks if step.zero.gather == "broadcast" else None


# Buckets (C_B), and reductions.


def reduce_bucket(step: Step) -> Term | None:
    """The buckets through which gradients are reduced, or the fused buffer that they replace."""
    zero, trainable = step.zero, step.rank.trainable
    if step.rank.shards == 1:
        return None
    if zero.buffers == "fused":
        made = term(
            "fused buffer",
            "buffers",
            MOMENTS,
            fused_bytes,
            elements=trainable,
            bytes_per_element=FUSED_BUFFER_BYTES,
        )
        return step.allocate(made)
    overlapping = step.overlaps and step.stage in (1, 2)
    return _bucket(
        step,
        "reduce bucket",
        zero.reduce_bucket_size,
        step.job.reduce_dtype,
        OVERLAPPING_BUCKETS if overlapping else 1,
    )


def all_gather_bucket(step: Step) -> Term | None:
    """The bucket through which new weights are gathered."""
    if step.rank.shards == 1 or step.zero.buffers == "fused":
        return None
    size, dtype = step.zero.allgather_bucket_size, step.job.trained_recipe.gather
    return _bucket(step, "all-gather bucket", size, dtype, 1)


def _bucket(step: Step, name: str, size: int, dtype: str, copies: int) -> Term:
    made = term(
        name,
        "buffers",
        MOMENTS,
        bucket_bytes,
        bucket_elements=size,
        elements=step.rank.trainable,
        bytes_per_element=DTYPE_BYTES[dtype],
        copies=copies,
    )
    return step.allocate(made)


def in_buckets(step: Step, bucket: int) -> list[tuple[int, int]]:
    """(elements, calls) of what is trained: full buckets and the rest; a fused buffer is one."""
    trainable = step.rank.trainable
    if step.zero.buffers == "fused":
        return [(trainable, 1)]
    full, rest = divmod(trainable, bucket)
    return [(bucket, full), (rest, 1)]


def reduce_in_buckets(step: Step, op: Op, *, smaller_first: bool = False) -> None:
    """Reduce all gradients, bucket by bucket."""
    buckets = in_buckets(step, step.zero.reduce_bucket_size)
    for elements, count in buckets[::-1] if smaller_first else buckets:
        reduce(step, op, "gradients", elements, count)


def reduce(step: Step, op: Op, what: str, elements: int, count: int) -> None:
    """Reduce gradients among those that share one copy of the states, then each share among those
    that hold the same one (hybrid sharding); quantised, in two hops.
    """
    job, calls, dtype = step.job, count * step.reductions, step.job.reduce_dtype
    if step.stage == 3 and step.zero.quantised_gradients:
        quantised(step, what, elements, calls)
        return
    step.send(step.shards, op, what, dtype, elements, calls)
    if step.stage:
        over = step.link(job.replicas, HYBRID, apart=step.shards.ranks)
        share = ceil_div(elements, step.shards.ranks)
        step.send(over, "all_reduce", f"shares of {what}", dtype, share, calls)


def quantised(step: Step, what: str, elements: int, calls: int) -> None:
    """qgZ: all-to-all in 4 bits within a node, and of each rank's share between nodes."""
    for ranks, apart, part in hops(step.job, step.shards.ranks):
        over = step.link(ranks, ZERO_PLUS, apart=apart)
        size = ceil_div(elements, PACKED * part)
        step.send(over, "all_to_all", what, QUANTISED, size, calls)


def offloading(stage: int) -> Offloading:
    """[Off] §4.1: gradients as they are reduced, updated parameters after the step. [Inf] §5: every
    rank brings its part of each layer over its own link.
    """
    return Offloading("[Inf] §5" if stage == 3 else "[Off] §4.1", factor=HOST_FACTOR)


LIMITS = ("What implementations do differently: the other frameworks are for that.",)
PROGRAM = Program(run, padding={}, limits=LIMITS)
