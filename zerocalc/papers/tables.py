"""Published tables, recomputed and set beside what is printed, cell by cell.

A table is a file in presets/papers: facts only, each cell with how it is to be read. What it is
compared with is a quantity: the program itself where it computes the thing, else the paper's closed
form.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Literal

from zerocalc import presets
from zerocalc.ledger import record
from zerocalc.papers import activations, deepspeed_estimators, offload, zero
from zerocalc.papers.jobs import Ours
from zerocalc.quantities import BYTE_SUFFIXES, COUNT_SUFFIXES, shown

QUANTITIES: dict[str, Callable[..., Ours]] = {
    quantity.__name__: quantity
    for paper in (zero, offload, activations, deepspeed_estimators)
    for quantity in paper.QUANTITIES
}
"""What a table's file can name; each gives plain SI numbers."""

Reading = Literal[
    "rounded", "truncated", "derived", "bound", "formula", "figure", "memory", "unclear", "none"
]
Verdict = Literal["same", "differs"]

READINGS: dict[Reading, str] = {
    "rounded": "printed rounded",
    "truncated": "printed truncated, not rounded",
    "derived": "computed from rounded figures",
    "bound": "printed as a bound",
    "formula": "printed as a formula",
    "figure": "read from a figure",
    "memory": "copied from memory",
    "unclear": "source ambiguous",
    "none": "not printed",
}
WITHOUT_VERDICT: frozenset[Reading] = frozenset({"figure", "memory", "unclear", "none"})

ORDER = (
    "zero-figure1",
    "zero-table1",
    "zero-table2",
    "zero-volumes",
    "zero-activations",
    "offload-strategies",
    "infinity-figure2a",
    "infinity-largest",
    "megatron-table1",
    "sp-activations",
    "deepspeed-estimators",
    "deepspeed-estimators-current",
)
"""From the first thing to look at to the last; tables that are not named here follow."""


@record
class Cell:
    """One cell: what is printed (``None`` where nothing is), ours in the same unit, and ours as the
    table would print it.

    ``agrees``: whether ours reads as printed when rounded, whatever the verdict; ``verdict`` is
    ``None`` where the print can't be held to it.
    """

    group: str
    row: str
    column: str
    unit: str
    printed: str | None
    ours: float
    shown: str
    reading: Reading
    verdict: Verdict | None
    agrees: bool | None
    formula: str | None


