"""The dimensions of a kind of `Model`, as a family's file takes them from a config.

They are stricter than what a list of modules reads: null is refused unless the file allows it, two
spellings must agree, and a default that is a size is noted.
"""

from __future__ import annotations

from typing import Any

from zerocalc.huggingface.expressions import ExpressionError, evaluate, names_in
from zerocalc.huggingface.family_file import FamilyFile
from zerocalc.huggingface.key_types import check_lists, check_sizes, spelled
from zerocalc.huggingface.reader import Reader

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
"""Layers whose tensors are those of any attention; with flash attention what they save is too."""


def dimensions(reader: Reader, file: FamilyFile) -> dict[str, Any]:
    """The fields of `Model` that the file's ``dimensions`` and ``dropouts`` describe.

    Raises `PresetError` or `ExpressionError` where a key is missing or holds no such value.
    """
    _check_layer_types(reader)
    check_sizes(reader.table)
    check_lists(reader.table)
    keys = [
        key
        for expression in file.dimensions.values()
        if isinstance(expression, str)
        for key in sorted(names_in(expression))
    ]
    names = {key: _value(reader, file, key) for key in dict.fromkeys(keys)}
    fields = {field: evaluate(value, names) for field, value in file.dimensions.items()}
    return {"kind": file.kind, **fields, "dropout": _dropout(reader, file)}


def spelling(reader: Reader, file: FamilyFile, field: str) -> str | None:
    """The key, as the config spells it, that one of the dimensions is read from."""
    expression = file.dimensions.get(field)
    if not isinstance(expression, str):
        return None
    key = min(names_in(expression))
    return next(iter(_given(reader, file, key)), key)


def _given(reader: Reader, file: FamilyFile, key: str) -> list[str]:
    """The spellings of a key that the config uses."""
    return [name for name in (key, *file.aliases.get(key, ())) if name in reader.table]


def _value(reader: Reader, file: FamilyFile, key: str) -> Any:
    """The value of one key; ``None`` leaves it to `Model`."""
    given, default = _given(reader, file, key), file.defaults.get(key)
    if not given:
        return _absent(reader, file, key)
    if isinstance(default, str):
        return reader.table[given[0]]
    read = reader.switch if isinstance(default, bool) else reader.whole
    values = [
        None if reader.table[name] is None and key in file.nullable else read(name)
        for name in given
    ]
    for name, value in zip(given, values, strict=True):
        if value != values[0]:
            reader.refuse(name, f"{value} contradicts {given[0]} {values[0]}")
    return values[0]


def _absent(reader: Reader, file: FamilyFile, key: str) -> Any:
    """What a key stands for that the config does not give."""
    if key in file.optional:
        return None
    if key not in file.defaults:
        raise ExpressionError(f"{key} is missing", key)
    default = file.defaults[key]
    if isinstance(default, int) and not isinstance(default, bool):
        reader.notes.append(f"{key} is not given; {default} ({file.architectures[0]}'s default)")
    return default


def _check_layer_types(reader: Reader) -> None:
    """Refuse layers that differ in more than their masks."""
    types = reader.table.get("layer_types")
    if types is None:
        return
    if not isinstance(types, list):
        reader.refuse("layer_types", f"{spelled(types)} is not a list of names")
    for kind in types:
        if not isinstance(kind, str) or kind not in LAYER_TYPES:
            reader.refuse(
                "layer_types",
                f"{spelled(kind)} is not counted yet; {' and '.join(sorted(LAYER_TYPES))} are",
            )


def _dropout(reader: Reader, file: FamilyFile) -> float:
    """The one rate of dropout that `Model` has; memory depends only on whether it is zero."""
    rates = {key: reader.rate(key, file.defaults[key]) for key in file.dropouts}
    if file.kind != "gpt2":
        reader.notes.extend(
            f"{key} {rate:g}: its masks are not counted (flash attention keeps none)"
            for key, rate in rates.items()
            if rate
        )
        return 0.0
    largest = max(rates.values(), default=0.0)
    if len(set(rates.values())) > 1:
        reader.notes.append(
            f"dropout {largest:g} everywhere "
            f"({', '.join(f'{key} {rate:g}' for key, rate in rates.items())})"
        )
    return largest
