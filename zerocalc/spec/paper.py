"""A published table as a file has it: its columns and rows, what each cell prints, and what it is
recomputed from.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from zerocalc.spec.base import FieldError, Spec

Text = Annotated[str, Field(max_length=2000)]
Inputs = dict[str, int | float | str | bool]


class Column(Spec):
    """A column: its unit, and what its cells are, with the inputs that all of them share."""

    label: Text
    unit: Text
    quantity: Text | None = None
    inputs: Inputs = Field(default_factory=dict)


class Derived(Spec):
    """A print that is a multiple of another row's."""

    source: Annotated[str, Field(alias="from")]
    times: int


class Row(Spec):
    """A row: what each column prints, how that is to be read, and the inputs that are its own."""

    label: Text
    printed: dict[str, str]
    group: Text = ""
    unit: Text | None = None
    units: dict[str, str] = Field(default_factory=dict)
    quantity: Text | None = None
    inputs: Inputs = Field(default_factory=dict)
    reading: Text | None = None
    readings: dict[str, str] = Field(default_factory=dict)
    within: dict[str, float] | None = None
    derived: Derived | None = None


class Paper(Spec):
    """A published table."""

    title: Text
    source: Text
    heading: Text = ""
    notes: tuple[Text, ...] = ()
    reading: Text | None = None
    within: dict[str, float] | None = None
    inputs: Inputs = Field(default_factory=dict)
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]

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
