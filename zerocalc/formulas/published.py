"""Closed forms that [ZeRO], [Inf] and [Meg] print, as they print them; the program's own figures
come tensor by tensor.

[SP]'s are in `published_activations`, those of DeepSpeed's estimators in `estimators`.
"""

from zerocalc.formulas.formula import Formula, ceil_div, formula, ratio

ADAM_BYTES = 12
"""K of mixed-precision Adam: fp32 weights and two moments [bytes per parameter]."""


@formula("12·L·h²", "[ZeRO] Table 4; [Inf] §3", L="layers", h="hidden")
def transformer_parameters(*, layers: int, hidden: int) -> int:
    """Parameters [elements] of a transformer's layers. Not counted: embeddings, norms, biases.

    >>> transformer_parameters(layers=48, hidden=1600)  # [ZeRO] Table 5: 1.47B, called 1.5B
    1474560000
    """
    return 12 * layers * hidden**2


@formula("(4 + K)·Ψ", "[ZeRO] figure 1, baseline", Ψ="parameters", K="optimizer_bytes")
def ddp_states(*, parameters: int, optimizer_bytes: int) -> int:
    """Bytes of model states per GPU, nothing divided.

    >>> ddp_states(parameters=7_500_000_000, optimizer_bytes=12)
    120000000000
    """
    return (4 + optimizer_bytes) * parameters


@formula("⌈4·Ψ + K·Ψ/N_d⌉", "[ZeRO] §5.1 (P_os)", Ψ="parameters", K="optimizer_bytes", N_d="shards")
def optimizer_sharded_states(*, parameters: int, optimizer_bytes: int, shards: int) -> int:
    """Bytes of model states per GPU, optimizer states divided. Not counted: padding of shards.

    >>> optimizer_sharded_states(parameters=7_500_000_000, optimizer_bytes=12, shards=64)
    31406250000
    """
    return 4 * parameters + ceil_div(optimizer_bytes * parameters, shards)


@formula(
    "⌈2·Ψ + (2 + K)·Ψ/N_d⌉",
    "[ZeRO] §5.2 (P_os+g)",
    Ψ="parameters",
    K="optimizer_bytes",
    N_d="shards",
)
def gradient_sharded_states(*, parameters: int, optimizer_bytes: int, shards: int) -> int:
    """Bytes of model states per GPU, optimizer states and gradients divided. Not counted: padding
    of shards.

    >>> gradient_sharded_states(parameters=7_500_000_000, optimizer_bytes=12, shards=64)
    16640625000
    """
    return 2 * parameters + ceil_div((2 + optimizer_bytes) * parameters, shards)


@formula(
    "⌈(4 + K)·Ψ/N_d⌉", "[ZeRO] §5.3 (P_os+g+p)", Ψ="parameters", K="optimizer_bytes", N_d="shards"
)
def parameter_sharded_states(*, parameters: int, optimizer_bytes: int, shards: int) -> int:
    """Bytes of model states per GPU, all of them divided. Not counted: padding of shards.

    >>> parameter_sharded_states(parameters=7_500_000_000, optimizer_bytes=12, shards=64)
    1875000000
    """
    return ceil_div((4 + optimizer_bytes) * parameters, shards)


@formula("⌊M/(4 + K)⌋", "[ZeRO] Table 2, baseline", M="memory_bytes", K="optimizer_bytes")
def largest_ddp(*, memory_bytes: int, optimizer_bytes: int) -> int:
    """Parameters [elements] of the largest model whose states fit. Not counted: anything but model
    states.

    >>> largest_ddp(memory_bytes=32_000_000_000, optimizer_bytes=12)
    2000000000
    """
    return memory_bytes // (4 + optimizer_bytes)


