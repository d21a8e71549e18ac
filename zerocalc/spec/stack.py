"""An architecture written out: which modules stand before, in and after the layers, with the sizes
of each.
"""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, StrictBool, model_validator

from zerocalc.quantities import Whole
from zerocalc.spec.base import FieldError, Spec
from zerocalc.spec.implementation import UNKNOWN, Activation

ModuleType = Literal[
    "embedding",
    "head",
    "norm",
    "attention",
    "mla",
    "delta",
    "channel_delta",
    "mamba",
    "mamba2",
    "convolution",
    "recurrent",
    "linear_attention",
    "layer_inputs",
    "layer_input",
    "altup",
    "laurel",
    "mlp",
    "router",
    "moe",
    "tensors",
]
ComponentName = Literal["embedding", "head", "attention", "mlp", "experts", "norms", "other"]

NormKind = Literal[
    "layer", "layer_fp32", "rms", "rms_fp32", "rms_squares", "rms_power", "rms_fused"
]
"""LayerNorm or RMSNorm; ``_fp32`` where the class scales by the weight before it casts back (and,
of LayerNorm, writes it out step by step), ``rms_squares`` where only the squares are taken in fp32
(T5), ``rms_power`` as rms_fp32 with a power for the root (Gemma 4), ``rms_fused`` where PyTorch's
own kernel runs it.
"""
Size = Annotated[int, Field(ge=0, le=10**12, strict=True)]

MOST_EXPERTS = 100_000

SIZES: dict[str, tuple[str, ...]] = {
    "norm": ("dim",),
    "embedding": ("vocab", "dim"),
    "head": ("vocab", "dim"),
    "attention": ("hidden", "heads", "kv_heads", "head_dim"),
    "mla": ("hidden", "heads", "kv_lora_rank", "nope_dim", "rope_dim", "value_dim"),
    "delta": ("hidden", "key_heads", "value_heads", "key_dim", "value_dim", "conv"),
    "channel_delta": ("hidden", "heads", "head_dim", "conv"),
    "mamba": ("hidden", "inner", "state", "rank", "conv"),
    "mamba2": ("hidden", "inner", "heads", "state", "groups", "conv"),
    "convolution": ("hidden", "conv"),
    "recurrent": ("hidden", "width", "heads", "conv"),
    "linear_attention": ("hidden", "heads", "head_dim", "block"),
    "layer_inputs": ("hidden", "layers", "width"),
    "layer_input": ("hidden", "width"),
    "altup": ("hidden", "streams"),
    "laurel": ("hidden", "rank"),
    "mlp": ("hidden", "ffn"),
    "router": ("hidden", "experts", "top_k"),
    "moe": ("hidden", "experts", "top_k", "ffn"),
    "tensors": (),
}
"""The sizes without which a module of a type has no tensors."""
WORDS: dict[str, tuple[str, ...]] = {
    "qk_norm": ("none", "head", "full", "heads"),
    "layout": ("fused", "transposed", "each", "stacked"),
    "kind": get_args(NormKind),
    "reads": ("result", "stream", "sum", "layer", "inside"),
    "qk_norm_kind": get_args(NormKind),
    "gate": ("sigmoid", "softplus"),
    "inner_norm": get_args(NormKind),
    "kernels": ("all", "eager"),
    "rotary_dtype": ("fp32", "compute"),
    "softmax": ("fp32", "compute", "fp32_scores", "shifted"),
    "scores": ("fp32", "compute"),
    "probabilities": ("fp32", "compute"),
    "routing": ("softmax", "sigmoid", "chosen"),
    "router_input": ("fp32", "compute"),
    "input": ("fp32", "compute"),
    "part": ("spread", "predict", "correct", "join"),
    "projections": ("paired", "split", "each"),
    "activation": (*get_args(Activation), UNKNOWN),
}
"""The values that are words, and the words they can be."""


ShortText = Annotated[str, Field(max_length=100)]


class ModuleSpec(Spec):
    """One module: its type, and the sizes and switches that its type reads; ``tensors`` spells out
    shapes where the type is that.
    """

    type: ModuleType
    name: ShortText
    component: ComponentName | None = None
    values: dict[ShortText, Size | StrictBool | ShortText] = Field(default_factory=dict)
    tensors: dict[str, tuple[Size, ...]] = Field(default_factory=dict)
    unquantised: tuple[str, ...] = ()
    """Weights of linear layers that quantisers leave as they are."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in SIZES[self.type]:
            value = self.values.get(key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise FieldError(
                    "model.stack",
                    f"{self.type} {self.name}: {key} is "
                    f"{'missing' if value is None else f'{value!r}, not at least 1'}",
                )
        for key, value in self.values.items():
            if isinstance(value, str) and value not in WORDS.get(key, ()):
                raise FieldError(
                    "model.stack",
                    f"{self.type} {self.name}: {key} is {value!r}, not "
                    f"{' or '.join(WORDS.get(key, ('a number',)))}",
                )
            if key in WORDS and not isinstance(value, str):
                raise FieldError(
                    "model.stack",
                    f"{self.type} {self.name}: {key} is {value!r}, not {' or '.join(WORDS[key])}",
                )
        self._check_experts()
        return self

    def _check_experts(self) -> None:
        """A token passes through some of the experts, and each of these is a part that is looked
        at.
        """
        used, experts = self.values.get("top_k"), self.values.get("experts")
        if isinstance(experts, int) and experts > MOST_EXPERTS:
            raise FieldError(
                "model.stack",
                f"{self.type} {self.name}: {experts:,} experts are more than {MOST_EXPERTS:,}",
            )
        if isinstance(used, int) and isinstance(experts, int) and used > experts:
            raise FieldError(
                "model.stack",
                f"{self.type} {self.name}: a token cannot pass through {used:,} of "
                f"{experts:,} experts",
            )


class Group(Spec):
    """Layers that are alike: ``count`` of them, each with these modules."""

    count: Whole
    modules: tuple[ModuleSpec, ...]


class Stack(Spec):
    """The modules of a whole model in the order of the forward pass; ``activations``: whether that
    order says what the layers keep for backward.
    """

    activations: StrictBool = False
    positions: Whole | None = None
    """The longest sequence for which there is a table of positions; none where they are computed.
    """
    before: tuple[ModuleSpec, ...] = ()
    groups: tuple[Group, ...] = ()
    after: tuple[ModuleSpec, ...] = ()

    @property
    def only_eager(self) -> bool:
        """Whether of the model's own class only attention in unfused operations is known, as where
        it has no other.
        """
        return any(
            module.values.get("kernels") == "eager"
            for group in self.groups
            for module in group.modules
        )
