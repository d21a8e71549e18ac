"""States in a node's memory or on its drives: bytes per node, what page-locked allocations take,
the bandwidth that an efficiency needs.
"""

import math
from collections.abc import Iterable

from zerocalc.formulas.formula import formula, ratio


@formula("r·G", "a rank's share, for each GPU of a node", r="bytes_per_rank", G="gpus_per_node")
def node_bytes(*, bytes_per_rank: int, gpus_per_node: int) -> int:
    """Bytes per node of what each of its GPUs keeps there.

    [Off] §4: 14 bytes per parameter on the host:

    >>> node_bytes(bytes_per_rank=14 * 10_000_000_000, gpus_per_node=1)
    140000000000
    """
    return bytes_per_rank * gpus_per_node


def page_locked(sizes: Iterable[int]) -> int:
    """Bytes of page-locked allocations of some sizes: PyTorch rounds each up to a power of two
    (ATen/core/CachingHostAllocator.h).

    >>> page_locked([1000, 1024, 0])
    2048
    """
    return sum([1 << (size - 1).bit_length() for size in sizes if size])


@formula(
    "(H − h)·G",
    "PyTorch: page-locked allocations are powers of two",
    H="page_locked_bytes",
    h="bytes_per_rank",
    G="gpus_per_node",
)
def rounding_bytes(*, page_locked_bytes: int, bytes_per_rank: int, gpus_per_node: int) -> int:
    """Bytes per node that rounding adds to page-locked allocations.

    >>> rounding_bytes(page_locked_bytes=1024, bytes_per_rank=1000, gpus_per_node=8)
    192
    """
    return (page_locked_bytes - bytes_per_rank) * gpus_per_node


@formula("⌈(f − 1)·H⌉", "DeepSpeed's estimators: 1.5 for buffers", f="factor", H="host_bytes")
def factor_bytes(*, factor: float, host_bytes: int) -> int:
    """Bytes per node that a factor for buffers adds, where allocations are not known.

    >>> factor_bytes(factor=1.5, host_bytes=1000)
    500
    """
    return math.ceil((factor - 1) * host_bytes)


@ratio(
    "e/(1 − e)·F/A",
    "[Inf] §4, solved for the bandwidth",
    e="fraction",
    F="peak_flops_per_second",
    A="intensity",
)
def needed_bytes_per_second(
    *, fraction: float, peak_flops_per_second: float, intensity: float
) -> float:
    """Bandwidth [bytes/s] at which computing reaches a fraction of its peak while no transfer is
    hidden behind it.

    [Inf] §4.2: 70 GB/s for 50 %:

    >>> round(needed_bytes_per_second(fraction=0.5, peak_flops_per_second=70e12,
    ...     intensity=1024) / 1e9)
    68
    """
    return fraction / (1 - fraction) * peak_flops_per_second / intensity
