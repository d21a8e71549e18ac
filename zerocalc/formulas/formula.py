"""A formula: a pure function together with the text, the symbols and the source it is printed
with.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Number = int | float

_SYMBOL = re.compile(r"[^\W\d²³][^\W²³]*")


class Written(Generic[P, R]):
    """A keyword-only function of plain numbers that knows how it is written.

    ``text`` is the formula in the field's symbols, ``symbols`` maps each of them to the keyword it
    stands for. A ledger's entry holds the formula and its inputs; text is made only when something
    is printed.
    """

    def __init__(
        self, function: Callable[P, R], text: str, source: str, symbols: Mapping[str, str]
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.text = text
        self.source = source
        self.symbols = dict(symbols)

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        """Found again by its name: an answer can be sent to another process."""
        return _named, (self.function.__module__, self.function.__qualname__)

    def __call__(self, *args: P.args, **inputs: P.kwargs) -> R:
        """The result for ``inputs``."""
        return self.function(*args, **inputs)

    def substituted(self, inputs: Mapping[str, Number]) -> str:
        """The text with the numbers put in, e.g. ``⌈10,000,000,000/64⌉·2``."""

        def number(match: re.Match[str]) -> str:
            keyword = self.symbols.get(match[0])
            if keyword is None:
                return match[0]
            value = inputs[keyword]
            return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"

        return _SYMBOL.sub(number, self.text)


def _named(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


class Formula(Written[P, int]):
    """A formula whose result is whole: bytes, elements, counts. What a ledger's entries are made
    of.
    """


class Ratio(Written[P, float]):
    """A formula whose result is a share or a quotient."""


def formula(text: str, source: str, /, **symbols: str) -> Callable[[Callable[P, int]], Formula[P]]:
    """Turn a function into a `Formula`: ``@formula("⌈Ψ/N_d⌉·B", "[ZeRO] §5.1", Ψ="parameters",
    …)``.
    """

    def decorate(function: Callable[P, int]) -> Formula[P]:
        return Formula(function, text, source, symbols)

    return decorate


def ratio(text: str, source: str, /, **symbols: str) -> Callable[[Callable[P, float]], Ratio[P]]:
    """As `formula`, for a function that returns a share or a quotient."""

    def decorate(function: Callable[P, float]) -> Ratio[P]:
        return Ratio(function, text, source, symbols)

    return decorate


def ceil_div(numerator: int, denominator: int) -> int:
    """⌈numerator / denominator⌉ in whole numbers."""
    return -(-numerator // denominator)
