"""Memory beside states and activations: C_B, gathered units, the device's runtime,
fragmentation.
"""

from __future__ import annotations

from zerocalc.formulas.buffers import (
    bucket_bytes,
    fragmentation_bytes,
    fused_bytes,
    gathered_bytes,
    held_in_group_bytes,
    runtime_bytes,
    workspace_bytes,
)
from zerocalc.ledger import (
    DYNAMIC_KINDS,
    EMPTY,
    MOMENTS,
    Block,
    Ledger,
    Moment,
    Term,
    block,
    span,
    term,
)
from zerocalc.sharding.gather_units import Place
from zerocalc.sharding.rank import Rank
from zerocalc.spec.cluster import Cluster, Gpu
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.spec.zero import FUSED_BUFFER_BYTES, Zero

BACKWARD = span("backward_start", "backward_end")

GATHERED_WHILE: dict[Place, tuple[Moment, ...]] = {
    "layer": span("forward", "backward_end"),
    "embedding": ("backward_end",),
    "head": ("forward", "loss"),
}
"""When units of each kind are gathered, of the moments that the ledger knows; the embedding's
forward lies before the first of them.
"""
GATHERED_TIED = span("forward", "backward_end")


def buffers(
    zero: Zero,
    rank: Rank,
    stage: int,
    *,
    overlaps: bool,
    reduce_dtype: str,
    gather_dtype: str,
    reduce_buffers: int,
) -> Block:
    """C_B: the buckets through which gradients are reduced and weights gathered, or the fused
    buffer that they replace.
    """
    if rank.shards == 1:
        return EMPTY
    if zero.buffers == "fused":
        fused = term(
            "fused buffer",
            "buffers",
            span("backward_start", "step"),
            fused_bytes,
            elements=rank.trainable,
            bytes_per_element=FUSED_BUFFER_BYTES,
        )
        return block((fused,))
    copies = reduce_buffers if overlaps else 1
    bucket = zero.reduce_bucket_size
    terms = [
        term(
            "reduce bucket",
            "buffers",
            BACKWARD,
            bucket_bytes,
            bucket_elements=bucket,
            elements=rank.trainable,
            bytes_per_element=DTYPE_BYTES[reduce_dtype],
            copies=copies,
        )
    ]
    if stage in (1, 2):
        terms.append(
            term(
                "all-gather bucket",
                "buffers",
                ("step",),
                bucket_bytes,
                bucket_elements=zero.allgather_bucket_size,
                elements=rank.trainable,
                bytes_per_element=DTYPE_BYTES[gather_dtype],
                copies=1,
            )
        )
    return block(terms)


def gathered(
    rank: Rank,
    stage: int,
    *,
    gather_dtype: str,
    adapter_dtype: str,
    units_in_flight: int,
    brought: bool = False,
) -> Block:
    """Sharded units gathered whole while they are used or prefetched (stage 3), and their adapters
    with them; ``brought``: from the host.
    """
    if stage < 3 or (rank.shards == 1 and not brought):
        return EMPTY
    terms: list[Term] = []
    size = DTYPE_BYTES[gather_dtype]
    tied = rank.arch is not None and rank.arch.tied
    layers = 0
    for unit in rank.units:
        if not unit.known:
            return block((), ("gathered layers",))
        in_flight = 1
        if unit.place == "layer":
            # The larger ones come first, so that later, smaller ones only fill what is left in
            # flight.
            in_flight = min(units_in_flight - layers, unit.count)
            layers += in_flight
        if in_flight:
            moments = (
                GATHERED_TIED if tied and unit.place == "embedding" else GATHERED_WHILE[unit.place]
            )
            name = f"gathered {unit.name}" + ("s" if in_flight > 1 else "")
            terms.append(
                term(
                    name,
                    "gathered",
                    moments,
                    gathered_bytes,
                    units_in_flight=in_flight,
                    unit_elements=unit.elements,
                    bytes_per_element=size,
                )
            )
            if unit.adapters:
                terms.append(
                    term(
                        f"{name}' adapters" if in_flight > 1 else f"{name}'s adapters",
                        "gathered",
                        moments,
                        gathered_bytes,
                        units_in_flight=in_flight,
                        unit_elements=unit.adapters,
                        bytes_per_element=DTYPE_BYTES[adapter_dtype],
                    )
                )
    return block(terms)


def secondary(rank: Rank, group: int | None, stage: int, gather_dtype: str) -> Block:
    """hpZ: a second copy of the weights, sharded within a group, from which backward gathers (stage
    3).
    """
    if group is None or stage < 3:
        return EMPTY
    size = DTYPE_BYTES[gather_dtype]
    return block(
        [
            term(
                "secondary shards",
                "copies",
                MOMENTS,
                held_in_group_bytes,
                elements=rank.parameters,
                shards=group,
                bytes_per_element=size,
                copies=1,
            )
        ]
    )


def runtime(gpu: Gpu | None) -> Block:
    """What the device's runtime holds before the first tensor, where the GPU's preset knows it."""
    if gpu is None or not gpu.runtime_bytes:
        return EMPTY
    note = gpu.runtime_words
    return block(
        (
            term(
                "device runtime",
                "runtime",
                MOMENTS,
                runtime_bytes,
                note,
                runtime_bytes=gpu.runtime_bytes,
            ),
        ),
        (),
        (note,),
    )


HANDLES = 2
"""Threads that compute: forward's and automatic differentiation's. PyTorch makes a cuBLAS handle,
and a workspace, for each (ATen/cuda/CublasHandlePool.cpp).
"""


def workspaces(cluster: Cluster, implementation: Implementation, model: Model) -> Block:
    """What matrix products work in, held from the first one on; those over all experts have their
    own.
    """
    gpu = cluster.gpu
    if not cluster.workspaces or gpu is None:
        return EMPTY
    size = (
        gpu.cublas_workspace_bytes if cluster.cublas_workspace is None else cluster.cublas_workspace
    )
    own = gpu.gemm_workspace_bytes if implementation.gemm_workspace else 0
    if size is None or own is None:
        return block((), ("workspaces",))
    terms = [
        term(
            "cuBLAS workspaces",
            "buffers",
            span("forward", "step"),
            workspace_bytes,
            workspace_bytes=size,
            handles=HANDLES,
        )
    ]
    if own:
        terms.append(
            term(
                "workspace of matrix products",
                "buffers",
                span("forward", "step"),
                workspace_bytes,
                workspace_bytes=own,
                handles=1,
            )
        )
    grouped = implementation.grouped_workspaces if own and model.expert_counts else 0
    if own and grouped:
        terms.append(
            term(
                "workspaces of experts' products",
                "buffers",
                span("forward", "step"),
                workspace_bytes,
                workspace_bytes=own,
                handles=grouped,
            )
        )
    return block(terms)


DEFRAGMENTED = block((), (), ("M_D on: nothing lost to fragmentation",))


def fragmentation(fraction: float, ledger: Ledger) -> Block:
    """What is lost between live blocks at the peak, while M_D is off."""
    note = f"M_D off: fragmentation loses {fraction:.0%} on top of dynamic memory in use"
    dynamic = ledger.total(DYNAMIC_KINDS, ledger.peak_moment)
    entry = term(
        "fragmentation",
        "fragmentation",
        MOMENTS,
        fragmentation_bytes,
        note,
        fraction=fraction,
        dynamic_bytes=dynamic,
    )
    return block((entry,), (), (note,))
