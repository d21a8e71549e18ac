"""[SP]'s closed forms: bytes that one transformer layer keeps for backward at 16 bits, by
technique, and what a pipeline's ends add.

h hidden, a heads, s sequence, b micro-batch, t tensor-parallel degree. For an MLP of four hidden
sizes, as many key/value heads as heads, dropout, and attention that keeps its scores; statistics of
norms are not counted.
"""

from zerocalc.formulas.formula import Formula, ceil_div, formula, ratio


@formula(
    "11·s·b·h + 5·a·s²·b", "[SP] §4.1, attention", s="seq", b="micro_batch", h="hidden", a="heads"
)
def attention_bytes(*, seq: int, micro_batch: int, hidden: int, heads: int) -> int:
    """Bytes kept by one layer's attention on one device. Not counted: the norm before it.

    >>> attention_bytes(seq=2048, micro_batch=1, hidden=12288, heads=96) / 2**20
    2184.0
    """
    return 11 * seq * micro_batch * hidden + 5 * heads * seq**2 * micro_batch


@formula("19·s·b·h", "[SP] §4.1, MLP", s="seq", b="micro_batch", h="hidden")
def mlp_bytes(*, seq: int, micro_batch: int, hidden: int) -> int:
    """Bytes kept by one layer's MLP on one device. Not counted: the norm before it.

    >>> mlp_bytes(seq=2048, micro_batch=1, hidden=12288) / 2**20
    456.0
    """
    return 19 * seq * micro_batch * hidden


@formula("4·s·b·h", "[SP] §4.1, layer norms", s="seq", b="micro_batch", h="hidden")
def layer_norm_bytes(*, seq: int, micro_batch: int, hidden: int) -> int:
    """Bytes kept by one layer's two norms on one device. Not counted: their mean and variance.

    >>> layer_norm_bytes(seq=2048, micro_batch=1, hidden=12288) / 2**20
    96.0
    """
    return 4 * seq * micro_batch * hidden


@formula("34·s·b·h + 5·a·s²·b", "[SP] §4.1", s="seq", b="micro_batch", h="hidden", a="heads")
def layer_bytes(*, seq: int, micro_batch: int, hidden: int, heads: int) -> int:
    """Bytes kept by one layer on one device: the paper's sbh(34 + 5as/h).

    >>> layer_bytes(seq=2048, micro_batch=1, hidden=12288, heads=96) / 2**20
    2736.0
    """
    return 34 * seq * micro_batch * hidden + 5 * heads * seq**2 * micro_batch


@formula(
    "⌈s·b·(10·h + (24·h + 5·a·s)/t)⌉",
    "[SP] §4.2.1",
    s="seq",
    b="micro_batch",
    h="hidden",
    a="heads",
    t="tensor_parallel",
)
def tensor_parallel_layer_bytes(
    *, seq: int, micro_batch: int, hidden: int, heads: int, tensor_parallel: int
) -> int:
    """Bytes kept by one layer per rank under tensor parallelism: sbh(10 + 24/t + 5as/(ht)).

    >>> tensor_parallel_layer_bytes(seq=2048, micro_batch=1, hidden=12288, heads=96,
    ...     tensor_parallel=8) / 2**20
    552.0
    """
    n = seq * micro_batch
    return 10 * n * hidden + ceil_div(n * (24 * hidden + 5 * heads * seq), tensor_parallel)


@formula(
    "⌈s·b·(34·h + 5·a·s)/t⌉",
    "[SP] §4.2.2",
    s="seq",
    b="micro_batch",
    h="hidden",
    a="heads",
    t="tensor_parallel",
)
def sequence_parallel_layer_bytes(
    *, seq: int, micro_batch: int, hidden: int, heads: int, tensor_parallel: int
) -> int:
    """Bytes kept by one layer per rank under tensor and sequence parallelism: sbh/t·(34 + 5as/h).

    >>> sequence_parallel_layer_bytes(seq=2048, micro_batch=1, hidden=12288, heads=96,
    ...     tensor_parallel=8) / 2**20
    342.0
    """
    return ceil_div(seq * micro_batch * (34 * hidden + 5 * heads * seq), tensor_parallel)


@formula(
    "⌈s·b·h·(10 + 24/t)⌉", "[SP] Table 2", s="seq", b="micro_batch", h="hidden", t="tensor_parallel"
)
def selective_layer_bytes(*, seq: int, micro_batch: int, hidden: int, tensor_parallel: int) -> int:
    """Bytes kept by one layer per rank under tensor parallelism, attention's scores rebuilt in
    backward.

    >>> selective_layer_bytes(seq=2048, micro_batch=1, hidden=12288, tensor_parallel=8) / 2**20
    312.0
    """
    n = seq * micro_batch * hidden
    return 10 * n + ceil_div(24 * n, tensor_parallel)