@formula(
    "⌊M/(4 + K/N_d)⌋", "[ZeRO] Table 2, P_os", M="memory_bytes", K="optimizer_bytes", N_d="shards"
)
def largest_optimizer_sharded(*, memory_bytes: int, optimizer_bytes: int, shards: int) -> int:
    """Parameters [elements] of the largest model whose states fit, optimizer states divided. Not
    counted: anything but model states.

    >>> largest_optimizer_sharded(memory_bytes=32_000_000_000, optimizer_bytes=12, shards=64)
    7641791044
    """
    return memory_bytes * shards // (4 * shards + optimizer_bytes)


@formula(
    "⌊M/(2 + (2 + K)/N_d)⌋",
    "[ZeRO] Table 2, P_os+g",
    M="memory_bytes",
    K="optimizer_bytes",
    N_d="shards",
)
def largest_gradient_sharded(*, memory_bytes: int, optimizer_bytes: int, shards: int) -> int:
    """Parameters [elements] of the largest model whose states fit, gradients divided too. Not
    counted: anything but model states.

    >>> largest_gradient_sharded(memory_bytes=32_000_000_000, optimizer_bytes=12, shards=64)
    14422535211
    """
    return memory_bytes * shards // (2 * shards + 2 + optimizer_bytes)


@formula(
    "⌊M·N_d/(4 + K)⌋",
    "[ZeRO] Table 2, P_os+g+p",
    M="memory_bytes",
    K="optimizer_bytes",
    N_d="shards",
)
def largest_parameter_sharded(*, memory_bytes: int, optimizer_bytes: int, shards: int) -> int:
    """Parameters [elements] of the largest model whose states fit, all of them divided. Not
    counted: anything but model states.

    >>> largest_parameter_sharded(memory_bytes=32_000_000_000, optimizer_bytes=12, shards=64)
    128000000000
    """
    return memory_bytes * shards // (4 + optimizer_bytes)


STATES: tuple[Formula[...], ...] = (
    ddp_states,
    optimizer_sharded_states,
    gradient_sharded_states,
    parameter_sharded_states,
)
"""Model states by stage; `ddp_states` alone takes no ``shards``."""
LARGEST: tuple[Formula[...], ...] = (
    largest_ddp,
    largest_optimizer_sharded,
    largest_gradient_sharded,
    largest_parameter_sharded,
)
"""The largest model by stage; `largest_ddp` alone takes no ``shards``."""


def max_model(
    *, memory_bytes: int, shards: int, stage: int, optimizer_bytes: int = ADAM_BYTES
) -> int:
    """Parameters of the largest model whose states fit in ``memory_bytes`` per GPU at a ZeRO stage
    ([ZeRO] Table 2).

    >>> [round(max_model(memory_bytes=32_000_000_000, shards=64, stage=stage) / 1e9,
    ...     2) for stage in range(4)]
    [2.0, 7.64, 14.42, 128.0]
    """
    if stage == 0:
        return largest_ddp(memory_bytes=memory_bytes, optimizer_bytes=optimizer_bytes)
    return LARGEST[stage](memory_bytes=memory_bytes, optimizer_bytes=optimizer_bytes, shards=shards)


@formula("12·b·s·h", "[ZeRO] §8", b="micro_batch", s="seq", h="hidden")
def tensor_parallel_volume(*, micro_batch: int, seq: int, hidden: int) -> int:
    """Elements a layer's six all-reduces move per micro-batch with checkpointing, ranks without
    bound. The paper's print leaves out the batch.

    >>> tensor_parallel_volume(micro_batch=1, seq=1024, hidden=8192)
    100663296
    """
    return 12 * micro_batch * seq * hidden


@formula("b·s·h", "[ZeRO] §8 (P_a)", b="micro_batch", s="seq", h="hidden")
def partitioned_activations_volume(*, micro_batch: int, seq: int, hidden: int) -> int:
    """Elements that P_a's all-gather of a layer's checkpoint moves per micro-batch: a twelfth of
    tensor parallelism's.

    >>> partitioned_activations_volume(micro_batch=1, seq=1024, hidden=8192)
    8388608
    """
    return micro_batch * seq * hidden


