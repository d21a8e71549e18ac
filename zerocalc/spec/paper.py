"""A published table as its file has it: columns and rows, what each cell prints, and the inputs
from which it is recomputed.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from zerocalc.spec.base import FieldError, Spec

Text = Annotated[str, Field(max_length=2000)]
Inputs = dict[str, int | float | str | bool]


class Column(Spec):
    """A column of a published table."""

    label: Text
    """Its heading, as printed."""
    unit: Text
    """Unit of its cells: GB, GiB, B params, % or a plain number's name."""
    quantity: Text | None = None
    """What its cells are: a name in `zerocalc.papers.quantities`. Default: each row says so."""
    inputs: Inputs = Field(default_factory=dict)
    """Inputs of the quantity that all its cells share. Default: none."""


class Derived(Spec):
    """A printed figure that is a multiple of another row's printed figure."""

    source: Annotated[str, Field(alias="from")]
    """Label of the other row; ``from`` in a file."""
    times: int
    """The multiple."""


class Row(Spec):
    """A row of a published table."""

    label: Text
    """Its heading, as printed."""
    printed: dict[str, str]
    """The printed text of each cell by column label; empty where nothing is printed."""
    group: Text = ""
    """Heading of the rows to which it belongs. Default: none."""
    unit: Text | None = None
    """Unit of its cells. Default: the column's."""
    units: dict[str, str] = Field(default_factory=dict)
    """Units of single cells by column label. Default: the row's."""
    quantity: Text | None = None
    """What its cells are: a name in `zerocalc.papers.quantities`. Default: the column's."""
    inputs: Inputs = Field(default_factory=dict)
    """Inputs of its quantities. Default: those of column and table."""
    reading: Text | None = None
    """How its cells are compared: rounded, truncated, derived, … (`zerocalc.papers.tables`).
    Default: the table's.
    """
    readings: dict[str, str] = Field(default_factory=dict)
    """How single cells are compared, by column label. Default: the row's."""
    within: dict[str, float] | None = None
    """Rounding of printed inputs: each may be this much larger or smaller. Default: the table's."""
    derived: Derived | None = None
    """The printed figure from which its cells were computed. Default: none."""


class Paper(Spec):
    """A published table."""

    title: Text
    """What the table shows."""
    source: Text
    """The paper and the table in it."""
    heading: Text = ""
    """Heading of the column of row labels. Default: none."""
    notes: tuple[Text, ...] = ()
    """Remarks to print under the table. Default: none."""
    reading: Text | None = None
    """How cells are compared unless a row says otherwise. Default: rounded."""
    within: dict[str, float] | None = None
    """Rounding of printed inputs: each may be this much larger or smaller. Default: exact."""
    inputs: Inputs = Field(default_factory=dict)
    """Inputs that all cells share. Default: none."""
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    """The columns, in the source's order."""
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    """The rows, in the source's order."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        columns = {column.label: column for column in self.columns}
        for number, row in enumerate(self.rows):
            for label in row.printed:
                if label not in columns:
                    raise FieldError(
                        f"rows.{number}.printed", f"has {label!r}, which is the label of no column"
                    )
                if row.quantity is None and columns[label].quantity is None:
                    raise FieldError(
                        f"rows.{number}",
                        f"has no quantity for {label!r}, and neither has that column",
                    )
        return self
