"""FLOPs of a step and the time that computing and communication take."""

from zerocalc.formulas.formula import formula, ratio


@formula(
    "2·n·E", "[Meg] appendix: a product of n×k and k×m takes 2·n·k·m", n="tokens", E="elements"
)
def product_flops(*, tokens: int, elements: int) -> int:
    """FLOPs of the forward products of ``tokens`` tokens with weights of ``elements`` elements that
    each of them passes through.

    >>> product_flops(tokens=2048, elements=1_000_000)
    4096000000
    """
    return 2 * tokens * elements


@formula("2·n·s·w", "[Meg] appendix; causal masks not made use of", n="tokens", s="seq", w="width")
def scores_flops(*, tokens: int, seq: int, width: int) -> int:
    """FLOPs of q·k and of the product with the values in forward; ``width``: heads times the sizes
    of a key and of a value, both together.

    >>> scores_flops(tokens=2048, seq=2048, width=32 * (128 + 128))
    68719476736
    """
    return 2 * tokens * seq * width


@formula(
    "W + T + 2·S",
    "[Meg] appendix: backward takes twice forward, less the gradients of weights that are frozen",
    W="products_flops",
    T="trained_products_flops",
    S="scores_flops",
)
def backward_flops(*, products_flops: int, trained_products_flops: int, scores_flops: int) -> int:
    """FLOPs of backward: the gradients of all products' inputs and of trained weights, and both
    gradients of attention's two products.

    >>> backward_flops(products_flops=10, trained_products_flops=10, scores_flops=1)
    22
    """
    return products_flops + trained_products_flops + 2 * scores_flops


@formula(
    "M·(F + B + R)",
    "[Meg] appendix",
    M="micro_batches",
    F="forward_flops",
    B="backward_flops",
    R="recomputed_flops",
)
def step_flops(
    *, micro_batches: int, forward_flops: int, backward_flops: int, recomputed_flops: int
) -> int:
    """FLOPs of all micro-batches: forward, backward, and what backward computes again.

    >>> step_flops(micro_batches=2, forward_flops=10, backward_flops=20, recomputed_flops=10)
    80
    """
    return micro_batches * (forward_flops + backward_flops + recomputed_flops)


@ratio(
    "F/(P·e)",
    "dense peak and the share of it that kernels reach",
    F="flops",
    P="peak_flops_per_second",
    e="efficiency",
)
def compute_seconds(*, flops: float, peak_flops_per_second: int, efficiency: float) -> float:
    """Seconds of computing on one GPU.

    >>> compute_seconds(flops=989e12, peak_flops_per_second=989 * 10**12, efficiency=0.5)
    2.0
    """
    return flops / (peak_flops_per_second * efficiency)


@ratio(
    "T·(p − 1)/(M·v)",
    "[Meg] §2.2",
    T="busy_seconds",
    p="pipeline_parallel",
    M="micro_batches",
    v="interleave",
)
def bubble_seconds(
    *, busy_seconds: float, pipeline_parallel: int, micro_batches: int, interleave: int
) -> float:
    """Seconds in which a stage waits while the pipeline fills and drains; ``busy_seconds``: of all
    micro-batches, with what nothing hides of the traffic that belongs to them.

    >>> bubble_seconds(busy_seconds=8.0, pipeline_parallel=8, micro_batches=56, interleave=1)
    1.0
    """
    return busy_seconds * (pipeline_parallel - 1) / (micro_batches * interleave)


@ratio(
    "S/B + c·(a·α + b·β)",
    "α–β model of rings; steps and latencies: nccl, src/graph/tuning.cc",
    S="sent_bytes",
    B="bytes_per_second",
    c="count",
    a="node_hops",
    b="network_hops",
    α="node_latency_seconds",
    β="network_latency_seconds",
)
def transfer_seconds(
    *,
    sent_bytes: float,
    bytes_per_second: int,
    count: int,
    node_hops: int,
    network_hops: int,
    node_latency_seconds: float,
    network_latency_seconds: float,
) -> float:
    """Seconds of ``count`` collectives in which a rank sends ``sent_bytes`` in all, over so many
    hops inside nodes and between them.

    >>> transfer_seconds(
    ...     sent_bytes=1e9, bytes_per_second=10**9, count=0, node_hops=7, network_hops=0,
    ...     node_latency_seconds=0.0, network_latency_seconds=0.0)
    1.0
    """
    return sent_bytes / bytes_per_second + count * (
        node_hops * node_latency_seconds + network_hops * network_latency_seconds
    )


