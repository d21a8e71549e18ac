"""What one rank sends [bytes]: ring collectives, transfers to a host, messages between two
ranks.
"""

from zerocalc.formulas.formula import ceil_div, formula


@formula(
    "⌈2·(N−1)·T/N⌉·c",
    "[ZeRO] §7.1 (ring: reduce-scatter, then all-gather)",
    N="ranks",
    T="tensor_bytes",
    c="count",
)
def all_reduce_sent(*, ranks: int, tensor_bytes: int, count: int) -> int:
    """Bytes one rank sends in ``count`` ring all-reduces of ``tensor_bytes``.

    >>> all_reduce_sent(ranks=64, tensor_bytes=20_000_000_000, count=1)
    39375000000
    """
    return ceil_div(2 * (ranks - 1) * tensor_bytes, ranks) * count


@formula("⌈(N−1)·T/N⌉·c", "[ZeRO] §7.1 (ring)", N="ranks", T="tensor_bytes", c="count")
def ring_sent(*, ranks: int, tensor_bytes: int, count: int) -> int:
    """Bytes one rank sends in ``count`` ring all-gathers (``tensor_bytes`` gathered) or
    reduce-scatters (its input), or all-to-alls.

    Broadcasts and reduces in which every rank is the owner in turn cost the same, averaged over the
    owners.

    >>> ring_sent(ranks=64, tensor_bytes=20_000_000_000, count=1)
    19687500000
    """
    return ceil_div((ranks - 1) * tensor_bytes, ranks) * count


@formula("T·c", "one copy", T="tensor_bytes", c="count")
def copy_sent(*, tensor_bytes: int, count: int) -> int:
    """Bytes of ``count`` copies of a tensor to one place: the host, or the next pipeline stage.

    >>> copy_sent(tensor_bytes=1000, count=3)
    3000
    """
    return tensor_bytes * count


@formula(
    "⌈r·(n−1)·T/(n·g)⌉·c",
    "[++] §3, [MiCS] §3: in a node first, then between nodes",
    r="rounds",
    n="nodes",
    g="members",
    T="tensor_bytes",
    c="count",
)
def hierarchical_sent(
    *, rounds: int, nodes: int, members: int, tensor_bytes: int, count: int
) -> int:
    """Bytes that one of the ``members`` in each of ``nodes`` sends to other nodes, each member its
    part of what the node has.

    >>> hierarchical_sent(rounds=2, nodes=8, members=8, tensor_bytes=20_000_000_000, count=1)
    4375000000
    """
    return ceil_div(rounds * (nodes - 1) * tensor_bytes, nodes * members) * count