@record
class Table:
    """A published table: ``heading`` names what tells its rows apart, ``columns`` are in the
    source's order.
    """

    name: str
    title: str
    source: str
    heading: str
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether a cell with a verdict does not reproduce."""
        return any(cell.verdict == "differs" for cell in self.cells)


def tables() -> list[str]:
    """The names of all published tables."""
    names = presets.names("papers")
    return [name for name in ORDER if name in names] + [name for name in names if name not in ORDER]


def reproduce(name: str) -> Table:
    """Recompute one table. Raises `presets.PresetError` for a name that is none."""
    if name not in tables():
        raise presets.PresetError(
            f"{shown(name)} is not a published table{presets.nearest(name, tables())} "
            "(zerocalc paper lists all)"
        )
    data = presets.load("papers", name)
    columns = {column["label"]: column for column in data["columns"]}
    cells = [
        _cell(data, columns[label], row, printed)
        for row in data["rows"]
        for label, printed in row["printed"].items()
    ]
    return Table(
        name,
        data["title"],
        data["source"],
        data.get("heading", ""),
        tuple(columns),
        tuple(cells),
        tuple(data.get("notes", ())),
    )


def _cell(table: dict[str, Any], column: dict[str, Any], row: dict[str, Any], printed: str) -> Cell:
    label = column["label"]
    unit = row.get("units", {}).get(label, row.get("unit", column["unit"]))
    reading: Reading = row.get("readings", {}).get(
        label, row.get("reading", table.get("reading", "rounded"))
    )
    quantity = row.get("quantity", column["quantity"])
    inputs = {**table.get("inputs", {}), **column.get("inputs", {}), **row.get("inputs", {})}
    size = unit_size(unit)
    ours = _recompute(quantity, inputs)
    value = ours.value / size
    text: str | None = printed or None
    if reading == "formula" and ours.closed is not None:
        text = _plain(ours.closed / size)
    agrees = None if text is None else _reads_as(text, value, value, "rounded")
    verdict: Verdict | None = None
    if text is not None and reading not in WITHOUT_VERDICT:
        made_from = row.get("derived")
        within = row.get("within", table.get("within"))
        if reading == "formula":
            same = ours.closed == ours.value
        elif made_from:
            first = next(
                other["printed"][label]
                for other in table["rows"]
                if other["label"] == made_from["from"]
            )
            same = _is_multiple(
                text, value, first, made_from["times"], unit_size(column["unit"]) / size
            )
        elif within:
            # Every quantity grows with each of its inputs, so the ends of their ranges are the ends
            # of its own.
            ends = [
                {**inputs, **{name: inputs[name] + sign * slack for name, slack in within.items()}}
                for sign in (-1, 1)
            ]
            low, high = (_recompute(quantity, end).value / size for end in ends)
            same = _reads_as(text, low, high, reading)
        else:
            same = _reads_as(text, value, value, reading)
        verdict = "same" if same else "differs"
    # One digit more where ours isn't rounded to the printed figure, so that the reader sees why.
    further = reading == "truncated" or not (agrees or reading in {"figure", "memory", "none"})
    shown_ours = round_half_up(value, (_decimals(text) if text else 2) + further)
    return Cell(
        row.get("group", ""),
        row["label"],
        label,
        unit,
        text,
        _number(value),
        shown_ours,
        reading,
        verdict,
        agrees,
        ours.formula,
    )


def _recompute(quantity: str, inputs: dict[str, Any]) -> Ours:
    function = QUANTITIES[quantity]
    takes = inspect.signature(function).parameters
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    return function(**{name: value for name, value in inputs.items() if every or name in takes})


def _is_multiple(printed: str, value: Fraction, first: str, times: int, scale: Fraction) -> bool:
    """Whether a print is ``times`` another one, itself rounded, and the value lies within what that
    rounding leaves open.
    """
    product = Fraction(first) * times * scale
    slack = Fraction(1, 2 * 10 ** _decimals(first)) * times * scale
    return _reads_as(printed, product, product, "rounded") and abs(value - product) <= slack


def _reads_as(printed: str, low: Fraction, high: Fraction, reading: Reading) -> bool:
    """Whether some value from ``low`` to ``high`` is printed so; at an exact half either neighbour
    will do.
    """
    figure, unit = Fraction(printed), Fraction(1, 10 ** _decimals(printed))
    if reading == "bound":
        return low < figure
    if reading == "truncated":
        return math.floor(low / unit) * unit <= figure <= high
    return low - unit / 2 <= figure <= high + unit / 2


def unit_size(unit: str) -> Fraction:
    """What one of a unit is, in bytes, parameters or plain numbers.

    >>> (unit_size("GiB") == 2**30, unit_size("B params") == 10**9, unit_size("%"),
    ...     unit_size("b·s·h"))
    (True, True, Fraction(1, 100), Fraction(1, 1))
    """
    if unit.endswith(" params"):
        return Fraction(COUNT_SUFFIXES[unit.removesuffix(" params")])
    return Fraction(1, 100) if unit == "%" else Fraction(BYTE_SUFFIXES.get(unit, 1))


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])


def _plain(value: Fraction) -> str:
    """A value in as few digits as it has, up to three decimals."""
    return next(
        text
        for text in (round_half_up(value, decimals) for decimals in range(4))
        if Fraction(text) == value or _decimals(text) == 3
    )


def _number(value: Fraction) -> float:
    return value.numerator if value.denominator == 1 else float(value)


def round_half_up(value: Fraction, decimals: int) -> str:
    """A value of at least 0 to some decimals.

    >>> round_half_up(Fraction("41.25"), 1)
    '41.3'
    """
    whole, part = divmod(math.floor(value * 10**decimals + Fraction(1, 2)), 10**decimals)
    return f"{whole}.{part:0{decimals}d}" if decimals else str(whole)


SAME_WORDS: dict[Reading, str] = {
    "rounded": "agree to the printed digit",
    "truncated": "agree with a truncated print",
    "derived": "agree with a print computed from rounded figures",
    "bound": "within the printed bound",
    "formula": "equal the printed formula",
}
NO_VERDICT_WORDS: dict[Reading, str] = {
    "figure": "read from a figure",
    "memory": "copied from memory",
    "unclear": "source ambiguous",
    "none": "not printed",
}


def summary(table: Table) -> str:
    """How many cells agree, and how, in one line: ``54 cells: 46 agree to the printed digit, 8
    agree with a truncated print``.
    """
    same = Counter(cell.reading for cell in table.cells if cell.verdict == "same")
    parts = [f"{same[reading]} {words}" for reading, words in SAME_WORDS.items() if same[reading]]
    for reading, words in NO_VERDICT_WORDS.items():
        cells = [cell for cell in table.cells if cell.reading == reading and cell.verdict is None]
        if cells:
            agree = sum(bool(cell.agrees) for cell in cells)
            remark = "" if reading == "none" else f" ({agree} of {len(cells)} match)"
            parts.append(f"{len(cells)} {words}, not judged{remark}")
    differ = sum(cell.verdict == "differs" for cell in table.cells)
    if differ:
        parts.insert(0, f"{differ} differ{'s' if differ == 1 else ''}")
    return f"{len(table.cells)} cell{'s' if len(table.cells) != 1 else ''}: {', '.join(parts)}"


def all_tables(names: Iterable[str] | None = None) -> list[Table]:
    """Some or all tables, recomputed."""
    return [reproduce(name) for name in (tables() if names is None else names)]