@formula("⌈34·s·b·h/t⌉", "[SP] §5", s="seq", b="micro_batch", h="hidden", t="tensor_parallel")
def selective_sequence_parallel_layer_bytes(
    *, seq: int, micro_batch: int, hidden: int, tensor_parallel: int
) -> int:
    """Bytes kept by one layer per rank under tensor and sequence parallelism, attention's scores
    rebuilt in backward.

    >>> selective_sequence_parallel_layer_bytes(seq=2048, micro_batch=1, hidden=12288,
    ...     tensor_parallel=8) / 2**20
    102.0
    """
    return ceil_div(34 * seq * micro_batch * hidden, tensor_parallel)


@formula("2·s·b·h", "[SP] Table 2", s="seq", b="micro_batch", h="hidden")
def full_recomputation_layer_bytes(*, seq: int, micro_batch: int, hidden: int) -> int:
    """Bytes of one layer's input, all that is kept when the layer is recomputed. Not counted: the
    layer being rebuilt.

    >>> full_recomputation_layer_bytes(seq=2048, micro_batch=1, hidden=12288) / 2**20
    48.0
    """
    return 2 * seq * micro_batch * hidden


LAYER: dict[str, tuple[Formula[...], tuple[str, ...]]] = {
    "none": (layer_bytes, ("heads",)),
    "tp": (tensor_parallel_layer_bytes, ("heads", "tensor_parallel")),
    "tp+sp": (sequence_parallel_layer_bytes, ("heads", "tensor_parallel")),
    "tp+selective": (selective_layer_bytes, ("tensor_parallel",)),
    "tp+sp+selective": (selective_sequence_parallel_layer_bytes, ("tensor_parallel",)),
    "full": (full_recomputation_layer_bytes, ()),
}
"""[SP] Table 2: the formula of each technique, and what it takes beside ``seq``, ``micro_batch``
and ``hidden``.
"""


@ratio("L·(1 + (p − 1)/(p·v))", "[SP] §4.2.3", L="layers", p="pipeline_parallel", v="interleave")
def first_stage_layers(*, layers: int, pipeline_parallel: int, interleave: int) -> float:
    """Layers whose activations the first pipeline stage holds at once under interleaved 1F1B; for
    one chunk a rank it holds ``layers``.

    >>> first_stage_layers(layers=96, pipeline_parallel=8, interleave=3)
    124.0
    """
    return (
        layers
        * (pipeline_parallel * interleave + pipeline_parallel - 1)
        / (pipeline_parallel * interleave)
    )


@formula(
    "⌈s·b·h·p/t⌉",
    "[SP] §4.3, embedding",
    s="seq",
    b="micro_batch",
    h="hidden",
    p="pipeline_parallel",
    t="tensor_parallel",
)
def first_stage_extra_bytes(
    *, seq: int, micro_batch: int, hidden: int, pipeline_parallel: int, tensor_parallel: int
) -> int:
    """Bytes of the embedding's dropout masks in the first stage, p micro-batches in flight, under
    sequence parallelism.

    >>> first_stage_extra_bytes(seq=2048, micro_batch=1, hidden=12288, pipeline_parallel=8,
    ...     tensor_parallel=8) / 2**20
    24.0
    """
    return ceil_div(seq * micro_batch * hidden * pipeline_parallel, tensor_parallel)


@formula(
    "⌈4·s·b·(h + V)/t⌉",
    "[SP] §4.3, output",
    s="seq",
    b="micro_batch",
    h="hidden",
    V="vocab",
    t="tensor_parallel",
)
def single_stage_extra_bytes(
    *, seq: int, micro_batch: int, hidden: int, vocab: int, tensor_parallel: int
) -> int:
    """Bytes of the final norm's and the head's inputs and of the fp32 logits, where one stage holds
    the whole model (p = 1).

    >>> single_stage_extra_bytes(seq=2048, micro_batch=4, hidden=6144, vocab=51200,
    ...     tensor_parallel=8) / 2**20
    224.0
    """
    return ceil_div(4 * seq * micro_batch * (hidden + vocab), tensor_parallel)


@ratio("5·a·s/(34·h + 5·a·s)", "[SP] §5", a="heads", s="seq", h="hidden")
def selective_saving(*, heads: int, seq: int, hidden: int) -> float:
    """Share of a layer's activations that selective recomputation no longer keeps.

    >>> round(selective_saving(heads=96, seq=2048, hidden=12288), 2)  # GPT-3: 70 %
    0.7
    """
    return 5 * heads * seq / (34 * hidden + 5 * heads * seq)


@ratio(
    "(s/(6·h))/(1 + s/(6·h) + V/(12·L·h))",
    "[SP] appendix A",
    s="seq",
    h="hidden",
    V="vocab",
    L="layers",
)
def selective_overhead(*, seq: int, hidden: int, vocab: int, layers: int) -> float:
    """FLOPs that selective recomputation adds, as a share of the model's.

    >>> round(selective_overhead(seq=2048, hidden=12288, vocab=51200, layers=96), 3)  # GPT-3: 2.7 %
    0.027
    """
    again = seq / (6 * hidden)
    return again / (1 + again + vocab / (12 * layers * hidden))
