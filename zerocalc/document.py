"""Results as plain JSON: every object field for field, a formula as its text, a job as its dump."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic_core
from pydantic import BaseModel

from zerocalc.formulas.formula import Formula


def plain(value: Any) -> Any:
    """A result as dictionaries, lists, texts and numbers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Formula):
        return value.text
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def to_json(value: Any) -> str:
    """A result as JSON text, symbols as they are."""
    return pydantic_core.to_json(value, indent=1, inf_nan_mode="null", fallback=plain).decode()
