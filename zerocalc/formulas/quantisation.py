"""Quantised weights: packed bits, scales, zero points, and what a frozen base takes of them on one
rank.
"""

from zerocalc.formulas.formula import ceil_div, formula


@formula(
    "⌈k·b/(8·w)⌉·n·w",
    "GPTQ, arXiv 2210.17323; AutoGPTQ's QuantLinear",
    k="length",
    b="bits",
    w="word_bytes",
    n="lines",
)
def packed_bytes(*, length: int, bits: int, word_bytes: int, lines: int) -> int:
    """Bytes of ``lines`` of ``length`` values of ``bits`` each, every line packed into whole words.

    >>> packed_bytes(length=4096, bits=4, word_bytes=4, lines=1024)
    2097152
    """
    return ceil_div(length * bits, 8 * word_bytes) * lines * word_bytes


@formula(
    "⌈n/r⌉·⌈k/g⌉·B",
    "DeepSeek-V3, arXiv 2412.19437 §3.3.2",
    n="rows",
    r="block_rows",
    k="columns",
    g="block_columns",
    B="bytes_per_block",
)
def block_bytes(
    *, rows: int, block_rows: int, columns: int, block_columns: int, bytes_per_block: int
) -> int:
    """Bytes of one value for each block of ``block_rows`` x ``block_columns``, those at the edges
    smaller.

    >>> block_bytes(rows=7168, block_rows=128, columns=576, block_columns=128, bytes_per_block=4)
    1120
    """
    return ceil_div(rows, block_rows) * ceil_div(columns, block_columns) * bytes_per_block


@formula(
    "⌈⌈(Q+R·B)/m⌉/N_d⌉",
    "QLoRA, arXiv 2305.14314 §3",
    Q="quantised_bytes",
    R="kept_parameters",
    B="bytes_per_parameter",
    m="model_parallel",
    N_d="shards",
)
def base_bytes(
    *,
    quantised_bytes: int,
    kept_parameters: int,
    bytes_per_parameter: int,
    model_parallel: int,
    shards: int,
) -> int:
    """Bytes per rank of a frozen base: quantised tensors as they are stored, the others at
    ``bytes_per_parameter``.

    >>> base_bytes(quantised_bytes=562_500, kept_parameters=1000, bytes_per_parameter=2,
    ...     model_parallel=1, shards=1)
    564500
    """
    return ceil_div(
        ceil_div(quantised_bytes + kept_parameters * bytes_per_parameter, model_parallel), shards
    )


def scales(*, elements: int, scale_per: int) -> int:
    """Scales of a tensor quantised in equal groups of about ``scale_per`` elements, whole eights of
    them (DeepSpeed, CUDAQuantizer).

    >>> (scales(elements=32_000, scale_per=8000), scales(elements=16_000, scale_per=8000),
    ...     scales(elements=128, scale_per=8000))
    (4, 2, 1)
    """
    least = -(-elements // scale_per)
    groups = next(
        (count for count in range(least, 2 * least + 1) if elements % (8 * count) == 0), least
    )
    while elements % (16 * groups) == 0 and elements / groups > scale_per:
        groups *= 2
    return groups
