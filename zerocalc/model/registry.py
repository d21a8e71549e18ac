"""Steps: modules of a kind, with values that the kind takes; what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from zerocalc import presets
from zerocalc.ledger import record, replaced
from zerocalc.model.kind import Kind
from zerocalc.model.kinds import FILES, kind_of
from zerocalc.model.module import Component, Module, SavedRow
from zerocalc.spec.base import FieldError

if TYPE_CHECKING:
    from zerocalc.spec.stack import ModuleSpec

LONGEST_SHOWN = 40


@record
class Step:
    """One module of a forward pass; ``fields`` is the record that its kind makes of ``values``."""

    kind: Kind
    type: str
    name: str
    values: Mapping[str, Any]
    fields: Any
    component: Component | None = None
    unquantised: tuple[str, ...] = ()
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()


Steps: TypeAlias = Sequence[Step]


def step(type: str, name: str, values: Mapping[str, Any]) -> Step:
    """A module of a known kind, with values that the kind takes."""
    kind = kind_of(type)
    return Step(kind, type, name, values, kind.read(values))


def listed(specs: Iterable[ModuleSpec]) -> Steps:
    """Modules that a user wrote, or a file. Raises `FieldError` as `check` does."""
    check(specs)
    return [
        replaced(
            step(spec.type, spec.name, spec.values),
            component=spec.component,
            unquantised=spec.unquantised,
            tensors=tuple(spec.tensors.items()),
        )
        for spec in specs
    ]


def written(step: Step, saved: tuple[SavedRow, ...]) -> list[Module]:
    """The modules that a step stands for, with what it saves."""
    kind = step.kind
    if kind.modules is not None:
        return kind.modules(step, saved)
    return [
        Module(
            step.name,
            step.component or kind.component,
            kind.weights(step.fields),
            saved,
            unquantised=step.unquantised,
            **kind.facts(step.fields),
        )
    ]


def check(specs: Iterable[ModuleSpec]) -> None:
    """Raises `FieldError` where a module is of no kind that there is, or its values are not those
    that its kind takes.
    """
    for spec in specs:
        if spec.type not in FILES:
            raise FieldError(
                "model.stack",
                f"{spec.name}: {spec.type!r} is not a kind of module"
                f"{presets.nearest(spec.type, list(FILES))}",
            )
        if fault := _fault(spec.type, spec.values):
            raise FieldError("model.stack", f"{spec.type} {spec.name}: {fault}")


def _fault(name: str, values: Mapping[str, Any]) -> str | None:
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
