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
"""What a checkpoint is kept in; training knows fewer."""
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
    """One row of a recipe: an item of ``dtype`` for every ``per`` of the parameters named by
    ``of``.

    ``of``: ``all`` (frozen ones too), ``trainable``, ``linear`` (weights of linear layers),
    ``matrix`` (matrices inside the layers), ``rest`` (trainable but not matrix), ``factored`` (a
    row and a column sum per matrix, whole vectors otherwise), ``frozen`` (the base beside
    adapters). ``copies_weights``: a copy of 16-bit weights in fp32, which parameters that are fp32
    themselves do without. ``sharded_from``: the first ZeRO stage that divides the row; 4 where no
    stage does.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    kind: RowKind
    dtype: Dtype
    sharded_from: Annotated[int, Field(ge=1, le=4, strict=True)]
    of: RowOf = "trainable"
    per: Whole = 1
    copies_weights: StrictBool = False


class Recipe(Spec):
    """How training keeps numbers: state rows, and the dtypes of compute, of gathered weights and of
    gradients in flight.

    ``autocast``: products run in compute's dtype on copies, while norms, powers and the residual
    stream stay in fp32.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str, Field(max_length=2000)]
    compute: FloatDtype = "bf16"
    gather: FloatDtype = "bf16"
    autocast: StrictBool = False
    note: Annotated[str, Field(max_length=500)] | None = None
    rows: Annotated[tuple[StateRow, ...], Field(min_length=1, max_length=20)]

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
            raise FieldError("recipe.rows", "have two rows of one name")
        return self

    @property
    def gradient_dtype(self) -> str:
        """The dtype in which gradients are communicated unless told otherwise: the first gradient
        row's.
        """
        for row in self.rows:
            if row.kind == "gradients":
                return row.dtype
        raise FieldError("recipe.rows", "have no row of kind gradients")

    def for_adapters(self, dtype: FloatDtype) -> Self:
        """The recipe of a frozen base with adapters in ``dtype``.

        The base has weights in the compute dtype and nothing else. The adapters have the recipe's
        rows where ``dtype`` is what its weights are in; otherwise weights, gradients and moments
        that are like the weights in ``dtype``, and no copy of weights that are in the copy's dtype
        already. Adapters that have the recipe's rows are gathered as it says, others as they are.
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
        """Bytes of all state rows per trainable parameter, rows that depend on shapes and passing
        copies aside.
        """
        counted = {"all", "trainable", "matrix"}
        return sum(
            DTYPE_BYTES[row.dtype] / row.per
            for row in self.rows
            if row.kind != "copies" and row.of in counted
        )
