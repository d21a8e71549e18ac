"""How a frozen base keeps its quantised weights: bits, scales, zero points, and which modules stay
as they were.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from zerocalc import presets
from zerocalc.spec.base import Spec

Small = Annotated[int, Field(ge=0, le=10**6, strict=True)]
Layers = Annotated[int, Field(ge=0, le=10**6, strict=True)]

WORDS_OF_OLD = frozenset(
    {
        *(
            "bitsandbytes",
            "gptq",
            "awq",
            "aqlm",
            "vptq",
            "quanto",
            "eetq",
            "higgs",
            "hqq",
            "fbgemm_fp8",
            "torchao",
            "gguf",
            "bitnet",
            "spqr",
            "fp8",
        ),
        *(
            "quark",
            "fp_quant",
            "mxfp4",
            "nvfp4",
            "mxfp8",
            "metal",
            "fouroversix",
            "sinq",
            "gemma",
            "modelopt",
            "of an unnamed kind",
        ),
    }
)
"""What earlier versions wrote for a model whose config said that it is quantised: a word, and no
format.
"""


class Quantisation(Spec):
    """A format of weights of (outputs, inputs): ``bits`` each, packed into words of ``word_bytes``,
    and what belongs to them [bytes].

    ``packed``: along each output's ``rows``, along each input's ``columns``, or ``flat``, the
    tensor taken as one row. One scale of ``scale_bytes`` for each block of ``scale_rows`` x
    ``scale_columns`` (0: as many as there are); with ``zero_points``, one of ``bits`` beside each,
    packed over the outputs; with ``nested``, one further scale of ``nested_bytes`` for so many
    scales. ``index_bytes``: for each input. ``tensor_bytes``: for each tensor, such as codebooks.
    ``parts``: whether all linear layers are quantised, a plain decoder's, or routed experts only.
    ``untrained``: why nothing can be trained over a base that is kept so, where that is known.
    ``kept``: what stays as it was, by the names of tensors: everywhere, or in so many layers of
    each group. ``bits`` are ``None`` where only the name is known.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str, Field(max_length=2000)] = ""
    bits: Annotated[int, Field(ge=1, le=8, strict=True)] | None = None
    packed: Literal["rows", "columns", "flat"] = "rows"
    word_bytes: Literal[1, 4] = 1
    scale_rows: Small = 1
    scale_columns: Small = 0
    scale_bytes: Small = 0
    zero_points: StrictBool = False
    nested: Small = 0
    nested_bytes: Small = 0
    index_bytes: Small = 0
    tensor_bytes: Small = 0
    parts: Literal["linear", "decoder", "experts"] = "linear"
    untrained: Annotated[str, Field(max_length=300)] | None = None
    kept: Annotated[dict[str, StrictBool | tuple[Layers, ...]], Field(max_length=100)] = Field(
        default_factory=dict
    )


def read_quantisation(value: Any) -> Any:
    """The format that a preset's name stands for; an earlier version's word stands for a format
    that is not known.
    """
    if not isinstance(value, str):
        return value
    if value in WORDS_OF_OLD and value not in presets.names("quantisations"):
        return {"name": value}
    return presets.load("quantisations", value)
