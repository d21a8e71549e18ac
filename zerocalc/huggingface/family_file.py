"""A family's file: which keys of a config it reads, and the modules or the dimensions that follow
from them, as expressions.

The file is data (``presets/families``); here is the one reader of them all. A layer's modules may
depend on its index ``i``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from zerocalc import presets
from zerocalc.huggingface.expressions import ExpressionError, evaluate, names_in
from zerocalc.huggingface.key_types import check_keys, spelled
from zerocalc.model.registry import check
from zerocalc.spec.base import Spec
from zerocalc.spec.dimensions import ModelKind
from zerocalc.spec.implementation import UNKNOWN
from zerocalc.spec.stack import Group, ModuleSpec, Stack

MOST_LAYERS = 10_000
MAYBE_LISTS = re.compile(r"is_list\((\w+)\)")
"""Sizes that an expression takes one by one or as a list."""
RESERVED = frozenset({"type", "name", "component", "when", "times", "tensors", "unquantised"})
Expression = str | int | bool
Places = tuple[tuple[int, ...], ...]
"""The numbers of the layers that are alike, group by group."""


class Entry(Spec):
    """One module of a family: values and tensors are expressions; ``when`` says whether it exists,
    ``times`` how often.
    """

    type: str
    name: str = ""
    component: str | None = None
    when: Expression = True
    times: Expression = 1
    tensors: dict[str, list[Expression]] = Field(default_factory=dict)
    unquantised: list[str] = Field(default_factory=list)
    values: dict[str, Expression] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _values(cls, data: Any) -> Any:
        """All keys that are no reserved word are sizes and switches of the module's type."""
        if not isinstance(data, dict) or "values" in data:
            return data
        values = {key: value for key, value in data.items() if key not in RESERVED}
        return {**{key: value for key, value in data.items() if key in RESERVED}, "values": values}


class Note(Spec):
    """What a reader should know of some configs only: those of which ``when`` is true."""

    text: str
    when: Expression


class LayerList(Spec):
    """Layers of one kind of stack: how many, and their modules, which may differ with ``i``."""

    count: Expression
    name: str = "layer"
    modules: list[Entry]


