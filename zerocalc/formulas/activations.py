"""Activation memory from the bytes that one layer saves for one micro-batch (the modules' list of tensors gives those)."""

from zerocalc.formulas.formula import ceil_div, formula


@formula("min(p, M)", "[SP] §4.2.3 (1F1B)", p="pipeline_parallel", M="micro_batches")
def micro_batches_in_flight(*, pipeline_parallel: int, micro_batches: int) -> int:
    """Micro-batches whose activations the first pipeline stage holds at once under 1F1B.

    >>> micro_batches_in_flight(pipeline_parallel=8, micro_batches=64)
    8
    """
    return min(pipeline_parallel, micro_batches)


@formula("⌈A·L/p⌉·m", "[SP] §4", A="bytes_per_layer", L="layers", p="pipeline_parallel", m="micro_batches_in_flight")
def saved_bytes(*, bytes_per_layer: int, layers: int, pipeline_parallel: int, micro_batches_in_flight: int) -> int:
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


@formula("⌈C/t⌉·⌈L/p⌉·m", "[ZeRO] §6.1 (P_a)", C="checkpoint_bytes", t="partitions", L="layers", p="pipeline_parallel", m="micro_batches_in_flight")
def checkpoint_bytes(*, checkpoint_bytes: int, partitions: int, layers: int, pipeline_parallel: int, micro_batches_in_flight: int) -> int:
    """Bytes of stored activation checkpoints, one per layer, cut into ``partitions``.

    >>> b, s, h = 1, 2048, 4096
    >>> checkpoint_bytes(checkpoint_bytes=2 * b * s * h, partitions=8, layers=1, pipeline_parallel=1, micro_batches_in_flight=1)  # 2 MiB
    2097152
    """
    return ceil_div(checkpoint_bytes, partitions) * ceil_div(layers, pipeline_parallel) * micro_batches_in_flight


@formula("n·⌈V/t⌉·B", "[SP] §4.3", n="tokens", V="vocab", t="tensor_parallel", B="bytes_per_element")
def logits_bytes(*, tokens: int, vocab: int, tensor_parallel: int, bytes_per_element: int) -> int:
    """Bytes of one copy of the logits.

    >>> logits_bytes(tokens=8192, vocab=128256, tensor_parallel=1, bytes_per_element=4)
    4202692608
    """
    return tokens * ceil_div(vocab, tensor_parallel) * bytes_per_element


@formula("c·G", "[ZeRO] §6.1 (P_a+cpu): host memory of one node", c="checkpoint_bytes", G="gpus_per_node")
def host_checkpoint_bytes(*, checkpoint_bytes: int, gpus_per_node: int) -> int:
    """Host bytes per node of checkpoints that every GPU of the node moved out.

    >>> host_checkpoint_bytes(checkpoint_bytes=1_000_000, gpus_per_node=8)
    8000000
    """
    return checkpoint_bytes * gpus_per_node
