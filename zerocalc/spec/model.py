"""The model: a parameter count Ψ alone, or an architecture from which everything is counted."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from zerocalc import spec
from zerocalc.quantities import Count, Fraction, Whole
from zerocalc.spec.base import FieldError, Spec, read_part
from zerocalc.spec.dimensions import DIMENSIONS, REQUIRED, ModelKind, filled_in
from zerocalc.spec.implementation import Activation
from zerocalc.spec.recipe import StoredDtype


def _read_stack(value: Any) -> Any:
    return None if value is None else read_part("model.stack", spec.stack.Stack, value)


def _read_lora(value: Any) -> Any:
    return None if value is None else spec.lora.read_lora(value)


def _read_quantised(value: Any) -> Any:
    """A format of quantised weights, or its preset's name."""
    if value is None:
        return None
    part = spec.quantisation
    return read_part("model.quantised", part.Quantisation, part.read_quantisation(value))


# Parts that are validated on their own, so that a job without them is not slowed by their classes.
if TYPE_CHECKING:
    OptionalStack = spec.stack.Stack | None
    OptionalQuantisation = spec.quantisation.Quantisation | None
    OptionalLora = spec.lora.Lora | None
else:
    OptionalStack = Annotated[Any, BeforeValidator(_read_stack)]
    OptionalQuantisation = Annotated[Any, BeforeValidator(_read_quantised)]
    OptionalLora = Annotated[Any, BeforeValidator(_read_lora)]

WITH_SCORES = frozenset({"attention", "mla"})
"""Modules of a stack that compare each token with all others, head by head."""