@ratio(
    "X + max(0, H − C) + max(0, I − D)",
    "what runs beside computing takes time only beyond it",
    X="alone_seconds",
    H="forward_seconds",
    C="forward_compute_seconds",
    I="backward_seconds",
    D="backward_compute_seconds",
)
def exposed_seconds(
    *,
    alone_seconds: float,
    forward_seconds: float,
    forward_compute_seconds: float,
    backward_seconds: float,
    backward_compute_seconds: float,
) -> float:
    """Seconds of communication that computing does not hide: what runs alone, and what is more than
    there is to compute beside it.

    >>> exposed_seconds(alone_seconds=1.0, forward_seconds=3.0, forward_compute_seconds=2.5,
    ...     backward_seconds=1.0, backward_compute_seconds=5.0)
    1.5
    """
    beyond_forward, beyond_backward = (
        forward_seconds - forward_compute_seconds,
        backward_seconds - backward_compute_seconds,
    )
    return alone_seconds + max(0.0, beyond_forward) + max(0.0, beyond_backward)


@ratio(
    "k·S/B",
    "memory-bound: every state of what is updated is read and written once",
    k="passes",
    S="state_bytes",
    B="bytes_per_second",
)
def update_seconds(*, passes: int, state_bytes: int, bytes_per_second: int) -> float:
    """Seconds of the optimizer's step, which is bound by memory; ``state_bytes``: weights,
    gradients and states of the share that a rank updates.

    >>> update_seconds(passes=2, state_bytes=10**9, bytes_per_second=2 * 10**9)
    1.0
    """
    return passes * state_bytes / bytes_per_second


def hiding_bytes_per_second(
    *, fixed_seconds: list[float], crossing_bytes: list[int], available_seconds: float
) -> float | None:
    """The slowest network over which transfers one after the other are done in
    ``available_seconds``; ``None`` where none is fast enough.

    Each takes its ``fixed_seconds`` (inside nodes, and what hops take) or ``crossing_bytes`` over
    the network, whichever is longer. 0: any will do.

    >>> hiding_bytes_per_second(fixed_seconds=[1.0, 2.0], crossing_bytes=[600, 100],
    ...     available_seconds=8.0)
    100.0
    """
    left, slope, pace = available_seconds - sum(fixed_seconds), 0, 0.0  # pace: seconds a byte
    if left < 0:
        return None
    crossing = [
        (fixed / sent, sent)
        for fixed, sent in zip(fixed_seconds, crossing_bytes, strict=True)
        if sent
    ]
    for longer_from, sent in sorted(crossing):
        if slope * (longer_from - pace) > left:
            break
        left -= slope * (longer_from - pace)
        pace, slope = longer_from, slope + sent
    return slope / (left + slope * pace) if slope and left + slope * pace else 0.0


@ratio(
    "c + x + b + u",
    "one after the other",
    c="compute_seconds",
    x="exposed_seconds",
    b="bubble_seconds",
    u="update_seconds",
)
def step_seconds(
    *, compute_seconds: float, exposed_seconds: float, bubble_seconds: float, update_seconds: float
) -> float:
    """Seconds of one optimizer step.

    >>> step_seconds(compute_seconds=1.0, exposed_seconds=0.25, bubble_seconds=0.5,
    ...     update_seconds=0.25)
    2.0
    """
    return compute_seconds + exposed_seconds + bubble_seconds + update_seconds


@ratio(
    "F/(G·P·S)",
    "[PaLM] appendix B; of the dense peak",
    F="flops",
    G="gpus",
    P="peak_flops_per_second",
    S="step_seconds",
)
def utilisation(*, flops: int, gpus: int, peak_flops_per_second: int, step_seconds: float) -> float:
    """The share of what all GPUs could compute in a step: MFU of the model's FLOPs, HFU of all that
    is computed.

    >>> utilisation(flops=8 * 10**15, gpus=8, peak_flops_per_second=10**15, step_seconds=2.0)
    0.5
    """
    return flops / (gpus * peak_flops_per_second * step_seconds)


@ratio(
    "d·M·m·s/S",
    "tokens of a step",
    d="data_parallel",
    M="micro_batches",
    m="micro_batch",
    s="seq",
    S="step_seconds",
)
def tokens_per_second(
    *, data_parallel: int, micro_batches: int, micro_batch: int, seq: int, step_seconds: float
) -> float:
    """Tokens that all GPUs together train on in a second.

    >>> tokens_per_second(data_parallel=8, micro_batches=4, micro_batch=1, seq=1024,
    ...     step_seconds=2.0)
    16384.0
    """
    return data_parallel * micro_batches * micro_batch * seq / step_seconds


@ratio("T/(R·86400)", "seconds of a day", T="tokens", R="tokens_per_second")
def training_days(*, tokens: int, tokens_per_second: float) -> float:
    """Days that so many tokens take.

    >>> training_days(tokens=86_400_000, tokens_per_second=500.0)
    2.0
    """
    return tokens / (tokens_per_second * 86_400)


@ratio("24·D·G", "hours of a day", D="days", G="gpus")
def gpu_hours(*, days: float, gpus: int) -> float:
    """Hours of GPUs that are paid for.

    >>> gpu_hours(days=2.0, gpus=8)
    384.0
    """
    return 24 * days * gpus
