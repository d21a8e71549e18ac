"""An architecture written out: which modules stand before, in and after the layers, with the sizes
of each.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc.quantities import Whole
from zerocalc.spec.base import FieldError, Spec

ComponentName = Literal["embedding", "head", "attention", "mlp", "experts", "norms", "other"]

Size = Annotated[int, Field(ge=0, le=10**12, strict=True)]

MOST_EXPERTS = 100_000

ShortText = Annotated[str, Field(max_length=100)]


class ModuleSpec(Spec):
    """One module: its type, which is the name of a kind, and the sizes and switches that its kind
    takes; ``tensors`` spells out shapes where the type is that.

    The kinds are not known here: what builds the modules checks names and values.
    """

    type: ShortText
    name: ShortText
    component: ComponentName | None = None
    values: dict[ShortText, Size | StrictBool | ShortText] = Field(default_factory=dict)
    tensors: dict[str, tuple[Size, ...]] = Field(default_factory=dict)
    unquantised: tuple[str, ...] = ()
    """Weights of linear layers that quantisers leave as they are."""

    def size(self, key: str) -> int:
        """The value of that name where it is a whole number, else 0."""
        value = self.values.get(key)
        return value if isinstance(value, int) else 0

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
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
        return self


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