@formula("2·12·b·s·h·L", "[ZeRO] §3.2, footnote", b="micro_batch", s="seq", h="hidden", L="layers")
def transformer_activations(*, micro_batch: int, seq: int, hidden: int, layers: int) -> int:
    """Bytes of 16-bit activations by [ZeRO]'s estimate of 12 per hidden unit. Not counted:
    attention scores and masks, as [SP] counts them.

    Printed as about 60 GB:

    >>> transformer_activations(micro_batch=32, seq=1024, hidden=1600, layers=48)
    60397977600
    """
    return 2 * 12 * micro_batch * seq * hidden * layers


@formula("240·L·h²", "[Inf] §3", L="layers", h="hidden")
def model_state_bytes(*, layers: int, hidden: int) -> int:
    """Bytes of all model states at 20 per parameter (16-bit and fp32 gradients). Not counted:
    embeddings, norms, biases.

    >>> model_state_bytes(layers=80, hidden=10240) / 2**40  # [Inf] figure 2a: 1.83
    1.8310546875
    """
    return 240 * layers * hidden**2


@formula(
    "⌈2·b·s·h·L/c⌉",
    "[Inf] §3",
    b="micro_batch",
    s="seq",
    h="hidden",
    L="layers",
    c="checkpoint_interval",
)
def activation_checkpoint_bytes(
    *, micro_batch: int, seq: int, hidden: int, layers: int, checkpoint_interval: int
) -> int:
    """Bytes of 16-bit activation checkpoints, one for every ``checkpoint_interval`` layers.

    Figure 2a: 0.05:

    >>> activation_checkpoint_bytes(micro_batch=32, seq=1024, hidden=10240, layers=80,
    ...     checkpoint_interval=1) / 2**40
    0.048828125
    """
    return ceil_div(2 * micro_batch * seq * hidden * layers, checkpoint_interval)


@formula("4·h·4·h", "[Inf] §3 (MSWM)", h="hidden")
def model_state_working_memory(*, hidden: int) -> int:
    """Bytes of the largest linear's 16-bit weights and gradients, whole on one GPU (MSWM).

    >>> model_state_working_memory(hidden=20480) / 2**30  # figure 2a: 6.25
    6.25
    """
    return 4 * hidden * 4 * hidden


@formula(
    "b·s·c·(16·h + 2·a·s)",
    "[Inf] §3 (AWM)",
    b="micro_batch",
    s="seq",
    c="checkpoint_interval",
    h="hidden",
    a="heads",
)
def activation_working_memory(
    *, micro_batch: int, seq: int, checkpoint_interval: int, hidden: int, heads: int
) -> int:
    """Bytes of the activations between two checkpoints (AWM).

    Figure 2a: 2.5:

    >>> activation_working_memory(micro_batch=4, seq=1024, checkpoint_interval=1, hidden=20480,
    ...     heads=160) / 2**30
    2.5
    """
    return micro_batch * seq * checkpoint_interval * (16 * hidden + 2 * heads * seq)


@formula("s·b", "[Inf] §4.1", s="seq", b="micro_batch")
def parameter_intensity(*, seq: int, micro_batch: int) -> int:
    """Arithmetic intensity [FLOP per byte] with respect to parameters and gradients.

    >>> parameter_intensity(seq=1024, micro_batch=2)
    2048
    """
    return seq * micro_batch


@ratio("s·b/4", "[Inf] §4.1", s="seq", b="micro_batch")
def optimizer_intensity(*, seq: int, micro_batch: int) -> float:
    """Arithmetic intensity [FLOP per byte] with respect to optimizer states.

    >>> optimizer_intensity(seq=1024, micro_batch=2)
    512.0
    """
    return seq * micro_batch / 4


@formula("24·h·c", "[Inf] §4.1", h="hidden", c="checkpoint_interval")
def checkpoint_intensity(*, hidden: int, checkpoint_interval: int) -> int:
    """Arithmetic intensity [FLOP per byte] with respect to activation checkpoints.

    >>> checkpoint_intensity(hidden=2048, checkpoint_interval=1)
    49152
    """
    return 24 * hidden * checkpoint_interval


