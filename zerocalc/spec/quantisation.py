"""How a frozen base is quantised: bits, scales, zero points, and which modules are not."""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from zerocalc import presets
from zerocalc.spec.base import Spec

Small = Annotated[int, Field(ge=0, le=10**6, strict=True)]
Layers = Annotated[int, Field(ge=0, le=10**6, strict=True)]

WORDS_OF_OLD = frozenset(
    {
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
    }
)
"""What earlier versions saved for a quantised model: the method's name, without a format."""


class Quantisation(Spec):
    """The format of a quantised weight of (outputs, inputs): packed values, scales, zero points,
    and what else is stored with them.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Name of the format."""
    title: Annotated[str, Field(max_length=200)] = ""
    """Description in words, for tables. Default: none."""
    source: Annotated[str, Field(max_length=2000)] = ""
    """Where the format was read or measured. Default: none."""
    bits: Annotated[int, Field(ge=1, le=8, strict=True)] | None = None
    """Bits per value. Default: unknown, for a format of which only the name is known."""
    packed: Literal["rows", "columns", "flat"] = "rows"
    """What is packed into whole words: the inputs of each output (``rows``), the outputs of each
    input (``columns``), or the tensor as one row (``flat``). Default: rows.
    """
    word_bytes: Literal[1, 4] = 1
    """Size of a word into which values are packed [bytes]. Default: 1."""
    scale_rows: Small = 1
    """Outputs per block that shares a scale; 0 for all outputs. Default: 1."""
    scale_columns: Small = 0
    """Inputs per block that shares a scale. Default: 0, all inputs."""
    scale_bytes: Small = 0
    """Size of a scale [bytes]. Default: 0, no scales."""
    zero_points: StrictBool = False
    """Whether each scale has a zero point of ``bits``, packed along the outputs. Default: no."""
    nested: Small = 0
    """Scales that share one scale of their own (double quantisation). Default: 0, not nested."""
    nested_bytes: Small = 0
    """Size of such a second-level scale [bytes]. Default: 0."""
    index_bytes: Small = 0
    """Size of what is stored per input, such as its group [bytes]. Default: 0."""
    tensor_bytes: Small = 0
    """Size of what is stored per tensor, such as codebooks [bytes]. Default: 0."""
    parts: Literal["linear", "decoder", "experts"] = "linear"
    """What is quantised: every linear layer, only those of a plain decoder, or only routed experts.
    Default: linear.
    """
    untrained: Annotated[str, Field(max_length=300)] | None = None
    """Why nothing can be trained over such a base, for a note. Default: adapters can be trained."""
    kept: Annotated[dict[str, StrictBool | tuple[Layers, ...]], Field(max_length=100)] = Field(
        default_factory=dict
    )
    """What is not quantised, by names of tensors: true for everywhere, or the number of layers in
    each group of alike layers. Default: nothing.
    """


def read_quantisation(value: Any) -> Any:
    """The format that a preset's name stands for; a name that an earlier version saved stands for
    an unknown format.
    """
    if not isinstance(value, str):
        return value
    if value in WORDS_OF_OLD and value not in presets.names("quantisations"):
        return {"name": value}
    return presets.load("quantisations", value)