class FamilyFile(Spec):
    """What a file under ``presets/families`` holds."""

    title: str
    source: str
    model_types: Annotated[list[str], Field(min_length=1)]
    architectures: Annotated[list[str], Field(min_length=1)]
    required: list[str] = Field(default_factory=list)
    optional: list[str] = Field(default_factory=list)
    defaults: dict[str, Any] = Field(default_factory=dict)
    aliases: dict[str, list[str]] = Field(default_factory=dict)
    neutral: list[str] = Field(default_factory=list)
    refuse: dict[str, str] = Field(default_factory=dict)
    let: dict[str, Expression] = Field(default_factory=dict)
    positions: Expression | None = None
    """The longest sequence for which the class keeps positions in a table; none where they are
    computed.
    """
    notes: list[str | Note] = Field(default_factory=list)
    activations: Expression = False
    """Whether the order of the modules and their values say what the layers keep for backward,
    perhaps of some configs only; compared with the class's own.
    """
    before: list[Entry] = Field(default_factory=list)
    layers: list[LayerList] = Field(default_factory=list)
    after: list[Entry] = Field(default_factory=list)
    kind: ModelKind | None = None
    """The kind of `Model` that the classes are, where its dimensions say all and no modules are
    written out.
    """
    dimensions: dict[str, Expression] = Field(default_factory=dict)
    """The fields of a `Model` of that kind."""
    nullable: list[str] = Field(default_factory=list)
    """Keys of dimensions that may be null, which stands for the kind's own default."""
    dropouts: list[str] = Field(default_factory=list)
    """Keys of a kind's rates of dropout."""

    @model_validator(mode="after")
    def _one_description(self) -> Self:
        of_a_kind = self.kind is not None
        modules = self.before or self.layers or self.after
        others = modules if of_a_kind else self.nullable or self.dropouts
        if bool(self.dimensions) != of_a_kind or others:
            raise ValueError("a family has a kind with its dimensions, or modules")
        return self

    def known_keys(self) -> frozenset[str]:
        """Every key of a config that the file knows: what its expressions read, of nested tables
        too, and what changes nothing.
        """
        nested = {
            key for table in self.defaults.values() if isinstance(table, Mapping) for key in table
        }
        spellings = {spelling for others in self.aliases.values() for spelling in others}
        return frozenset(
            self.read()
            | nested
            | spellings
            | {
                *self.required,
                *self.optional,
                *self.defaults,
                *self.aliases,
                *self.neutral,
                *self.refuse,
            }
        )

    def read(self) -> frozenset[str]:
        """The keys that the file's expressions read, those of nested tables too."""
        return frozenset().union(*(names_in(expression) for expression in self.expressions()))

    def expressions(self) -> Iterator[str]:
        """All expressions of the file."""
        conditions = [note.when for note in self.notes if isinstance(note, Note)]
        return _expressions(
            [
                self.let,
                self.positions,
                self.activations,
                conditions,
                self.before,
                self.layers,
                self.after,
                self.dimensions,
            ]
        )

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse values that the keys which the expressions read cannot hold, by their key; raises
        `ExpressionError`.
        """
        tables = {
            spelling: self.defaults[key]
            for key, others in self.aliases.items()
            if key in self.defaults
            for spelling in others
        }
        read = self.read() | {spelling for others in self.aliases.values() for spelling in others}
        arguments = {
            argument
            for expression in self.expressions()
            for argument in MAYBE_LISTS.findall(expression)
        }
        lists = {key for key in read if any(argument.endswith(key) for argument in arguments)}
        check_keys(config, read, {**self.defaults, **tables}, lists)

    def names(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The names that the file's expressions see: the config's keys under their first spelling,
        defaults, then ``let``.

        Raises `ExpressionError` where a required key is missing or a value fits no expression.
        """
        names: dict[str, Any] = dict.fromkeys(self.optional)
        names.update(_merged(self.defaults, config))
        for key, spellings in self.aliases.items():
            given = [spelling for spelling in (key, *spellings) if spelling in config]
            if given:
                names[key] = config[given[0]]
        for key in self.required:
            if all(config.get(spelling) is None for spelling in (key, *self.aliases.get(key, ()))):
                raise ExpressionError(f"{key} is missing", key)
        for key, expression in self.let.items():
            names[key] = evaluate(expression, names)
        return names

    def noted(self, config: Mapping[str, Any]) -> list[str]:
        """What a reader of this config should know."""
        names = self.names(config) if self.notes else {}
        return [
            note if isinstance(note, str) else note.text
            for note in self.notes
            if isinstance(note, str) or evaluate(note.when, names)
        ]

    def stack(self, config: Mapping[str, Any]) -> Stack:
        """The modules that a config describes."""
        return self.placed(config)[0]

    def placed(self, config: Mapping[str, Any]) -> tuple[Stack, Places]:
        """The modules that a config describes, and which layers each group stands for. Raises
        `FieldError` where a module's kind does not take its values.
        """
        self.check(config)
        names = self.names(config)
        found = [group for layers in self.layers for group in _grouped(layers, names)]
        groups = tuple(Group(count=len(places), modules=modules) for places, modules in found)
        before, after = tuple(_modules(self.before, names)), tuple(_modules(self.after, names))
        modules = (*before, *(module for group in groups for module in group.modules), *after)
        check(modules)
        known = bool(evaluate(self.activations, names)) and all(
            UNKNOWN not in module.values.values() for module in modules
        )
        positions = evaluate(self.positions, names)
        longest = (
            None if positions is None else _dimension(positions, self.positions or "positions")
        )
        stack = Stack(
            activations=known, positions=longest, before=before, groups=groups, after=after
        )
        return stack, tuple(places for places, _ in found)