class Model(Spec):
    """What is trained: a parameter count alone, the dimensions of a known kind of decoder, or a
    stack of modules.
    """

    title: Annotated[str, Field(max_length=200)] | None = None
    """Name for the headings of tables. Default: none."""
    source: Annotated[str, Field(max_length=2000)] | None = None
    """Where the dimensions were read. Default: none. Changes no number."""
    params: Count | None = None
    """Parameter count alone, such as ``7.5B``, instead of an architecture. Default: none. Model
    states and their traffic are counted; activations are not.
    """
    blocks: Whole | None = None
    """Equal blocks into which ``params`` is cut. Default: unknown, and so are the parameters that
    stage 3 gathers at once. Changes those and the number of calls.
    """
    trainable: Count | None = None
    """Parameters that are trained; the rest is frozen. Default: all. Changes gradients, optimizer
    states and their traffic.
    """

    kind: ModelKind | None = None
    """Layers described by the fields below: ``gpt2`` (LayerNorm, learned positions, plain MLP) or
    ``llama`` (RMSNorm, rotary embeddings, gated MLP). Default: gpt2.
    """
    layers: Whole | None = None
    """Transformer layers. No default. Parameters and saved activations grow with the number."""
    hidden: Whole | None = None
    """Hidden size [elements]. No default. Changes parameters and activations."""
    heads: Whole | None = None
    """Query heads per layer. No default. Changes the scores, or the statistics, that attention
    saves for backward; ``tp`` must divide the number.
    """
    kv_heads: Whole | None = None
    """Key and value heads per layer (grouped-query attention). Default: ``heads``. Fewer heads mean
    fewer parameters and smaller keys and values.
    """
    head_dim: Whole | None = None
    """Size of a head [elements]. Default: ``hidden`` / ``heads``. Changes the attention's
    parameters and activations.
    """
    ffn: Whole | None = None
    """Inner size of the MLP [elements]. Default: 4·``hidden``; kind llama: two thirds of that,
    rounded up to a multiple of 256. Changes parameters and activations; ``tp`` must divide it.
    """
    vocab: Whole | None = None
    """Vocabulary size [tokens]. Default: 50257; kind llama: 32000. Changes embedding, head and
    logits.
    """
    positions: Whole | None = None
    """Learned positions of kind gpt2 [tokens]. Default: 1024, or the sequence length if that is
    longer. Changes the embedding; ``training.seq`` cannot exceed it. Kind llama ignores it.
    """
    tied_embeddings: StrictBool | None = None
    """Whether embedding and head share one tensor. Default: yes; kind llama: no. A tied head adds
    no parameters.
    """
    qkv_bias: StrictBool | None = None
    """Whether queries, keys and values have biases. Default: yes; kind llama: no. Adds
    parameters.
    """
    out_bias: StrictBool | None = None
    """Whether the attention's output has a bias. Default: yes; kind llama: no. Adds parameters."""
    mlp_bias: StrictBool | None = None
    """Whether the MLP's linear layers have biases. Default: yes; kind llama: no. Adds
    parameters.
    """
    qk_norm: StrictBool | None = None
    """Whether queries and keys of each head are normalised. Default: no. Adds parameters and saved
    activations.
    """
    dropout: Fraction | None = None
    """Dropout rate of kind gpt2: residual, embedding, attention. Default: 0.1; kind llama: 0. Above
    0, dropout masks are saved for backward, whatever the rate.
    """
    activation: Activation | None = None
    """Activation function of the MLP. Default: gelu_new; kind llama: silu. Changes the saved
    activations.
    """

    family: Annotated[str, Field(max_length=100)] | None = None
    """Model type of a Hugging Face config. Default: none. Selects the default targets of LoRA."""
    stack: OptionalStack = None
    """Architecture written out module by module, instead of the dimensions above. Default: none."""
    quantised: OptionalQuantisation = None
    """Format of a quantised frozen base, or its preset's name. Default: not quantised. Changes the
    bytes of the frozen weights and their traffic.
    """
    dtype: StoredDtype | None = None
    """Dtype of the weights in a checkpoint that are not quantised. Default: bf16, as an assumption.
    Changes the stored bytes; training uses the recipe's dtypes.
    """
    lora: OptionalLora = None
    """LoRA adapters: they are trained, the model is frozen. Default: none."""

    assumed: tuple[str, ...] = ()
    """Assumptions about fields that were not given, printed with every answer. A saved job repeats
    them. Default: none.
    """
    filled: tuple[str, ...] = ()
    """Fields that were not given and follow from others. `only_given` removes them, so that they
    follow changed fields. Default: none.
    """

    @property
    def is_bare(self) -> bool:
        """Whether only the number of parameters is known."""
        return self.params is not None

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Numbers of attention heads in the model, each once; none for a bare number of
        parameters.
        """
        if self.stack is None:
            return (self.heads,) if self.heads else ()
        attentions = [m for m in self._modules() if m.type in WITH_SCORES]
        return tuple(sorted({m.size("heads") for m in attentions} - {0}))

    @property
    def expert_counts(self) -> tuple[int, ...]:
        """Numbers of routed experts in the model's layers, each once; none where it has none, or
        they are not known.
        """
        return tuple(sorted({m.size("experts") for m in self._modules()} - {0, 1}))

    def undivided(self, ranks: int, expert_ranks: int) -> str | None:
        """What tensor parallelism over ``ranks`` (routed experts: over ``expert_ranks``) does not
        divide, in words; ``None`` if nothing.
        """
        heads = [f"the {count} heads" for count in self.head_counts if count % ranks]
        widths = [
            f"an MLP's width of {width}"
            for width, routed in self._widths()
            if width % (expert_ranks if routed else ranks)
        ]
        return next(iter((*heads, *widths)), None)

    def _widths(self) -> Iterator[tuple[int, bool]]:
        """Inner widths of MLPs and experts, and whether those are routed experts'; none for a bare
        number of parameters.
        """
        if self.stack is None:
            if self.ffn:
                yield self.ffn, False
            return
        for module in self._modules():
            if width := module.size("ffn"):
                yield width, "experts" in module.values
            if shared := module.size("shared_ffn"):
                yield shared, False

    def _modules(self) -> "Iterator[spec.stack.ModuleSpec]":
        """The modules of one layer of each group; none where no stack is written out."""
        for group in self.stack.groups if self.stack is not None else ():
            yield from group.modules

    @property
    def words(self) -> int:
        """Rows of the output head, one a word; 0 without a head."""
        if self.stack is None:
            return self.vocab or 0
        return next((m.size("vocab") for m in self.stack.after if m.type == "head"), 0)

    @property
    def longest(self) -> int | None:
        """The longest sequence that a table of positions has rows for, if there is one."""
        if self.stack is not None:
            return self.stack.positions
        return self.positions if self.kind == "gpt2" else None

    @property
    def module_types(self) -> frozenset[str]:
        """The types of the modules in the layers; none for a bare number of parameters."""
        if self.stack is None:
            return frozenset() if self.is_bare else frozenset({"attention", "mlp"})
        return frozenset(module.type for module in self._modules())

    @property
    def has_attention(self) -> bool:
        """Whether any layer compares each token with all others; also where the layers are not
        known.
        """
        return self.is_bare or bool(WITH_SCORES & self.module_types)

    @property
    def layer_count(self) -> int | None:
        """Layers of the model, if it has any that are known."""
        return (
            self.layers if self.stack is None else sum(group.count for group in self.stack.groups)
        )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Fill in what the kind implies, and say so where it is a guess."""
        if not isinstance(data, dict):
            return data
        if data.get("lora") is not None:
            family = data.get("family") or data.get("kind")
            data = {**data, "lora": spec.lora.with_targets(data["lora"], family)}
        given = {key for key in DIMENSIONS if data.get(key) is not None}
        if data.get("params") is not None or data.get("stack") is not None or not given:
            return data
        new, assumed = filled_in(data)
        if not new or not all(
            isinstance(data.get(key, ()), (list, tuple)) for key in ("assumed", "filled")
        ):
            return data
        out = {**data, **new, "filled": (*data.get("filled", ()), *new)}
        if assumed:
            out["assumed"] = (*data.get("assumed", ()), *assumed)
        return out

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lora is not None and self.trainable is not None:
            raise FieldError(
                "model.trainable",
                "contradicts LoRA, which trains the adapters alone: give one of the two",
            )
        if self.params is not None:
            self._check_bare(self.params)
            return self
        if self.stack is not None:
            self._check_stack()
            return self
        missing = [name for name in REQUIRED if getattr(self, name) is None]
        if len(missing) == len(REQUIRED):
            raise FieldError(
                "model",
                "say what is trained: a number of parameters (params), a preset's name, or "
                "layers, hidden and heads",
            )
        if missing:
            raise FieldError(
                f"model.{missing[0]}", f"is missing; an architecture needs {', '.join(REQUIRED)}"
            )
        if self.blocks is not None:
            raise FieldError(
                "model.blocks",
                "is for a bare number of parameters; this architecture's blocks are its layers",
            )
        self._check_shape()
        return self

    def _check_stack(self) -> None:
        set_too = [name for name in (*DIMENSIONS, "blocks") if getattr(self, name) is not None]
        if set_too:
            raise FieldError(
                f"model.{set_too[0]}",
                "contradicts the architecture that is written out (family "
                f"{self.family or 'none'}): change its config instead",
            )

    def _check_bare(self, params: int) -> None:
        set_too = [name for name in (*DIMENSIONS, "stack") if getattr(self, name) is not None]
        if set_too:
            raise FieldError(
                "model.params",
                f"contradicts the architecture ({set_too[0]} …): give the number of "
                "parameters or the architecture, not both",
            )
        if self.lora is not None:
            raise FieldError(
                "model.lora.rank",
                "needs the shapes of the layers it adapts: give an architecture, not just params",
            )
        if self.trainable is not None and self.trainable > params:
            raise FieldError(
                "model.trainable",
                f"{self.trainable:,} is more than the model's {params:,} parameters",
            )
        if self.blocks is not None and self.blocks > params:
            raise FieldError(
                "model.blocks", f"{self.blocks:,} blocks cannot be cut from {params:,} parameters"
            )

    def _check_shape(self) -> None:
        d = dimensions(self)
        if self.head_dim is None:
            raise FieldError(
                "model.heads",
                f"{d.heads} does not divide the hidden size {d.hidden}; if heads are "
                "wider, give head_dim",
            )
        if d.heads % d.kv_heads:
            raise FieldError("model.kv_heads", f"{d.kv_heads} does not divide the {d.heads} heads")
        if self.kind == "llama" and self.dropout:
            raise FieldError(
                "model.dropout",
                f"{self.dropout} is for kind gpt2; kind llama trains without dropout",
            )


class Dimensions:
    """The dimensions of an architecture as plain numbers, none missing; short-lived."""

    __slots__ = ("ffn", "head_dim", "heads", "hidden", "kv_heads", "layers", "positions", "vocab")

    def __init__(self, model: Model) -> None:
        self.layers = model.layers or 0
        self.hidden = model.hidden or 0
        self.heads = model.heads or 0
        self.kv_heads = model.kv_heads or self.heads
        self.head_dim = model.head_dim or 0
        self.ffn = model.ffn or 0
        self.vocab = model.vocab or 0
        self.positions = model.positions or 0


def dimensions(model: Model) -> Dimensions:
    """An architecture's dimensions; only for a model that is not bare."""
    return Dimensions(model)
