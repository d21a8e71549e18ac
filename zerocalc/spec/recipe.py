"""The recipe: which state rows a parameter has, in which dtype, and from which ZeRO stage each is
sharded.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc.quantities import Whole
from zerocalc.spec.base import FieldError, Spec

Dtype = Literal["fp32", "bf16", "fp16", "int8"]
FloatDtype = Literal["fp32", "bf16", "fp16"]
StoredDtype = Literal["fp64", "fp32", "bf16", "fp16", "fp8"]
"""Dtypes of a checkpoint's tensors; training supports fewer."""
DTYPE_BYTES: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "int64": 8,
}

RowKind = Literal["weights", "gradients", "optimizer", "copies"]
RowOf = Literal["all", "trainable", "frozen", "linear", "matrix", "rest", "factored"]


class StateRow(Spec):
    """One state of a recipe: an item of ``dtype`` for every ``per`` of the parameters in ``of``."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name of the term, unique in the recipe."""
    kind: RowKind
    """The kind of memory. ``copies`` are transient and not part of the model states."""
    dtype: Dtype
    """Dtype of an item."""
    sharded_from: Annotated[int, Field(ge=1, le=4, strict=True)]
    """The first ZeRO stage that shards the state; 4 if none does."""
    of: RowOf = "trainable"
    """The parameters that have the state: ``all`` (frozen ones included), ``trainable``, ``linear``
    (weights of linear layers), ``matrix`` (matrices inside the layers), ``rest`` (trainable, not
    matrix), ``factored`` (a sum per row and per column of a matrix, vectors whole) or ``frozen``
    (the base under adapters).
    """
    per: Whole = 1
    """Parameters per item. Default: 1."""
    copies_weights: StrictBool = False
    """Whether the state is an fp32 copy of 16-bit weights; parameters that are fp32 themselves have
    none. Default: no.
    """


class Recipe(Spec):
    """In which precision a model is trained and what its optimizer stores: the states, and the
    dtypes of compute and of parameter gathers.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name of the recipe."""
    title: Annotated[str, Field(max_length=200)] = ""
    """Description in words, for tables. Default: none."""
    source: Annotated[str, Field(max_length=2000)]
    """Where the states and dtypes were read."""
    compute: FloatDtype = "bf16"
    """Dtype of matmuls and activations. Default: bf16."""
    gather: FloatDtype = "bf16"
    """Dtype in which sharded parameters are all-gathered. Default: bf16."""
    autocast: StrictBool = False
    """Whether matmuls run in ``compute`` on cast copies (torch.autocast), while norms, powers and
    the residual stream stay in fp32. Default: no. Saves more activations.
    """
    note: Annotated[str, Field(max_length=500)] | None = None
    """An assumption to print with every answer. Default: none."""
    rows: Annotated[tuple[StateRow, ...], Field(min_length=1, max_length=20)]
    """The states: at least one of kind weights and one of kind gradients."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        kinds = {row.kind for row in self.rows}
        for kind in ("weights", "gradients"):
            if kind not in kinds:
                raise FieldError("recipe.rows", f"have no row of kind {kind}")
        for row in self.rows:
            if row.of == "frozen":
                raise FieldError(
                    "recipe.rows", f"{row.name}: a frozen base follows from LoRA and needs no row"
                )
            if row.kind == "weights" and row.of != "all":
                raise FieldError(
                    "recipe.rows", f"{row.name}: weights exist for all parameters, not for {row.of}"
                )
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise FieldError("recipe.rows", "have two rows of the same name")
        return self

    @property
    def gradient_dtype(self) -> str:
        """The dtype in which gradients are reduced by default: that of the first gradients row.

        Raises `FieldError` if no row is of that kind.
        """
        for row in self.rows:
            if row.kind == "gradients":
                return row.dtype
        raise FieldError("recipe.rows", "have no row of kind gradients")

    def for_adapters(self, dtype: FloatDtype) -> Self:
        """The recipe of a frozen base with trained adapters in ``dtype``.

        The base has weights in the compute dtype and no other state. The adapters have the recipe's
        states if its weights are in ``dtype``. Otherwise their weights, gradients and those moments
        that have the weights' dtype are in ``dtype``; a copy of the weights in ``dtype`` is left
        out; and adapters are gathered in ``dtype`` instead of ``gather``.
        """
        rows: list[StateRow] = []
        own = {row.dtype for row in self.rows if row.kind == "weights"}
        as_recipe = any(row.kind == "weights" and row.dtype == dtype for row in self.rows)
        for row in self.rows:
            changes: dict[str, object] = {
                "name": f"adapter {row.name}",
                "of": "trainable" if row.of in ("all", "linear") else row.of,
            }
            if row.kind == "weights":
                rows.append(
                    row.model_copy(
                        update={"name": "frozen weights", "dtype": self.compute, "of": "frozen"}
                    )
                )
                changes["dtype"] = dtype
            elif row.kind == "gradients" and not as_recipe:
                if any(other.kind == "gradients" for other in rows):
                    continue
                changes["dtype"] = dtype
            elif (
                row.kind == "optimizer"
                and not row.copies_weights
                and row.per == 1
                and row.dtype in own
            ):
                changes["dtype"] = dtype  # made like the weights: torch.zeros_like
            elif (row.copies_weights and row.dtype == dtype) or (
                row.kind == "copies" and dtype == self.compute
            ):
                continue
            rows.append(row.model_copy(update=changes))
        return self.model_copy(
            update={"rows": tuple(rows), "gather": self.gather if as_recipe else dtype}
        )

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of model states per trainable parameter, without transient copies and states whose
        size depends on shapes.
        """
        counted = {"all", "trainable", "matrix"}
        return sum(
            DTYPE_BYTES[row.dtype] / row.per
            for row in self.rows
            if row.kind != "copies" and row.of in counted
        )
