"""What all parts of a Job share: frozen pydantic models, errors that name a field, names that stand
for presets.
"""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from zerocalc import presets
from zerocalc.quantities import shown

LONGEST_PATH = 4096
"""Characters of a field that holds a preset's name or a file's path; what Linux takes at most."""


class Spec(BaseModel):
    """Base of everything that a user describes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


S = TypeVar("S", bound=Spec)


class FieldError(ValueError):
    """A value that contradicts another one: ``path`` is the field to blame, relative to the Job
    (``zero.stage``).
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path


def require(value: object, spec: type[Spec], function: str) -> None:
    """Raise `TypeError`, one line, unless ``value`` is what a public function takes."""
    if not isinstance(value, spec):
        name = f"zerocalc.{spec.__name__}"
        raise TypeError(
            f"{function} takes a {spec.__name__}, not {type(value).__name__}; {name}(...) "
            f"or {name}.model_validate({{...}}) makes one"
        )


def from_preset(kind: str) -> BeforeValidator:
    """Let a string stand for the preset of that name, or for a user's TOML file."""

    def resolve(value: Any) -> Any:
        return presets.load(kind, value) if isinstance(value, str) else value

    return BeforeValidator(resolve)


def read_part(place: str, part: type[S], value: Any) -> S:
    """A part of a job that is validated on its own; ``place`` is its path in the Job.

    Raises `FieldError` with the path of the field at fault.
    """
    try:
        return part.model_validate(value)
    except ValidationError as error:
        path, text = explain(error, part)
        top = place.partition(".")[0]
        whole = path if path.startswith(f"{top}.") else f"{place}.{path}".rstrip(".")
        raise FieldError(whole, text) from None


def listed(value: Any) -> Any:
    """A list written as one text, ``a,b``, as a list."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def items(value: Any) -> list[Any]:
    """The items of a list, of a text such as ``a, b``, or the one value that is neither."""
    if isinstance(value, str):
        return list(value.split(","))
    return list(value) if isinstance(value, (list, tuple)) else [value]


def explain(error: ValidationError, root: type[BaseModel] | None = None) -> tuple[str, str]:
    """The first fault of a failed validation, as a dotted field path and one line of text.

    ``root`` is what was validated; with it an unknown field is answered with the known ones that
    are nearest.
    """
    # A missing or unknown field often comes with follow-up faults; the first is the one to mend.
    first = error.errors(include_url=False)[0]
    *within, last = first["loc"] or ("",)
    places = [part for part in within if not _is_step(part)]
    if first["type"] == "extra_forbidden" or not _is_step(
        last
    ):  # an unknown key can look like anything
        places.append(last)
    if len(places) > 1 and places[-1] in UNION_BRANCHES:
        places.pop()
    path = ".".join(map(str, places))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return cause.path, str(cause)
    if isinstance(cause, ValueError):
        return path, str(cause)
    if first["type"] == "extra_forbidden":
        return path, f"is not a known field{_nearest_fields(root, places)}"
    return path, _wording(first, path)


def _is_step(place: Any) -> bool:
    """Whether a place is no key of the input but a step of pydantic's: ``function-wrap[…]``."""
    return isinstance(place, str) and "[" in place


UNION_BRANCHES = frozenset({"constrained-int", "str"})
"""What pydantic appends to the path of a value that can be of several kinds: the first of these
kinds.
"""
NAMEABLE = frozenset({"model", "gpu", "node", "recipe", "framework"})
"""Fields that a preset's name can stand for."""


def _nearest_fields(root: type[BaseModel] | None, places: list[Any]) -> str:
    """A clause on the fields that could have been meant, or on all that there are where these are
    few.
    """
    spec = root
    for place in places[:-1]:
        if spec is not None and isinstance(place, str):
            field = spec.model_fields.get(place)
            spec = _spec_in(field.annotation) if field else None
    if spec is None:
        return ""
    known = list(spec.model_fields)
    few = f"; the fields are {', '.join(known)}" if len(known) <= MOST_LISTED else ""
    return presets.nearest(shown(places[-1]).strip("'"), known) or few


MOST_LISTED = 8


def _spec_in(annotation: Any) -> type[BaseModel] | None:
    """The class of fields that an annotation holds, be it optional or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((spec for inner in get_args(annotation) if (spec := _spec_in(inner))), None)


def _wording(fault: Any, path: str) -> str:
    value, context = shown(fault.get("input")), fault.get("ctx", {})
    table = (
        "neither a name nor a table of fields"
        if path.rpartition(".")[2] in NAMEABLE
        else "not a table of fields"
    )
    words: dict[str, Callable[[], str]] = {
        "missing": lambda: "is missing",
        "literal_error": lambda: (
            f"{value} is not one of {context['expected'].replace(' or ', ', ')}"
        ),
        "bool_type": lambda: f"{value} is not true or false",
        "string_type": lambda: f"{value} is not a string",
        "string_unicode": lambda: f"{value} has an invalid character",
        "string_too_long": lambda: (
            f"has {len(fault['input']):,} characters; the most is {context['max_length']:,}"
        ),
        "string_too_short": lambda: "is empty",
        "model_type": lambda: f"{value} is {table}",
        "dict_type": lambda: f"{value} is not a table of fields",
        "tuple_type": lambda: f"{value} is not a list",
        "list_type": lambda: f"{value} is not a list",
        "too_long": lambda: (
            f"has {context['actual_length'] or len(fault['input']):,} items; the most is "
            f"{context['max_length']:,}"
        ),
        "too_short": lambda: "is an empty list",
        "int_type": lambda: f"{value} is not a whole number",
        "less_than_equal": lambda: f"{value} is not at most {context['le']:,}",
        "greater_than_equal": lambda: f"{value} is not at least {context['ge']:,}",
    }
    return words[fault["type"]]() if fault["type"] in words else f"{value} has the wrong type"
