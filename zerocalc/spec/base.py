"""What all parts of a Job share: frozen pydantic models, errors that name a field, names that stand for presets."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from zerocalc import presets
from zerocalc.units import shown


class Spec(BaseModel):
    """Base of everything that a user describes."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False, hide_input_in_errors=True)


class FieldError(ValueError):
    """A value that contradicts another one: ``path`` is the field to blame, relative to the Job (``zero.stage``)."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path


def from_preset(kind: str) -> BeforeValidator:
    """Let a string stand for the preset of that name, or for a user's TOML file."""

    def resolve(value: Any) -> Any:
        return presets.load(kind, value) if isinstance(value, str) else value

    return BeforeValidator(resolve)


def listed(value: Any) -> Any:
    """A list written as one text, ``a,b``, as a list."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def explain(error: ValidationError) -> tuple[str, str]:
    """The first fault of a failed validation, as a dotted field path and one line of text."""
    # A missing or unknown field often comes with follow-up faults; the first is the one to mend.
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"] if not (isinstance(part, str) and "[" in part))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return cause.path, str(cause)
    if isinstance(cause, ValueError):
        return path, str(cause)
    return path, _wording(first)


def _wording(fault: Any) -> str:
    kind, value, context = fault["type"], shown(fault.get("input")), fault.get("ctx", {})
    words: dict[str, Callable[[], str]] = {
        "missing": lambda: "is missing",
        "extra_forbidden": lambda: "is not a known field",
        "literal_error": lambda: f"{value} is not one of {context['expected'].replace(' or ', ', ')}",
        "bool_type": lambda: f"{value} is not true or false",
        "string_type": lambda: f"{value} is not a text",
        "model_type": lambda: f"{value} is neither a name nor a table of fields",
        "dict_type": lambda: f"{value} is not a table of fields",
        "tuple_type": lambda: f"{value} is not a list",
    }
    return words[kind]() if kind in words else f"{value}: {fault['msg'][:1].lower()}{fault['msg'][1:]}"
