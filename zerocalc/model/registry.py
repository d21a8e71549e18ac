"""A step's modules: their tensors are those of the step's kind, for the values that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from zerocalc import presets
from zerocalc.model.kind import Facts
from zerocalc.model.kinds import FILES, kind_of
from zerocalc.model.module import Module, SavedRow
from zerocalc.spec.base import FieldError

LONGEST_SHOWN = 40


def written(step: Any, saved: tuple[SavedRow, ...]) -> list[Module]:
    """The modules that a step stands for, with what it saves."""
    kind, values = kind_of(step.type), step.values
    if kind.modules is not None:
        several: list[Module] = kind.call(kind.modules, values, step, saved)
        return several
    facts: Facts = kind.call(kind.facts, values) if kind.facts else {}
    return [
        Module(
            step.name,
            step.component or kind.component,
            kind.call(kind.weights, values),
            saved,
            unquantised=step.unquantised,
            **facts,
        )
    ]


def check(steps: Iterable[Any]) -> None:
    """Raises `FieldError` where a step is of no kind that there is, or its values are not those
    that its kind takes.
    """
    for step in steps:
        if step.type not in FILES:
            raise FieldError(
                "model.stack",
                f"{step.name}: {step.type!r} is not a kind of module"
                f"{presets.nearest(step.type, list(FILES))}",
            )
        if fault := _fault(step.type, step.values):
            raise FieldError("model.stack", f"{step.type} {step.name}: {fault}")


def _fault(name: str, values: dict[str, Any]) -> str | None:
    """What is wrong with a module's values, in the words of the one who wrote them."""
    kind, known = kind_of(name), _known(name)
    for key in kind.sizes:
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{key} is {'missing' if value is None else f'{value!r}, not at least 1'}"
    for key, value in values.items():
        if key not in known:
            return (
                f"{key[:LONGEST_SHOWN]!r} is not one of its values"
                f"{presets.nearest(key, sorted(known))}"
            )
        words = kind.words.get(key)
        if isinstance(value, str) and value not in (words or ()):
            return f"{key} is {value!r}, not {' or '.join(words or ('a number',))}"
        if words and not isinstance(value, str):
            return f"{key} is {value!r}, not {' or '.join(words)}"
    lacking = next((key for key, needed in known.items() if needed and key not in values), None)
    return f"{lacking} is missing" if lacking else None


@cache
def _known(name: str) -> dict[str, bool]:
    return kind_of(name).known()
