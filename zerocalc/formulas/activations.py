"""Activation memory from the bytes that one layer saves for one micro-batch (the modules' list of
tensors gives those).
"""

from zerocalc.formulas.formula import ceil_div, formula


@formula("min(p, M)", "[SP] §4.2.3 (1F1B)", p="pipeline_parallel", M="micro_batches")
def micro_batches_in_flight(*, pipeline_parallel: int, micro_batches: int) -> int:
    """Micro-batches whose activations the first pipeline stage holds at once under 1F1B.

    >>> micro_batches_in_flight(pipeline_parallel=8, micro_batches=64)
    8
    """
    return min(pipeline_parallel, micro_batches)


@formula(
    "min(p·v + p − 1 − 2·i, M·v)",
    "[SP] §4.2.3; [Meg] §2.2 (interleaved 1F1B); megatron-core, pipeline_parallel/schedules.py",
    p="pipeline_parallel",
    v="interleave",
    i="earlier_stages",
    M="micro_batches",
)
def chunks_in_flight(
    *, pipeline_parallel: int, interleave: int, earlier_stages: int, micro_batches: int
) -> int:
    """Chunks of layers, each of one micro-batch, whose activations a stage after ``earlier_stages``
    others holds, of ``interleave`` chunks each.

    Of 1/24 of the layers each: 31/24 of them:

    >>> chunks_in_flight(pipeline_parallel=8, interleave=3, earlier_stages=0, micro_batches=64)
    31
    """
    return min(
        pipeline_parallel * interleave + pipeline_parallel - 1 - 2 * earlier_stages,
        micro_batches * interleave,
    )


@formula(
    "⌈A·L/(p·v)⌉·c",
    "[SP] §4.2.3",
    A="bytes_per_layer",
    L="layers",
    p="pipeline_parallel",
    v="interleave",
    c="chunks_in_flight",
)
def interleaved_bytes(
    *,
    bytes_per_layer: int,
    layers: int,
    pipeline_parallel: int,
    interleave: int,
    chunks_in_flight: int,
) -> int:
    """Bytes that the chunks in flight of a stage save, layers spread evenly over chunks.

    >>> interleaved_bytes(bytes_per_layer=1000, layers=96, pipeline_parallel=8, interleave=3,
    ...     chunks_in_flight=31)
    124000
    """
    return ceil_div(bytes_per_layer * layers, pipeline_parallel * interleave) * chunks_in_flight


@formula(
    "⌈A·L/p⌉·m",
    "[SP] §4",
    A="bytes_per_layer",
    L="layers",
    p="pipeline_parallel",
    m="micro_batches_in_flight",
)
def saved_bytes(
    *, bytes_per_layer: int, layers: int, pipeline_parallel: int, micro_batches_in_flight: int
) -> int:
    """Bytes that all layers of a stage save, layers spread evenly over the stages.

    >>> saved_bytes(bytes_per_layer=1000, layers=32, pipeline_parallel=1, micro_batches_in_flight=1)
    32000
    """
    return ceil_div(bytes_per_layer * layers, pipeline_parallel) * micro_batches_in_flight


@formula("A·m", "[SP] §4.3", A="bytes_per_micro_batch", m="micro_batches_in_flight")
def once_bytes(*, bytes_per_micro_batch: int, micro_batches_in_flight: int) -> int:
    """Bytes saved outside the layers (embedding, final norm, head) or by a single layer.

    >>> once_bytes(bytes_per_micro_batch=4096, micro_batches_in_flight=2)
    8192
    """
    return bytes_per_micro_batch * micro_batches_in_flight


@formula(
    "⌈C/t⌉·⌈L/p⌉·m",
    "[ZeRO] §6.1 (P_a)",
    C="checkpoint_bytes",
    t="partitions",
    L="layers",
    p="pipeline_parallel",
    m="micro_batches_in_flight",
)
def checkpoint_bytes(
    *,
    checkpoint_bytes: int,
    partitions: int,
    layers: int,
    pipeline_parallel: int,
    micro_batches_in_flight: int,
) -> int:
    """Bytes of stored activation checkpoints, one per layer, cut into ``partitions``.

    2 MiB:

    >>> b, s, h = 1, 2048, 4096
    >>> checkpoint_bytes(checkpoint_bytes=2 * b * s * h, partitions=8, layers=1,
    ...     pipeline_parallel=1, micro_batches_in_flight=1)
    2097152
    """
    return (
        ceil_div(checkpoint_bytes, partitions)
        * ceil_div(layers, pipeline_parallel)
        * micro_batches_in_flight
    )


@formula(
    "n·⌈V/t⌉·B", "[SP] §4.3", n="tokens", V="vocab", t="tensor_parallel", B="bytes_per_element"
)
def logits_bytes(*, tokens: int, vocab: int, tensor_parallel: int, bytes_per_element: int) -> int:
    """Bytes of one copy of the logits.

    >>> logits_bytes(tokens=8192, vocab=128256, tensor_parallel=1, bytes_per_element=4)
    4202692608
    """
    return tokens * ceil_div(vocab, tensor_parallel) * bytes_per_element