def _expressions(part: Any) -> Iterator[str]:
    """All expressions in a part of the file."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Entry):
        yield from _expressions(
            [part.when, part.times, *part.values.values(), *part.tensors.values()]
        )
    elif isinstance(part, LayerList):
        yield from _expressions([part.count, part.modules])
    elif isinstance(part, Mapping):
        yield from _expressions(list(part.values()))
    elif isinstance(part, list):
        for item in part:
            yield from _expressions(item)


def find(model_type: str, architectures: list[str]) -> FamilyFile | None:
    """The file of a model type; ``None`` where there is none.

    Of several it is the one that counts a class named in ``architectures``, or else the one called
    like the type: its causal language model.
    """
    others: list[FamilyFile] = []
    files = (presets.folder() / "families").glob("*.toml")
    for file in sorted(files, key=lambda file: (file.stem != model_type, file.stem)):
        text = file.read_text("utf-8")
        if f'"{model_type}"' in text:  # most files need not be parsed
            family = FamilyFile.model_validate(presets.parse_toml(text, file.name))
            if model_type in family.model_types:
                if not architectures or set(architectures) & set(family.architectures):
                    return family
                others.append(family)
    return others[0] if others else None


def model_types() -> list[str]:
    """All model types that the files count, those of a kind first: they are the most common."""
    tables = [presets.load("families", name) for name in presets.names("families")]
    listed = {
        model_type: "kind" not in table for table in tables for model_type in table["model_types"]
    }
    return sorted(listed, key=lambda model_type: (listed[model_type], model_type))


def _merged(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config over defaults; nested tables key by key."""
    out = dict(defaults)
    for key, value in config.items():
        inner = defaults.get(key)
        out[key] = (
            _merged(inner, value)
            if isinstance(inner, Mapping) and isinstance(value, Mapping)
            else value
        )
    return out


def _grouped(
    layers: LayerList, names: Mapping[str, Any]
) -> Iterator[tuple[tuple[int, ...], tuple[ModuleSpec, ...]]]:
    """Layers one by one, those that are alike together, in the order of their first."""
    count = _how_many(layers.count, names)
    alike: dict[str, tuple[list[int], tuple[ModuleSpec, ...]]] = {}
    for i in range(count):
        modules = tuple(_modules(layers.modules, {**names, "i": i}))
        alike.setdefault(repr(modules), ([], modules))[0].append(i)
    return ((tuple(places), modules) for places, modules in alike.values() if modules)


def _how_many(expression: Expression, names: Mapping[str, Any]) -> int:
    """How many layers, or modules that are alike, there are: they are written out one by one."""
    count = _dimension(evaluate(expression, names), expression, least=0)
    if count > MOST_LAYERS:
        raise ExpressionError(
            f"{expression}: {count:,} are more than {MOST_LAYERS:,}", str(expression)
        )
    return count


def _modules(entries: list[Entry], names: Mapping[str, Any]) -> Iterator[ModuleSpec]:
    for entry in entries:
        if not evaluate(entry.when, names):
            continue
        times = _how_many(entry.times, names)
        values = {key: _size(evaluate(value, names), value) for key, value in entry.values.items()}
        tensors = {
            key: tuple(_dimension(evaluate(size, names), size) for size in sizes)
            for key, sizes in entry.tensors.items()
        }
        spec = ModuleSpec(
            type=entry.type,
            name=entry.name or entry.type,
            component=entry.component,
            values={key: value for key, value in values.items() if value is not None},
            tensors=tensors,
            unquantised=tuple(entry.unquantised),
        )
        for _ in range(times):
            yield spec


def _size(value: Any, expression: Expression) -> int | bool | str | None:
    """A value of a typed module: a size, a switch, a word, or nothing, where the type's own default
    holds.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    return _dimension(value, expression, least=0)


def _dimension(value: Any, expression: Expression, least: int = 1) -> int:
    """A size that a tensor can have."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ExpressionError(
            f"{expression} is {spelled(value)}, not a whole number", str(expression)
        )
    if value < least:
        raise ExpressionError(f"{expression} is {value}, not at least {least}", str(expression))
    return value
