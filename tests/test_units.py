"""Texts to numbers and back: exact, one spelling each, and nothing but a number or a line of
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zerocalc import quantities as units

PARSERS: dict[str, tuple[Callable[[object], float], float, float]] = {
    "count": (units.parse_count, 1, units.LARGEST_COUNT),
    "whole": (units.parse_whole, 1, units.LARGEST_WHOLE),
    "bytes": (units.parse_bytes, 0, units.LARGEST_BYTES),
    "memory": (units.parse_memory, 0, units.LARGEST_BYTES),
    "capacity": (units.parse_capacity, units.SMALLEST_AMOUNT, units.LARGEST_BYTES),
    "rate": (units.parse_rate, 1, units.LARGEST_BYTES),
    "flops": (units.parse_flops, 1, units.LARGEST_BYTES),
    "fraction": (units.parse_fraction, 0, 1),
}
"""Each parser with the least and the most it may give."""

SUFFIXES = [
    *units.COUNT_SUFFIXES,
    *units.BYTE_SUFFIXES,
    *units.RATE_SUFFIXES,
    *units.FLOPS_SUFFIXES,
    "Q",
    "b",
    "Gb",
    "%",
    "/s",
    "K",
    "µB",
]

numbers = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.decimals().map(str),
    st.from_regex(r"[+-]?[0-9_]{0,8}\.?[0-9_]{0,8}([eE][+-]?[0-9]{1,5})?", fullmatch=True),
)
before, gaps = (
    st.sampled_from(["", " ", "\n", "-", "+", "−"]),
    st.sampled_from(["", " ", "\t", "\u00a0"]),
)
almost = st.tuples(before, numbers, gaps, st.sampled_from(SUFFIXES)).map("".join)
anything: st.SearchStrategy[Any] = st.one_of(
    st.text(max_size=60),
    almost,
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.decimals(),
    st.fractions(),
    st.complex_numbers(),
)


@pytest.mark.parametrize("kind", PARSERS)
@given(value=anything)
@example(value="1" * 5000)
@example(value="9" * 39)
@example(value=10**5000)
@example(value=-(10**5000))
@example(value="1e999")
@example(value="1e-999")
@example(value="1e400GB")
@example(value=1e300)
@example(value="NaN")
@example(value="sNaN")
@example(value="Infinity")
@example(value="٣")
@example(value="１０")
@example(value="_1")
@example(value="1__0")
@example(value="1_")
@example(value=".")
@example(value="e5")
@example(value=".5e1")
@example(value="0x10")
@example(value="1\n")
@example(value=True)
@example(value=b"10B")
@example(value=-0.0)
def test_a_parser_gives_a_sane_number_or_one_line(kind: str, value: Any) -> None:
    parse, least, most = PARSERS[kind]
    try:
        number = parse(value)
    except ValueError as error:
        line = str(error)
        assert line
        assert "\n" not in line
        assert len(line) < 200
    else:
        assert isinstance(number, float if kind == "fraction" else int)
        assert not isinstance(number, bool)
        assert math.isfinite(number)
        assert least <= number <= most
        assert isinstance(value, (str, int, float))
        assert not isinstance(value, bool)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10B", 10**10),
        ("350M", 350 * 10**6),
        ("7.5B", 75 * 10**8),
        ("7.5e9", 75 * 10**8),
        ("1_000", 1000),
        ("1T", 10**12),
        ("1k", 1000),
        ("1K", 1000),
        ("10b", 10**10),
        (" 10 B ", 10**10),
        ("0.5K", 500),
        ("6.7B", 67 * 10**8),
        ("1e18", 10**18),
        (7.5e9, 75 * 10**8),
        (12, 12),
        ("175.0B", 175 * 10**9),
        ("0.000001M", 1),
        ("1E3", 1000),
        ("123456789.123456789B", 123456789123456789),
    ],
)
def test_counts(text: object, number: int) -> None:
    assert units.parse_count(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("80gb", 80 * 10**9),
        ("80 gib", 80 * 2**30),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1MB", 10**6),
        ("1MiB", 2**20),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("1PB", 10**15),
        ("79.11GiB", math.floor(Fraction("79.11") * 2**30)),
        ("5B", 5),
        ("0GB", 0),
        ("0.1B", 0),
        (80, 80),
    ],
)
def test_bytes(text: object, number: int) -> None:
    assert units.parse_bytes(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("400Gbps", 5 * 10**10),
        ("50GB/s", 5 * 10**10),
        ("3.35TB/s", 335 * 10**10),
        ("1GiB/s", 2**30),
        ("8Kbps", 1000),
        ("400gbps", 5 * 10**10),
    ],
)
def test_rates(text: str, number: int) -> None:
    assert units.parse_rate(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("989TFLOPS", 989 * 10**12), ("1.5PFLOPS", 15 * 10**14), ("312tflops", 312 * 10**12)],
)
def test_flops(text: str, number: int) -> None:
    assert units.parse_flops(text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("4096", 4096), (" 8 ", 8), ("1_024", 1024), (8.0, 8), (8, 8)]
)
def test_wholes(text: object, number: int) -> None:
    assert units.parse_whole(text) == number


@pytest.mark.parametrize(
    "text",
    ["80", "80Gb", "80Gbps", "80GB/s", "eighty", "80 G", "80G", "GB", "80GBs", "80GB 2GB", "80iB"],
)
def test_an_amount_of_memory_needs_its_unit(text: str) -> None:
    with pytest.raises(ValueError, match=r"80GB \(1e9\) or 80GiB \(2\^30\)"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["50GB", "50", "50Gb", "50GiBps", "50Gb/s"])
def test_a_rate_is_per_second(text: str) -> None:
    with pytest.raises(ValueError, match="400Gbps or 50GB/s"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("-3", "negative"),
        ("-10B", "negative"),
        ("1e19", "too large"),
        ("0", "not at least 1"),
        ("0.5", "not a whole number"),
    ],
)
def test_the_line_says_what_is_wrong(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        units.parse_count(text)


@pytest.mark.parametrize(
    "parse", [units.parse_memory, units.parse_capacity, units.parse_rate, units.parse_flops]
)
@pytest.mark.parametrize("value", [47, 80, 0.47, 80.0, 999_999])
def test_a_bare_number_too_small_for_a_machine_has_lost_its_unit(
    parse: Callable[[object], int], value: float
) -> None:
    with pytest.raises(
        ValueError, match=r"is less than 1 M.*; wanted: .*such as|is not at least 1"
    ):
        parse(value)
    assert parse(10**9) == 10**9


@pytest.mark.parametrize("text", ["1__0", "_1", "1_", "1_.5", "1._5"])
def test_underscores_stand_between_digits(text: str) -> None:
    for parse in (units.parse_count, units.parse_whole):
        with pytest.raises(ValueError, match=r"is not a"):
            parse(text)
    with pytest.raises(ValueError, match="is not an amount"):
        units.parse_bytes(f"{text}GB")


@given(st.integers(1, units.LARGEST_COUNT))
def test_any_spelling_of_a_count_is_exact(number: int) -> None:
    assert units.parse_count(str(number)) == units.parse_count(number) == number
    assert units.parse_count(f"{number:_}") == number
    assert units.parse_count(f"{Decimal(number).scaleb(-9):f}B") == number


@given(st.integers(0, 10**8), st.sampled_from(sorted(units.BYTE_SUFFIXES)))
def test_bytes_are_exact_and_rounded_down(thousandths: int, suffix: str) -> None:
    text = f"{thousandths // 1000}.{thousandths % 1000:03d}"
    assert units.parse_bytes(text + suffix) == math.floor(
        Fraction(text) * units.BYTE_SUFFIXES[suffix]
    )


@given(st.integers(1, units.LARGEST_COUNT))
def test_a_count_is_shown_to_within_its_digits(number: int) -> None:
    text = units.format_count(number)
    assert len(text) <= 10
    assert "1000" not in text
    again = units.parse_count(text)
    assert abs(again - number) <= 0.005 * number + 0.5


@given(st.integers(0, 10**24), st.sampled_from([units.GB, units.GIB, 1000, 1024]))
def test_a_figure_keeps_two_decimals_or_two_digits(number: int, size: int) -> None:
    shown = float(units.figure(number, size).replace(",", ""))
    exact = number / size
    assert shown == pytest.approx(
        exact, rel=0.06 if exact < 0.005 else 1e-9, abs=0.0 if exact < 0.005 else 0.00501
    )
    assert (shown == 0) == (number == 0)


@given(st.integers(0, 10**21), st.booleans())
def test_a_table_reads_well_in_its_unit(largest: int, binary: bool) -> None:
    name, meaning, size = units.byte_unit(largest, binary)
    base = 1024 if binary else 1000
    assert size == (1 if name == "bytes" else units.parse_bytes(f"1{name}"))
    assert largest < 100 * base * size or name[0] == "P"
    assert largest >= units.LEAST_OF_A_UNIT * size or size == 1
    assert meaning == (
        "1" if size == 1 else f"2^{size.bit_length() - 1}" if binary else f"1e{len(str(size)) - 1}"
    )


@given(st.one_of(st.text(), st.integers(), st.lists(st.text()), st.floats(), st.none()))
def test_a_value_is_quoted_in_one_short_line(value: object) -> None:
    text = units.shown(value)
    assert len(text) <= 40
    assert text.isprintable() or "\n" not in text


def test_a_number_of_thousands_of_digits_is_quoted_in_words() -> None:
    assert units.shown(10**5000) == "a number of thousands of digits"
