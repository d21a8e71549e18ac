"""Text such as "7.5B", "80GiB" or "400Gbps" to plain numbers and back.

The only module that knows suffixes. Everything else in the library works in parameters, elements,
bytes, FLOPs and seconds. All parsing is exact (decimal, then integer). Every ``parse_…`` raises
`ValueError`, with one line that says what is expected, for anything else.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

from pydantic_core.core_schema import no_info_before_validator_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetCoreSchemaHandler
    from pydantic_core.core_schema import CoreSchema

GB = 10**9
GIB = 2**30
BITS = 8
"""Bits per byte."""

COUNT_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
BYTE_SUFFIXES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
RATE_SUFFIXES = {
    **{f"{suffix}/s": factor for suffix, factor in BYTE_SUFFIXES.items()},
    **{f"{prefix}bps": Decimal(1000**power) / BITS for power, prefix in enumerate("KMGT", start=1)},
}
FLOPS_SUFFIXES = {"GFLOPS": 10**9, "TFLOPS": 10**12, "PFLOPS": 10**15}

LARGEST_COUNT = 10**18
"""The bound of counts (parameters, elements, tokens); larger numbers are typing errors."""
LARGEST_WHOLE = 10**9
"""The bound of dimensions and degrees (layers, hidden size, sequence length, GPUs)."""
LARGEST_BYTES = 10**21
"""The bound of memory [bytes], bandwidth [bytes/s] and compute [FLOP/s]."""
SMALLEST_AMOUNT = 10**6
"""The least memory [bytes], bandwidth [bytes/s] and compute [FLOP/s] of a machine; a smaller number
lacks its unit.
"""

_NUMBER = re.compile(
    r"\s*(?P<number>(?:\d+(?:_\d+)*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(?P<suffix>[A-Za-z/]*)\s*",
    re.ASCII,
)
_LONGEST_SHOWN = 40
_MEMORY, _RATE, _FLOPS = (
    "an amount of memory such as 80GB (1e9) or 80GiB (2^30)",
    "a bandwidth such as 400Gbps or 50GB/s",
    "a speed such as 989TFLOPS",
)


def shown(value: object) -> str:
    """A value as errors quote it: spelled as in a file, in at most 40 characters."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    spelled = getattr(value, "isoformat", None)  # a date or a time of TOML or YAML
    try:
        text = spelled() if spelled else repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not spell
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _split(value: str) -> tuple[Decimal, str] | None:
    match = _NUMBER.fullmatch(value) if len(value) <= _LONGEST_SHOWN else None
    return None if match is None else (Decimal(match["number"].replace("_", "")), match["suffix"])


def _look_up(suffix: str, suffixes: dict[str, Any]) -> Any:
    """The factor of a suffix; ``None`` if unknown. Lower or upper case throughout is accepted, if
    that is unambiguous: b and B are bits and bytes.
    """
    if suffix in suffixes:
        return suffixes[suffix]
    same = [known for known in suffixes if suffix in (known.lower(), known.upper())]
    return suffixes[same[0]] if len(same) == 1 else None


def _scaled(value: object, suffixes: dict[str, Any], wanted: str, largest: int) -> int:
    if isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not {wanted}")
    if isinstance(value, int):
        number: Decimal | int = value
    elif isinstance(value, float):
        # A JSON number such as 7.5e9; nan and infinity have no digits and are refused below.
        if not math.isfinite(value):
            raise ValueError(f"{shown(value)} is not {wanted}")
        number = Decimal(repr(value))
    elif isinstance(value, str):
        parts = _split(value)
        if parts is None:
            negative = value.strip().startswith("-") and _split(value.strip()[1:]) is not None
            raise ValueError(
                f"{shown(value)} is negative; wanted: {wanted}"
                if negative
                else f"{shown(value)} is not {wanted}"
            )
        amount, suffix = parts
        factor = _look_up(suffix, suffixes)
        if factor is None:
            raise ValueError(f"{shown(value)} is not {wanted}")
        number = amount * factor
    else:
        raise ValueError(f"{shown(value)} is not {wanted}")
    if number < 0:
        raise ValueError(f"{shown(value)} is negative; wanted: {wanted}")
    if number > largest:
        raise ValueError(f"{shown(value)} is too large: the most is {largest:,}")
    return int(number) if number == int(number) else _not_whole(value, number, suffixes)


