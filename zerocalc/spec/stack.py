"""An architecture written out: the modules before, in and after the layers, with their sizes."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc.quantities import Whole
from zerocalc.spec.base import FieldError, Spec

ComponentName = Literal["embedding", "head", "attention", "mlp", "experts", "norms", "other"]

Size = Annotated[int, Field(ge=0, le=10**12, strict=True)]

MOST_EXPERTS = 100_000

ShortText = Annotated[str, Field(max_length=100)]


class ModuleSpec(Spec):
    """One module of a stack. The module's kind checks the names and the values."""

    type: ShortText
    """Name of the module's kind, such as ``attention``. Determines the tensors and the saved
    activations.
    """
    name: ShortText
    """Name of the module in tables."""
    component: ComponentName | None = None
    """Component to which tables assign the parameters and activations. Default: the kind's."""
    values: dict[ShortText, Size | StrictBool | ShortText] = Field(default_factory=dict)
    """Sizes [elements], switches and options of the kind, by name. Default: the kind's own; sizes
    that the kind requires have none.
    """
    tensors: dict[str, tuple[Size, ...]] = Field(default_factory=dict)
    """Shapes of the tensors by name [elements], for type ``tensors``. Default: none."""
    unquantised: tuple[str, ...] = ()
    """Weights of linear layers that stay in their own dtype when the model is quantised. Default:
    none.
    """

    def size(self, key: str) -> int:
        """The value of that name where it is a whole number, else 0."""
        value = self.values.get(key)
        return value if isinstance(value, int) else 0

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        """Refuse more experts than are supported, or more per token than there are."""
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
        return self


class Group(Spec):
    """Layers that are alike."""

    count: Whole
    """Number of these layers. Parameters and saved activations grow with it."""
    modules: tuple[ModuleSpec, ...]
    """Modules of one such layer, in the order of the forward pass."""


class Stack(Spec):
    """The modules of a whole model."""

    activations: StrictBool = False
    """Whether the modules determine what the layers save for backward. Default: no, and saved
    activations are not counted.
    """
    positions: Whole | None = None
    """Rows of the table of positions [tokens]; ``training.seq`` cannot exceed it. Default: no such
    limit, as for rotary embeddings.
    """
    before: tuple[ModuleSpec, ...] = ()
    """Modules before the layers, such as the embedding. Default: none."""
    groups: tuple[Group, ...] = ()
    """The layers, in groups of alike layers. Default: none."""
    after: tuple[ModuleSpec, ...] = ()
    """Modules after the layers, such as final norm and head. Default: none."""

    @property
    def only_eager(self) -> bool:
        """Whether only unfused attention is known for the model's own class."""
        return any(
            module.values.get("kernels") == "eager"
            for group in self.groups
            for module in group.modules
        )
