"""One config, whose keys are read by type; a value of another type is refused in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from zerocalc.huggingface.key_types import spelled
from zerocalc.presets import PresetError
from zerocalc.quantities import parse_fraction, parse_whole, shown

DTYPES = {
    **dict.fromkeys(("float64", "double"), "fp64"),
    **dict.fromkeys(("float32", "float"), "fp32"),
    "bfloat16": "bf16",
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "fp8"),
}
"""PyTorch's names of the types in which weights are stored."""
WAYS_OUT = "give --params for the states alone, or --count-with transformers"
NO_MODEL_TYPE = "model_type is missing; this is no config.json of a Hugging Face model"
_LONGEST_TITLE = 200


class Reader:
    """Reads one config. ``name`` is what errors call it, ``notes`` what was taken on trust."""

    def __init__(self, table: Mapping[str, Any], name: str) -> None:
        self.table, self.name = table, name
        self.notes: list[str] = []

    def refuse(self, key: str, text: str) -> NoReturn:
        """Raise `PresetError`, one line that names the key."""
        raise PresetError(f"{self.name}: {quoted(key)}: {text}")

    def switch(self, key: str) -> bool:
        """True or false."""
        value = self.table[key]
        if not isinstance(value, bool):
            self.refuse(key, f"{spelled(value)} is not true or false")
        return value

    def whole(self, key: str) -> int:
        """A whole number of at least 1."""
        value = self.table[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or (isinstance(value, float) and not value.is_integer())
        ):
            self.refuse(key, f"{spelled(value)} is not a whole number")
        try:
            return parse_whole(value)
        except ValueError as error:
            self.refuse(key, f"{spelled(value)} is not at least 1" if value < 0 else str(error))

    def rate(self, key: str, default: float) -> float:
        """A rate of dropout: a number from 0 up to 1; null is no dropout."""
        value = self.table.get(key, default)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, f"{spelled(value)} is not a fraction from 0 up to 1, such as 0.1")
        try:
            return parse_fraction(value)
        except ValueError as error:
            self.refuse(key, str(error))

    def dtype(self) -> str | None:
        """The type in which a checkpoint is stored, where the config or its text model's says
        so.
        """
        nested = self.table.get("text_config")
        for table in (self.table, nested if isinstance(nested, dict) else {}):
            for key in ("dtype", "torch_dtype"):
                value = table.get(key)
                if value is None or value == "auto":
                    continue
                if not isinstance(value, str) or value.removeprefix("torch.") not in DTYPES:
                    self.refuse(
                        key,
                        f"{spelled(value)} is not a dtype that weights are kept in, such "
                        "as bfloat16 or float32",
                    )
                return DTYPES[value.removeprefix("torch.")]
        return None

    def title(self, model_type: str) -> str:
        """What the config says it was loaded from, or its family."""
        given = given_title(self.table)
        if given is not None:
            return given
        titled = f"{model_type} ({self.name})"
        return titled if len(titled) <= _LONGEST_TITLE else model_type


def given_title(table: Mapping[str, Any]) -> str | None:
    """What a config says it was loaded from, if that is a title."""
    given = table.get("_name_or_path")
    usable = (
        isinstance(given, str)
        and given.strip()
        and given.isprintable()
        and len(given) <= _LONGEST_TITLE
    )
    return str(given).strip() if usable else None


def quoted(key: str) -> str:
    """A key as a line quotes it."""
    return key if key.isprintable() and len(key) <= 40 else shown(key)