def _not_whole(value: object, number: Decimal | int, suffixes: dict[str, Any]) -> int:
    if suffixes is COUNT_SUFFIXES:
        raise ValueError(f"{shown(value)} is not a whole number")
    return int(number)  # a fraction of a byte, as in 79.11GiB: rounded down


def parse_count(value: object) -> int:
    """A number of parameters, elements or tokens, at least 1 and at most `LARGEST_COUNT`, from a
    number or a text such as ``7.5B``.

    >>> parse_count("7.5B"), parse_count("1_000"), parse_count("7.5e9")
    (7500000000, 1000, 7500000000)
    """
    return _positive(
        value, _scaled(value, COUNT_SUFFIXES, "a count such as 10B, 350M or 7.5e9", LARGEST_COUNT)
    )


def parse_whole(value: object) -> int:
    """A dimension or a degree: a whole number of at least 1 and at most `LARGEST_WHOLE`.

    >>> parse_whole("4096")
    4096
    """
    if isinstance(value, str) and not re.fullmatch(r"\s*-?\d+(?:_\d+)*\s*", value, re.ASCII):
        raise ValueError(f"{shown(value)} is not a whole number")
    return _positive(value, _scaled(value, COUNT_SUFFIXES, "a whole number", LARGEST_WHOLE))


def _positive(value: object, number: int) -> int:
    if number == 0:
        raise ValueError(f"{shown(value)} is not at least 1")
    return number


def parse_bytes(value: object) -> int:
    """An amount of memory [bytes], at most `LARGEST_BYTES`; a text needs a unit, a number is in
    bytes. Rounded down to whole bytes.

    >>> parse_bytes("80GB"), parse_bytes("80GiB")
    (80000000000, 85899345920)
    """
    return _scaled(value, BYTE_SUFFIXES, _MEMORY, LARGEST_BYTES)


def parse_memory(value: object) -> int:
    """As `parse_bytes`, for a part of a machine: 0, or at least 1 MB.

    >>> parse_memory("0.47GiB"), parse_memory(0)
    (504658657, 0)
    """
    number = parse_bytes(value)
    return 0 if value == 0 else _of_a_machine(value, number, "1 MB", _MEMORY)


def parse_capacity(value: object) -> int:
    """As `parse_bytes`, for a machine's capacity: at least 1 MB."""
    return _of_a_machine(value, _positive(value, parse_bytes(value)), "1 MB", _MEMORY)


def _of_a_machine(value: object, number: int, least: str, wanted: str) -> int:
    """Refuse what is too small for a machine, such as 80 for 80 GB."""
    if number < SMALLEST_AMOUNT:
        raise ValueError(f"{shown(value)} is less than {least}; wanted: {wanted}")
    return number


def parse_rate(value: object) -> int:
    """A bandwidth [bytes/s]; a text needs a unit, a number is in bytes/s and at least 1 MB/s.

    >>> parse_rate("400Gbps"), parse_rate("50GB/s")
    (50000000000, 50000000000)
    """
    number = _positive(value, _scaled(value, RATE_SUFFIXES, _RATE, LARGEST_BYTES))
    return number if isinstance(value, str) else _of_a_machine(value, number, "1 MB/s", _RATE)


def parse_flops(value: object) -> int:
    """A compute rate [FLOP/s]; a text needs a unit, a number is in FLOP/s and at least 1 MFLOPS.

    >>> parse_flops("989TFLOPS")
    989000000000000
    """
    number = _positive(value, _scaled(value, FLOPS_SUFFIXES, _FLOPS, LARGEST_BYTES))
    return number if isinstance(value, str) else _of_a_machine(value, number, "1 MFLOPS", _FLOPS)


