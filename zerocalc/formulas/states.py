"""Model states: weights, gradients and optimizer states, whole or sharded."""

from zerocalc.formulas.formula import ceil_div, formula


@formula("⌈Ψ/(t·p)⌉", "[ZeRO] §1", Ψ="parameters", t="tensor_parallel", p="pipeline_parallel")
def rank_parameters(*, parameters: int, tensor_parallel: int, pipeline_parallel: int) -> int:
    """Parameters [elements] of one model-parallel rank when tensor and pipeline parallelism split
    evenly.

    Not counted: what tensor parallelism replicates (norms, some biases) and stages of uneven size.

    >>> rank_parameters(parameters=100_000_000_000, tensor_parallel=16, pipeline_parallel=1)
    6250000000
    """
    return ceil_div(parameters, tensor_parallel * pipeline_parallel)


@formula("Ψ·B", "[ZeRO] §3.1", Ψ="parameters", B="bytes_per_parameter")
def whole_bytes(*, parameters: int, bytes_per_parameter: int) -> int:
    """Bytes of a state row that every rank holds whole.

    >>> whole_bytes(parameters=7_500_000_000, bytes_per_parameter=16)  # [ZeRO] figure 1: 120 GB
    120000000000
    """
    return parameters * bytes_per_parameter


@formula("⌈Ψ/N_d⌉·B", "[ZeRO] §5.1-5.3", Ψ="parameters", N_d="shards", B="bytes_per_parameter")
def shard_bytes(*, parameters: int, shards: int, bytes_per_parameter: int) -> int:
    """Bytes per rank of a state row cut into ``shards`` equal parts, the last one padded.

    [ZeRO] figure 1: 1.9 GB:

    >>> shard_bytes(parameters=7_500_000_000, shards=64, bytes_per_parameter=16)
    1875000000
    """
    return ceil_div(parameters, shards) * bytes_per_parameter


@formula(
    "max(0, Ψ·B − s)",
    "kept whole until they are reduced",
    Ψ="parameters",
    B="bytes_per_parameter",
    s="share_bytes",
)
def waiting_bytes(*, parameters: int, bytes_per_parameter: int, share_bytes: int) -> int:
    """Bytes of gradients beyond a rank's share of them while they wait, whole and perhaps in
    another dtype, for a deferred reduction.

    >>> waiting_bytes(parameters=1000, bytes_per_parameter=2, share_bytes=500)
    1500
    """
    return max(0, parameters * bytes_per_parameter - share_bytes)


@formula(
    "⌈⌈Ψ/N_d⌉/g⌉·B",
    "blockwise quantisation, arXiv 2110.02861 §2",
    Ψ="parameters",
    N_d="shards",
    g="parameters_per_item",
    B="bytes_per_item",
)
def scale_bytes(
    *, parameters: int, shards: int, parameters_per_item: int, bytes_per_item: int
) -> int:
    """Bytes per rank of one value kept for every ``parameters_per_item`` parameters, such as a
    quantisation scale.

    >>> scale_bytes(parameters=1_000_000, shards=1, parameters_per_item=256, bytes_per_item=4)
    15628
    """
    return ceil_div(ceil_div(parameters, shards), parameters_per_item) * bytes_per_item


@formula(
    "min(⌈U/N_d⌉·⌈Ψ/U⌉, Ψ)·B",
    "[ZeRO] §5.3, each block kept whole by its owner",
    U="blocks",
    N_d="shards",
    Ψ="parameters",
    B="bytes_per_parameter",
)
def owner_bytes(*, parameters: int, blocks: int, shards: int, bytes_per_parameter: int) -> int:
    """Bytes of the rank that owns the most blocks, when blocks are owned whole instead of being
    cut.

    >>> owner_bytes(parameters=1600, blocks=16, shards=4, bytes_per_parameter=2)
    800
    """
    return (
        min(ceil_div(blocks, shards) * ceil_div(parameters, blocks), parameters)
        * bytes_per_parameter
    )


@formula("r·(i + o)", "LoRA, arXiv 2106.09685 §4.1", r="rank", i="inputs", o="outputs")
def adapter_parameters(*, rank: int, inputs: int, outputs: int) -> int:
    """Parameters of the two thin matrices beside one linear layer: (rank, inputs) and (outputs,
    rank).

    >>> adapter_parameters(rank=16, inputs=4096, outputs=1024)
    81920
    """
    return rank * (inputs + outputs)
