"""Buffers and transient memory: C_B, gathered units, fragmentation."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from zerocalc.formulas.formula import ceil_div, formula


@formula(
    "min(C, Ψ)·B·k",
    "[ZeRO] §6.2 (C_B)",
    C="bucket_elements",
    Ψ="elements",
    B="bytes_per_element",
    k="copies",
)
def bucket_bytes(
    *, bucket_elements: int, elements: int, bytes_per_element: int, copies: int
) -> int:
    """Bytes of constant-size communication buffers; a bucket is never larger than what goes through
    it.

    >>> bucket_bytes(bucket_elements=500_000_000, elements=7_500_000_000, bytes_per_element=2,
    ...     copies=2)
    2000000000
    """
    return min(bucket_elements, elements) * bytes_per_element * copies


@formula(
    "Ψ·B", "[ZeRO] §6.2 (the fused buffer that C_B replaces)", Ψ="elements", B="bytes_per_element"
)
def fused_bytes(*, elements: int, bytes_per_element: int) -> int:
    """Bytes of one fused buffer that grows with the model.

    [ZeRO] §6.2: 12 GB for 3B parameters:

    >>> fused_bytes(elements=3_000_000_000, bytes_per_element=4)
    12000000000
    """
    return elements * bytes_per_element


@formula(
    "k·u·B",
    "[ZeRO] §5.3; [FSDP] §4.3 (gathers in flight)",
    k="units_in_flight",
    u="unit_elements",
    B="bytes_per_element",
)
def gathered_bytes(*, units_in_flight: int, unit_elements: int, bytes_per_element: int) -> int:
    """Bytes of sharded units gathered whole while they are in use or prefetched.

    >>> gathered_bytes(units_in_flight=2, unit_elements=218_112_000, bytes_per_element=2)
    872448000
    """
    return units_in_flight * unit_elements * bytes_per_element


@formula("⌈f·D⌉", "[ZeRO] §6.3 (M_D)", f="fraction", D="dynamic_bytes")
def fragmentation_bytes(*, fraction: float, dynamic_bytes: int) -> int:
    """Bytes lost between live blocks: for each byte D that comes and goes within a step, f bytes
    more, so that D·(1 + f) are reserved.

    [ZeRO] §3.2 reports running out of memory with over 30 % of it still free and gives no formula;
    of what is reserved here f/(1 + f) is lost.

    >>> fragmentation_bytes(fraction=0.25, dynamic_bytes=1000)
    250
    """
    return math.ceil(fraction * dynamic_bytes)


@formula("R", "the GPU's preset", R="runtime_bytes")
def runtime_bytes(*, runtime_bytes: int) -> int:
    """Bytes that the device's runtime holds before the first tensor exists.

    >>> runtime_bytes(runtime_bytes=504658657)
    504658657
    """
    return runtime_bytes


@formula(
    "e·B·c",
    "the framework's program (zerocalc/frameworks)",
    e="elements",
    B="bytes_per_element",
    c="copies",
)
def held_bytes(*, elements: int, bytes_per_element: int, copies: int) -> int:
    """Bytes of copies of a part of the parameters.

    >>> held_bytes(elements=218_112_000, bytes_per_element=2, copies=2)
    872448000
    """
    return elements * bytes_per_element * copies


@formula(
    "⌈e/N_d⌉·B·c",
    "the framework's program (zerocalc/frameworks)",
    e="elements",
    N_d="shards",
    B="bytes_per_element",
    c="copies",
)
def held_share_bytes(*, elements: int, shards: int, bytes_per_element: int, copies: int) -> int:
    """Bytes of copies of a rank's share of a part of the parameters.

    >>> held_share_bytes(elements=218_112_000, shards=8, bytes_per_element=2, copies=1)
    54528000
    """
    return ceil_div(elements, shards) * bytes_per_element * copies


@formula(
    "⌈e/G⌉·B·c",
    "the framework's program (zerocalc/frameworks)",
    e="elements",
    G="shards",
    B="bytes_per_element",
    c="copies",
)
def held_in_group_bytes(*, elements: int, shards: int, bytes_per_element: int, copies: int) -> int:
    """As `held_share_bytes`, of what a smaller group of ``shards`` ranks holds once more.

    >>> held_in_group_bytes(elements=218_112_000, shards=4, bytes_per_element=2, copies=1)
    109056000
    """
    return ceil_div(elements, shards) * bytes_per_element * copies


def filled(sizes: Iterable[int], most: int) -> list[int]:
    """How many tensors go into each bucket of ``most`` elements: one that the next tensor does not
    fit into is sent first.

    >>> filled([3, 3, 3, 9, 1], 6)
    [2, 1, 1, 1]
    """
    counts: list[int] = []
    room = 0
    for size in sizes:
        if size > room or not counts:
            counts.append(0)
            room = most
        counts[-1] += 1
        room -= size
    return counts


def touched(sizes: Sequence[int], shards: int, share: int) -> list[tuple[int, bool]]:
    """For each of some equal shares of a flat buffer: elements of all tensors with a part in it,
    and whether the first tensor is one of them.

    >>> touched([6, 3, 3], shards=3, share=4)
    [(6, True), (9, True), (6, False)]
    """
    ends = list(accumulate(sizes))
    out: list[tuple[int, bool]] = []
    for shard in range(shards):
        first, last = bisect_right(ends, shard * share), bisect_left(ends, (shard + 1) * share)
        amount = (
            (ends[min(last, len(ends) - 1)] - (ends[first - 1] if first else 0))
            if first < len(ends)
            else 0
        )
        out.append((amount, first == 0))
    return out


@formula("W·n", "CUBLAS_WORKSPACE_CONFIG, or the GPU's preset", W="workspace_bytes", n="handles")
def workspace_bytes(*, workspace_bytes: int, handles: int) -> int:
    """Bytes of the workspaces that a library of matrix products allocates once per handle.

    >>> workspace_bytes(workspace_bytes=33_554_432, handles=2)
    67108864
    """
    return workspace_bytes * handles
