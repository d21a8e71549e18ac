"""Memory apart from states and activations: workspaces, CUDA context, fragmentation."""

from __future__ import annotations

from zerocalc.formulas.buffers import (
    fragmentation_bytes,
    runtime_bytes,
    workspace_bytes,
)
from zerocalc.ledger import (
    DYNAMIC_KINDS,
    EMPTY,
    MOMENTS,
    Block,
    Ledger,
    block,
    span,
    term,
)
from zerocalc.spec.cluster import Cluster, Gpu
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.model import Model


def runtime(gpu: Gpu | None) -> Block:
    """The CUDA context before the first tensor, where the GPU's preset has its size."""
    if gpu is None or not gpu.runtime_bytes:
        return EMPTY
    note = gpu.runtime_words
    return block(
        (
            term(
                "CUDA context",
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
    """Matmul workspaces, held from the first matmul on; grouped matmuls have their own."""
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
                "matmul workspace",
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
                "grouped matmul workspaces",
                "buffers",
                span("forward", "step"),
                workspace_bytes,
                workspace_bytes=own,
                handles=grouped,
            )
        )
    return block(terms)


DEFRAGMENTED = block((), (), ("allocator fragmentation ignored (M_D)",))


def fragmentation(fraction: float, ledger: Ledger) -> Block:
    """What is lost between live blocks at the peak, while M_D is off."""
    note = f"allocator fragmentation: {fraction:.0%} of dynamic memory (M_D off)"
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
