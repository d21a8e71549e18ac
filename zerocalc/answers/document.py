"""Results as plain JSON: every object field for field, a formula as its text, a job as its dump."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic_core
from pydantic import BaseModel

from zerocalc.formulas.formula import Written


def plain(value: Any) -> Any:
    """A result as dictionaries, lists, texts and numbers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Written):
        return value.text
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise TypeError(_not_a_result(value))
    return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def to_json(value: Any) -> str:
    """A result as JSON text, symbols as they are. Raises `TypeError` for what is none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        raise TypeError(_not_a_result(value))
    try:
        return pydantic_core.to_json(value, indent=1, inf_nan_mode="null", fallback=plain).decode()
    except pydantic_core.PydanticSerializationError as error:
        raise TypeError(str(error).rpartition("TypeError: ")[2]) from None


def _not_a_result(value: object) -> str:
    return f"to_json takes a result, such as zerocalc.plan(job) gives, not {type(value).__name__}"