@formula(
    "max(n·h·B, b·⌈a/t⌉·s²·B)",
    "megatron-core 0.16.1, tensor_parallel/layers.py and "
    "transformer/dot_product_attention.py (GlobalMemoryBuffer)",
    n="gathered_tokens",
    h="hidden",
    b="micro_batch",
    a="heads",
    t="tensor_parallel",
    s="scored_tokens",
    B="bytes_per_element",
)
def shared_buffer_bytes(
    *,
    gathered_tokens: int,
    hidden: int,
    micro_batch: int,
    heads: int,
    tensor_parallel: int,
    scored_tokens: int,
    bytes_per_element: int,
) -> int:
    """Bytes of one buffer into which sequences are gathered (0 tokens where none are) and scores
    computed (0 where a kernel does that).

    >>> shared_buffer_bytes(
    ...     gathered_tokens=2048, hidden=4096, micro_batch=1, heads=32, tensor_parallel=4,
    ...     scored_tokens=0, bytes_per_element=2
    ... )
    16777216
    """
    return (
        max(
            gathered_tokens * hidden,
            micro_batch * ceil_div(heads, tensor_parallel) * scored_tokens**2,
        )
        * bytes_per_element
    )


@formula(
    "n·h·B",
    "megatron-core 0.16.1, tensor_parallel/layers.py (GlobalMemoryBuffer)",
    n="gathered_tokens",
    h="hidden",
    B="bytes_per_element",
)
def gathered_buffer_bytes(*, gathered_tokens: int, hidden: int, bytes_per_element: int) -> int:
    """Bytes of one buffer into which sequences are gathered.

    >>> gathered_buffer_bytes(gathered_tokens=2048, hidden=4096, bytes_per_element=2)
    16777216
    """
    return gathered_tokens * hidden * bytes_per_element


@formula("n·h·B", "[SP] §4.3", n="tokens", h="hidden", B="bytes_per_element")
def hidden_bytes(*, tokens: int, hidden: int, bytes_per_element: int) -> int:
    """Bytes of one tensor of the hidden states' size.

    >>> hidden_bytes(tokens=8192, hidden=4096, bytes_per_element=2)
    67108864
    """
    return tokens * hidden * bytes_per_element


@formula(
    "n·(⌈h/σ⌉ + ⌈w/t⌉)·B",
    "reverse-mode differentiation of an MLP: the gradients of the residual stream and of "
    "what its activation reads",
    n="tokens",
    h="hidden",
    σ="sequence_parallel",
    w="width",
    t="tensor_parallel",
    B="bytes_per_element",
)
def gradient_bytes(
    *,
    tokens: int,
    hidden: int,
    sequence_parallel: int,
    width: int,
    tensor_parallel: int,
    bytes_per_element: int,
) -> int:
    """Bytes of the gradients in the layer that is in backward, at its widest: before its MLP's
    activation, ``width`` numbers a token.

    The gradient of the activation's result is then held too, in place of that result itself.

    >>> gradient_bytes(tokens=4096, hidden=8192, sequence_parallel=1, width=57344,
    ...     tensor_parallel=1, bytes_per_element=2)
    536870912
    """
    return (
        tokens
        * (ceil_div(hidden, sequence_parallel) + ceil_div(width, tensor_parallel))
        * bytes_per_element
    )


@formula(
    "⌈V/t⌉·h·B", "[SP] §4.3", V="vocab", h="hidden", t="tensor_parallel", B="bytes_per_element"
)
def head_bytes(*, vocab: int, hidden: int, tensor_parallel: int, bytes_per_element: int) -> int:
    """Bytes of one tensor of the head's size.

    >>> head_bytes(vocab=128256, hidden=4096, tensor_parallel=1, bytes_per_element=2)
    1050673152
    """
    return ceil_div(vocab, tensor_parallel) * hidden * bytes_per_element


def chunks_by_width(*, tokens: int, vocab: int, hidden: int) -> int:
    """Chunks into which a kernel that fuses head and loss cuts the tokens, so that a chunk's logits
    are about as large as the hidden states.

    Source: Liger-Kernel, ops/fused_linear_cross_entropy.py: chunks of ⌈n/⌈V/h⌉⌉ tokens, rounded up
    to a power of two.

    >>> chunks_by_width(tokens=8192, vocab=128256, hidden=4096)
    32
    """
    size = 1 << (ceil_div(tokens, ceil_div(vocab, hidden)) - 1).bit_length()
    return ceil_div(tokens, size)


@formula(
    "c·G", "[ZeRO] §6.1 (P_a+cpu): host memory of one node", c="checkpoint_bytes", G="gpus_per_node"
)
def host_checkpoint_bytes(*, checkpoint_bytes: int, gpus_per_node: int) -> int:
    """Host bytes per node of checkpoints that every GPU of the node moved out.

    >>> host_checkpoint_bytes(checkpoint_bytes=1_000_000, gpus_per_node=8)
    8000000
    """
    return checkpoint_bytes * gpus_per_node


NORM_TEMPORARIES = 5
"""fp32 tensors of the input's size that are alive at once in the backward of an RMSNorm written in
steps (torch 2.13, transformers 5.24: recorded).
"""
FULL_BYTES = 4


@formula(
    "5·4·n·⌈h/σ⌉",
    "recorded: RMSNorm in fp32 steps, torch 2.13, transformers 5.24",
    n="tokens",
    h="hidden",
    σ="sequence_parallel",
)
def norm_backward_bytes(*, tokens: int, hidden: int, sequence_parallel: int) -> int:
    """Bytes of the temporaries in the backward of an RMSNorm that is written in steps.

    >>> norm_backward_bytes(tokens=2048, hidden=8192, sequence_parallel=1)
    335544320
    """
    return NORM_TEMPORARIES * FULL_BYTES * tokens * ceil_div(hidden, sequence_parallel)
