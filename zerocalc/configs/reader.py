"""What a tool's configuration says of a job, key by key, and what is known of the job beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zerocalc.presets import nearest
from zerocalc.quantities import parse_whole, shown
from zerocalc.spec.base import FieldError

AUTO = "auto"
"""What a configuration holds where whoever starts the training fills in a value."""


class Known:
    """What is known of a job beside a configuration: flags by their paths (tables for names) over
    the tables of a job below.
    """

    def __init__(self, given: Mapping[str, Any], below: Mapping[str, Any]) -> None:
        self.given, self.below = given, below

    def over(self, items: Mapping[str, Any]) -> Known:
        """The same with what a part of the configuration says, under the flags."""
        return Known({**items, **self.given}, self.below)

    def value(self, path: str) -> Any:
        """What stands in a field, ``None`` where nothing does: a flag's own, a field of what a flag
        names, or the job's.
        """
        if path in self.given:
            return self.given[path]
        parts = path.split(".")
        for depth in range(len(parts) - 1, 0, -1):
            named = self.given.get(".".join(parts[:depth]))
            if isinstance(named, dict):
                return _inside(named, parts[depth:])
        return _inside(self.below, parts)

    def whole(self, path: str) -> int | None:
        """A whole number, ``None`` where there is none or a wrong one, which validation reports."""
        try:
            return parse_whole(self.value(path))
        except ValueError:
            return None

    @property
    def model_parallel(self) -> int:
        """GPUs that hold one copy of the model together."""
        return (
            (self.whole("parallel.tp") or 1)
            * (self.whole("parallel.pp") or 1)
            * (self.whole("parallel.cp") or 1)
        )

    @property
    def dp(self) -> int | None:
        """The data-parallel degree, where it is known and even."""
        gpus = self.whole("cluster.gpus")
        return None if gpus is None or gpus % self.model_parallel else gpus // self.model_parallel

    @property
    def hidden(self) -> int | None:
        """The model's hidden size; ``None`` where the model is not known or has several."""
        plain = self.whole("model.hidden")
        if plain is not None:
            return plain
        stack = self.value("model.stack")
        found = set(_hidden_sizes(stack))
        if (
            len(found) > 1
        ):  # with a tower for images or sound: that of the text, which the last head reads
            found = {
                dim
                for module in _inside(stack, ["after"]) or ()
                if isinstance(dim := _inside(module, ["values", "dim"]), int)
            }
        return found.pop() if len(found) == 1 else None


def _inside(table: Any, parts: Iterable[str]) -> Any:
    for part in parts:
        table = table.get(part) if isinstance(table, Mapping) else None
    return table


def _hidden_sizes(stack: Any) -> Iterable[int]:
    """Sizes of the residual stream in an architecture that is written out."""
    for group in _inside(stack, ["groups"]) or ():
        for module in _inside(group, ["modules"]) or ():
            hidden = _inside(module, ["values", "hidden"])
            if isinstance(hidden, int):
                yield hidden


