"""Every formula's printed text, evaluated exactly, gives what its code returns."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import zlib
from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import zerocalc.formulas
from zerocalc.formulas.formula import Ratio, Written

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[^\W\d²³][^\W²³]*)|(?P<sign>[()⌈⌉⌊⌋·/+−,²³]))"
)
SIGNS = {
    "⌈": "ceil(",
    "⌉": ")",
    "⌊": "floor(",
    "⌋": ")",
    "·": "*",
    "−": "-",
    "²": "**2",
    "³": "**3",
}
FUNCTIONS = {"min": min, "max": max}
EXAMPLES = 200


def evaluated(text: str, values: dict[str, Fraction]) -> Fraction:
    """The value of a formula's text, each symbol put in as a fraction."""
    python, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        assert match is not None, f"{text!r}: unknown sign at {text[position:]!r}"
        position = match.end()
        if match["number"]:
            python.append(f"number({match['number']!r})")
        elif match["name"] in FUNCTIONS:
            python.append(match["name"])
        elif match["name"]:
            python.append(f"values[{match['name']!r}]")
        else:
            python.append(SIGNS.get(match["sign"], match["sign"]))
    names = {
        **FUNCTIONS,
        "values": values,
        "number": Fraction,
        "ceil": math.ceil,
        "floor": math.floor,
    }
    return Fraction(eval("".join(python), {"__builtins__": {}}, names))


def formulas() -> Iterator[Written[Any, Any]]:
    """All formulas of all modules of the package, each once."""
    seen: set[int] = set()
    for module in pkgutil.walk_packages(zerocalc.formulas.__path__, "zerocalc.formulas."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Written) and id(value) not in seen:
                seen.add(id(value))
                yield value


def inputs(formula: Written[Any, Any], random: Random) -> dict[str, int | float]:
    """Random inputs: whole numbers of all sizes; a fraction is a multiple of 1/64, exact in
    binary.
    """
    return {
        name: random.randrange(64) / 64
        if name == "fraction"
        else random.randint(1, 10 ** random.randint(1, 10))
        for name in formula.symbols.values()
    }


ALL = list(formulas())


def test_the_walk_finds_them() -> None:
    assert {"whole_bytes", "all_reduce_sent", "bucket_bytes", "gpt_parameters", "efficiency"} <= {
        formula.function.__name__ for formula in ALL
    }


@pytest.mark.parametrize(
    "formula",
    ALL,
    ids=[
        f"{formula.function.__module__.rpartition('.')[2]}.{formula.function.__name__}"
        for formula in ALL
    ],
)
def test_text_is_the_code(formula: Written[Any, Any]) -> None:
    random = Random(zlib.crc32(formula.text.encode()))
    for _ in range(EXAMPLES):
        given = inputs(formula, random)
        value = evaluated(
            formula.text,
            {symbol: Fraction(given[keyword]) for symbol, keyword in formula.symbols.items()},
        )
        result = formula(**given)
        if isinstance(formula, Ratio):
            assert result == pytest.approx(float(value), rel=1e-12)
        else:
            assert isinstance(result, int)
            assert result == value, given


@pytest.mark.parametrize("formula", ALL, ids=[formula.function.__name__ for formula in ALL])
def test_symbols_are_all_of_the_text_and_all_of_the_code(formula: Written[Any, Any]) -> None:
    named = {match["name"] for match in TOKEN.finditer(formula.text) if match["name"]} - set(
        FUNCTIONS
    )
    assert named == set(formula.symbols)
    taken = set(formula.function.__annotations__) - {"return"}
    assert taken == set(formula.symbols.values())
    assert formula.source
    assert formula.__doc__ is not None
    assert ">>> " in formula.__doc__


def test_the_evaluator() -> None:
    half = {"x": Fraction(1, 2), "N_d": Fraction(3), "λ": Fraction(7)}
    assert evaluated("⌈x·N_d⌉ − ⌊x·N_d⌋", half) == 1
    assert evaluated("1.5·N_d²/(2 + min(x, 1))", half) == Fraction(27, 5)
    assert evaluated("max(λ, N_d)/N_d", half) == Fraction(7, 3)


def test_numbers_put_in() -> None:
    from zerocalc.formulas.published import transformer_parameters

    assert transformer_parameters.substituted({"layers": 48, "hidden": 1600}) == "12·48·1,600²"
