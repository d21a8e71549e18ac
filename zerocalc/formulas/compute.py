"""FLOPs of a step and the time that computing and communication take."""

from zerocalc.formulas.formula import formula, ratio


@formula("2·n·E", "[Meg] appendix: a product of n×k and k×m takes 2·n·k·m", n="tokens", E="elements")
def product_flops(*, tokens: int, elements: int) -> int:
    """FLOPs of the forward products of ``tokens`` tokens with weights of ``elements`` elements that each of them passes through.

    >>> product_flops(tokens=2048, elements=1_000_000)
    4096000000
    """
    return 2 * tokens * elements


@formula("2·n·s·w", "[Meg] appendix; causal masks not made use of", n="tokens", s="seq", w="width")
def scores_flops(*, tokens: int, seq: int, width: int) -> int:
    """FLOPs of q·k and of the product with the values in forward; ``width``: heads times the sizes of a key and of a value, both together.

    >>> scores_flops(tokens=2048, seq=2048, width=32 * (128 + 128))
    68719476736
    """
    return 2 * tokens * seq * width


@formula("M·(3·F + R)", "[Meg] appendix: backward takes twice forward", M="micro_batches", F="forward_flops", R="recomputed_flops")
def step_flops(*, micro_batches: int, forward_flops: int, recomputed_flops: int) -> int:
    """FLOPs of all micro-batches: forward, backward, and what backward computes again.

    >>> step_flops(micro_batches=2, forward_flops=10, recomputed_flops=10)
    80
    """
    return micro_batches * (3 * forward_flops + recomputed_flops)


@ratio("F/(P·e)", "dense peak and the share of it that kernels reach", F="flops", P="peak_flops_per_second", e="efficiency")
def compute_seconds(*, flops: float, peak_flops_per_second: int, efficiency: float) -> float:
    """Seconds of computing on one GPU.

    >>> compute_seconds(flops=989e12, peak_flops_per_second=989 * 10**12, efficiency=0.5)
    2.0
    """
    return flops / (peak_flops_per_second * efficiency)


@ratio("T·(p − 1)/(M·v)", "[Meg] §2.2", T="compute_seconds", p="pipeline_parallel", M="micro_batches", v="interleave")
def bubble_seconds(*, compute_seconds: float, pipeline_parallel: int, micro_batches: int, interleave: int) -> float:
    """Seconds in which a stage waits while the pipeline fills and drains.

    >>> bubble_seconds(compute_seconds=8.0, pipeline_parallel=8, micro_batches=56, interleave=1)
    1.0
    """
    return compute_seconds * (pipeline_parallel - 1) / (micro_batches * interleave)


@ratio("S/B + c·(r − 1)·α", "α–β model of ring collectives", S="sent_bytes", B="bytes_per_second", c="count", r="ranks", α="latency_seconds")
def transfer_seconds(*, sent_bytes: float, bytes_per_second: int, count: int, ranks: int, latency_seconds: float) -> float:
    """Seconds of ``count`` collectives in which a rank sends ``sent_bytes`` in all.

    >>> transfer_seconds(sent_bytes=1e9, bytes_per_second=10**9, count=0, ranks=8, latency_seconds=0.0)
    1.0
    """
    return sent_bytes / bytes_per_second + count * (ranks - 1) * latency_seconds


@ratio("k·S/B", "memory-bound: every state is read and written once", k="passes", S="state_bytes", B="bytes_per_second")
def update_seconds(*, passes: int, state_bytes: int, bytes_per_second: int) -> float:
    """Seconds of the optimizer's step, which is bound by memory.

    >>> update_seconds(passes=2, state_bytes=10**9, bytes_per_second=2 * 10**9)
    1.0
    """
    return passes * state_bytes / bytes_per_second