@ratio("A·B/(A·B + F)", "[Inf] §4", A="intensity", B="bytes_per_second", F="peak_flops_per_second")
def efficiency(*, intensity: float, bytes_per_second: float, peak_flops_per_second: float) -> float:
    """Share of the peak that compute reaches when no transfer is hidden behind it.

    Just over 50 %:

    >>> round(efficiency(intensity=1024, bytes_per_second=70e9, peak_flops_per_second=70e12), 3)
    0.506
    """
    return intensity * bytes_per_second / (intensity * bytes_per_second + peak_flops_per_second)


@formula("12·L·h² + 13·L·h + (V + s)·h", "[Meg] §5.1", L="layers", h="hidden", V="vocab", s="seq")
def gpt_parameters(*, layers: int, hidden: int, vocab: int, seq: int) -> int:
    """Parameters [elements] of a GPT model, the paper's 12Lh²(1 + 13/(12h) + (V+s)/(12Lh)). Not
    counted: the final norm (2·h).

    >>> gpt_parameters(layers=105, hidden=20480, vocab=51200, seq=2048)  # [Meg] Table 1: 529.6B
    529600778240
    """
    return 12 * layers * hidden**2 + 13 * layers * hidden + (vocab + seq) * hidden


@formula(
    "96·B·s·L·h² + 16·B·s²·L·h + 6·B·s·h·V",
    "[Meg] §5.1",
    B="batch",
    s="seq",
    L="layers",
    h="hidden",
    V="vocab",
)
def flops_with_recomputation(*, batch: int, seq: int, layers: int, hidden: int, vocab: int) -> int:
    """FLOPs of one iteration with every layer's forward run again, 96BsLh²(1 + s/(6h) + V/(16Lh)).
    Not counted: all but matrix products.

    [Meg] Table 1's last model:

    >>> round(flops_with_recomputation(batch=3072, seq=2048, layers=128, hidden=25600,
    ...     vocab=51200) / 1e18, 2)
    51.39
    """
    return (
        96 * batch * seq * layers * hidden**2
        + 16 * batch * seq**2 * layers * hidden
        + 6 * batch * seq * hidden * vocab
    )


@formula(
    "72·B·s·L·h² + 12·B·s²·L·h + 6·B·s·h·V",
    "[SP] appendix A",
    B="batch",
    s="seq",
    L="layers",
    h="hidden",
    V="vocab",
)
def flops_without_recomputation(
    *, batch: int, seq: int, layers: int, hidden: int, vocab: int
) -> int:
    """FLOPs of one iteration, nothing recomputed: 72BsLh²(1 + s/(6h) + V/(12Lh)). Not counted: all
    but matrix products.

    >>> round(flops_without_recomputation(batch=3072, seq=2048, layers=128, hidden=25600,
    ...     vocab=51200) / 1e18, 2)
    38.56
    """
    return (
        72 * batch * seq * layers * hidden**2
        + 12 * batch * seq**2 * layers * hidden
        + 6 * batch * seq * hidden * vocab
    )


@ratio("(p − 1)/m", "[Meg] §2.2.1", p="pipeline_parallel", m="micro_batches")
def bubble(*, pipeline_parallel: int, micro_batches: int) -> float:
    """Time that pipeline stages idle, as a share of the time they compute.

    >>> bubble(pipeline_parallel=8, micro_batches=64)
    0.109375
    """
    return (pipeline_parallel - 1) / micro_batches


@ratio("(p − 1)/(v·m)", "[Meg] §2.2.2", p="pipeline_parallel", v="interleave", m="micro_batches")
def interleaved_bubble(*, pipeline_parallel: int, interleave: int, micro_batches: int) -> float:
    """As `bubble`, each rank holding ``interleave`` chunks of layers.

    >>> interleaved_bubble(pipeline_parallel=8, interleave=2, micro_batches=64)
    0.0546875
    """
    return (pipeline_parallel - 1) / (interleave * micro_batches)