class Settings:
    """What was read: fields of a job by path, the tool's key that set each, and notes in words."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.keys: dict[str, str] = {}
        self.notes: list[str] = []
        self.not_modelled: list[str] = []
        self.unknown: list[str] = []

    def put(self, path: str, value: Any, key: str) -> None:
        """Set a field of the job."""
        self.items[path] = value
        self.keys[path] = key

    def put_on_host(self, key: str) -> None:
        """Keep parameters and optimizer states in host memory, as FSDP does when it offloads."""
        for field in ("offload_optimizer", "offload_params"):
            self.put(f"zero.{field}", "cpu", key)

    def remarks(self, tool: str) -> list[str]:
        """All that is to be said of the file beside the job."""
        said = list(self.notes)
        if self.not_modelled:
            said.append(f"not modelled of the {tool} configuration: {', '.join(self.not_modelled)}")
        if self.unknown:
            said.append(
                f"unknown keys of the {tool} configuration, passed over: {', '.join(self.unknown)}"
            )
        return said


class Section:
    """A table of a configuration whose keys are read one by one; those that nobody read are
    unknown.
    """

    def __init__(self, table: Mapping[str, Any], settings: Settings, name: str = "") -> None:
        self.table, self.settings, self.name = table, settings, name
        self.read: set[str] = set()

    def key(self, key: str) -> str:
        """A key as errors and notes call it."""
        return f"{self.name}.{key}" if self.name else key

    def value(self, key: str) -> Any:
        """What stands at a key, ``None`` where nothing does."""
        self.read.add(key)
        return self.table.get(key)

    def wrong(self, key: str, text: str) -> FieldError:
        """The error to raise about a key."""
        return FieldError(self.key(key), text)

    def section(self, key: str) -> Section:
        """The table at a key, an empty one where there is none."""
        value = self.value(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, f"{shown(value)} is not a table of settings")
        return Section(value or {}, self.settings, self.key(key))

    def is_auto(self, key: str) -> bool:
        """Whether a value is left to whoever starts the training."""
        return self.table.get(key) == AUTO

    def whole(self, key: str, least: int = 0) -> int | None:
        """A whole number, which may be written as 5e8; ``None`` where none is given or it is
        `AUTO`.
        """
        value = self.value(key)
        if value is None or value == AUTO:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, f"{shown(value)} is not a whole number")
        if value < least:
            raise self.wrong(key, f"{shown(value)} is not at least {least}")
        return value

    def flag(self, key: str) -> bool | None:
        """True or false, which may be written as a text; ``None`` where it is not given or
        `AUTO`.
        """
        value = self.value(key)
        if value is None or value == AUTO:
            return None
        if isinstance(value, str) and value.lower() in WORDS_OF_TRUTH:
            return WORDS_OF_TRUTH[value.lower()]
        if not isinstance(value, bool):
            raise self.wrong(key, f"{shown(value)} is not true or false")
        return value

    def word(
        self, key: str, choices: Mapping[str, str], *, default: str | None = None
    ) -> str | None:
        """One of some words in any spelling of its case, as what it stands for; ``default`` where
        none is given.
        """
        value = self.value(key)
        if value is None or (value == AUTO and AUTO not in choices):
            return default
        found = choices.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            raise self.wrong(key, f"{shown(value)} is not one of {', '.join(choices)}")
        return found

    def free(self, *keys: str) -> None:
        """Keys that cost neither memory nor traffic."""
        self.read.update(keys)

    def note(self, key: str) -> None:
        """Name a key that is not modelled, where it is given and on."""
        value = self.value(key)
        if is_on(value):
            self.settings.not_modelled.append(self.key(key))

    def refuse(self, key: str, text: str) -> None:
        """Refuse a key that is given and on, since an answer without it would be wrong."""
        if is_on(self.value(key)):
            raise self.wrong(key, text)

    def done(self) -> None:
        """Name all keys that nobody read."""
        unread = [key for key in self.table if key not in self.read]
        for key in unread[:MOST_NAMED]:
            near = (
                nearest(key, list(self.read)).removeprefix("; ")
                if len(key) <= LONGEST_NAMED
                else ""
            )
            self.settings.unknown.append(
                self.key(key[:LONGEST_NAMED]) + (f" ({near})" if near else "")
            )
        if len(unread) > MOST_NAMED:
            self.settings.unknown.append(
                f"{len(unread) - MOST_NAMED} more of {self.name or 'the file'}"
            )


MOST_NAMED, LONGEST_NAMED = 12, 60
"""Unknown keys that a table's note names, and characters of each."""
WORDS_OF_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def is_on(value: Any) -> bool:
    """Whether a value switches something on: a table with ``enabled`` says so itself.

    >>> is_on({"enabled": False}), is_on({"mode": "fixed"}), is_on("none"), is_on(0)
    (False, True, False, False)
    """
    if isinstance(value, dict):
        return is_on(value["enabled"]) if "enabled" in value else bool(value)
    return value not in (None, False, 0, "", "none", "no", "false", AUTO) and value != []


def product(batch: int, micro: int, accumulation: int, dp: int) -> str:
    """The words for three batch sizes that contradict each other."""
    made = (
        f"{batch} is not micro-batch {micro} × accumulation {accumulation} × data-parallel "
        f"{dp} = {micro * accumulation * dp}"
    )
    steps, left = divmod(batch, micro * dp)
    return (
        made
        if left or not steps or steps == accumulation
        else f"{made}; with accumulation {steps} it would be"
    )