def parse_fraction(value: object) -> float:
    """A fraction of at least 0 and below 1.

    >>> parse_fraction("0.1")
    0.1
    """
    wanted = "a share of at least 0 and below 1, such as 0.1"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{shown(value)} is not {wanted}")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = -1.0
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{shown(value)} is not {wanted}")
    return number


class Parsed:
    """As pydantic's BeforeValidator, for functions of one argument, whose signature need not be
    inspected for every field.
    """

    __slots__ = ("parse",)

    def __init__(self, parse: Callable[[object], object]) -> None:
        self.parse = parse

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_before_validator_function(self.parse, handler(source))


Count = Annotated[int, Parsed(parse_count)]
Whole = Annotated[int, Parsed(parse_whole)]
Bytes = Annotated[int, Parsed(parse_memory)]
Capacity = Annotated[int, Parsed(parse_capacity)]
Rate = Annotated[int, Parsed(parse_rate)]
Flops = Annotated[int, Parsed(parse_flops)]
Fraction = Annotated[float, Parsed(parse_fraction)]


def format_count(number: int) -> str:
    """A count with a suffix, at most three digits before the point and two after it.

    >>> (format_count(7_500_000_000), format_count(999_999_999_999), format_count(999),
    ...     format_count(10**18))
    ('7.5B', '1T', '999', '1e18')
    """
    if number < 1000:
        return str(number)
    for suffix in ("K", "M", "B", "T"):
        amount = f"{number / COUNT_SUFFIXES[suffix]:.2f}"
        if float(amount) < 1000:
            return amount.rstrip("0").rstrip(".") + suffix
    return f"{number:.3g}".replace("e+", "e")


def format_multiple(value: float, digits: int) -> str:
    """A multiple, such as of Ψ, in ``digits`` significant digits; large ones are not written as
    powers of ten.

    >>> format_multiple(1.5, 3), format_multiple(500_000, 3), format_multiple(2.0, 4)
    ('1.5', '500,000', '2')
    """
    return f"{value:,.0f}" if value >= 10**digits else f"{value:.{digits}g}"


def format_gib(number: int) -> str:
    """A number of bytes in GiB, with two decimals (`figure`).

    >>> format_gib(85_899_345_920)
    '80.00 GiB'
    """
    return f"{figure(number, GIB)} GiB"


def format_rate(bytes_per_second: float) -> str:
    """A bandwidth [bytes/s] in GB/s, with one decimal.

    >>> format_rate(50_000_000_000)
    '50.0 GB/s'
    """
    return f"{bytes_per_second / GB:,.1f} GB/s"


def figure(number: float, size: float) -> str:
    """``number`` in units of ``size``, with two decimals, or with two significant digits if those
    would read 0.00.

    >>> figure(41_875_000_000, GB), figure(160_000, GB)
    ('41.88', '0.00016')
    """
    value = number / size
    return f"{value:,.2f}" if value == 0 or abs(value) >= 0.005 else f"{value:.2g}"


LEAST_OF_A_UNIT = 2.5
"""A table's largest cell has at least this much of the unit; else the next smaller unit is used, so
that the other cells keep more than one digit.
"""


def byte_unit(largest: int, binary: bool, least: float = LEAST_OF_A_UNIT) -> tuple[str, str, int]:
    """The unit of a table whose largest cell is ``largest`` bytes: (name, meaning, bytes). The cell
    is at least ``least`` units; ``binary`` chooses powers of 1024 over powers of 1000.

    >>> byte_unit(160_000_000_000, binary=False), byte_unit(16_000, binary=True)
    (('GB', '1e9', 1000000000), ('KiB', '2^10', 1024))
    """
    base = 1024 if binary else 1000
    power = 3
    while power > 0 and largest < least * base**power:
        power -= 1
    while power < 5 and largest >= 100 * base ** (power + 1):
        power += 1
    prefix = "BKMGTP"[power]
    if power == 0:
        return "bytes", "1", 1
    return (
        (f"{prefix}iB", f"2^{10 * power}", base**power)
        if binary
        else (f"{prefix}B", f"1e{3 * power}", base**power)
    )
