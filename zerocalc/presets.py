"""Presets, one TOML file each with its source; and the user's own TOML or JSON files, which work
wherever a preset's name does.
"""

from __future__ import annotations

import difflib
import os
import re
import select
import stat
import sys
import time
from pathlib import Path
from typing import Any

from zerocalc.quantities import COUNT_SUFFIXES, shown

KINDS = (
    "models",
    "gpus",
    "nodes",
    "recipes",
    "frameworks",
    "implementations",
    "losses",
    "families",
    "quantisations",
    "papers",
)
TABLES = ("targets",)
"""Folders of data next to the presets that are not chosen by name."""

REFERENCES = {
    "models": {"quantised": "quantisations"},
    "nodes": {"gpu": "gpus"},
    "frameworks": {"recipe": "recipes", "implementation": "implementations"},
    "implementations": {"loss": "losses"},
}
"""Fields of a preset that name another one, and its kind."""

LARGEST_FILE = 2_000_000
"""The largest file that is read [bytes]. A job, a model or a preset is a few kilobytes; anything
larger is another kind of file.
"""
STANDARD_INPUT = "standard input"
"""Its name in errors."""
PATIENCE = 2.0
"""How long a named pipe may stay without a writer [s]."""


class PresetError(ValueError):
    """A preset or a file that does not exist or cannot be read; the message is one line."""


def folder() -> Path:
    """The folder of the presets: in an installed package, or at the top of a checkout."""
    installed = Path(__file__).with_name("_presets")
    return installed if installed.is_dir() else Path(__file__).parent.with_name("presets")


def names(kind: str) -> list[str]:
    """The names of all presets of a kind, one of `KINDS`; empty for any other. Numbers in names are
    sorted by value, models by family and then by size.
    """
    return sorted(
        (file.stem for file in (folder() / kind).glob("*.toml")),
        key=_by_size if kind == "models" else _natural,
    )


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [
        (1, int(part), "") if part.isdigit() else (0, 0, part)
        for part in re.split(r"([0-9]+)", name)
    ]


def _by_size(name: str) -> tuple[list[tuple[int, int, str]], float, list[tuple[int, int, str]]]:
    """A model's family, its parameters as its name has them, and the rest of the name.

    >>> sorted(["x-1.3b", "x-13b", "x-111m", "x-2-7b", "gpt2-xl", "gpt2-medium", "gpt2"],
    ...     key=_by_size)
    ['gpt2', 'gpt2-medium', 'gpt2-xl', 'x-111m', 'x-1.3b', 'x-13b', 'x-2-7b']
    """
    sized = re.fullmatch(r"(.+?)-(\d+(?:\.\d+)?)([kmbt])(-.*)?", name)
    if sized:
        return (
            _natural(sized[1]),
            float(sized[2]) * COUNT_SUFFIXES[sized[3].upper()],
            _natural(sized[4] or ""),
        )
    family, _, word = name.rpartition("-")
    order = ("small", "medium", "large", "xl")
    return (
        (_natural(family), 1.0 + order.index(word), [])
        if word in order
        else (_natural(name), 0.0, [])
    )


def nearest(wanted: str, known: list[str] | tuple[str, ...], cutoff: float = 0.5) -> str:
    """A clause with the known names closest to an unknown one, three at most; empty if none is as
    close as ``cutoff``, a fraction (1: equal).
    """
    lower = wanted.lower()
    same = {name.lower(): name for name in known}
    starting = [name for name in known if lower and name.lower().startswith(lower)]
    close = [
        same[name] for name in difflib.get_close_matches(lower, list(same), n=3, cutoff=cutoff)
    ]
    found = list(dict.fromkeys([*starting, *close]))[:3]
    return f"; nearest: {', '.join(found)}" if found else ""


def is_preset(kind: str, name: str) -> bool:
    """Whether a preset of a kind, one of `KINDS`, has exactly this name."""
    return any(file.name == f"{name}.toml" for file in (folder() / kind).iterdir())


def is_path(name: str) -> bool:
    """Whether a name that no preset has is a file's: by its spelling, or because it exists."""
    return bool(name) and (
        os.sep in name or name.lower().endswith((".toml", ".json")) or _exists(name)
    )


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # no path can be so long, or hold such characters
        return False


def load(kind: str, name: str) -> dict[str, Any]:
    """The table of a preset of a kind, one of `KINDS`, or of the TOML or JSON file at the path
    ``name``. Relative paths in a file start from the file's folder.

    Raises `PresetError` if there is neither, or the file cannot be read.
    """
    if is_preset(kind, name):
        return parse_toml((folder() / kind / f"{name}.toml").read_text("utf-8"), name)
    if not is_path(name):
        raise PresetError(
            f"{shown(name)} is not a preset{nearest(name, names(kind))} (zerocalc presets "
            f"{kind} lists them)"
        )
    table = read_table(name)
    if "model_type" in table:
        raise PresetError(
            f"{label(name)} is a Hugging Face config; zerocalc.load_model reads it (on the "
            "command line --model does)"
        )
    for field, other in REFERENCES.get(kind, {}).items():
        table |= (
            {field: beside(name, other, table[field])} if isinstance(table.get(field), str) else {}
        )
    return table


def beside(path: str, kind: str, name: str) -> str:
    """The path of a file of ``kind`` that the file at ``path`` calls ``name``; a preset's name is
    returned as it is.
    """
    if is_preset(kind, name) or not Path(path).is_file():  # a pipe has no folder
        return name
    found = str(Path(path).parent / name)
    return found if is_path(name) or _exists(found) else name


def read_table(path: str) -> dict[str, Any]:
    """The table in a TOML or JSON file, told apart by suffix, else by content.

    Raises `PresetError` if the file cannot be read or is neither.
    """
    return parse(read_text(path), path)


def parse(text: str, path: str, name: str | None = None) -> dict[str, Any]:
    """The table in a text that was read from ``path``, called ``name`` (or its path) in errors.

    Raises `PresetError` if it is neither TOML nor a JSON object.
    """
    shown_as = label(path) if name is None else name
    if path.lower().endswith(".toml"):
        return parse_toml(text, shown_as)
    if (
        path.lower().endswith(".json")
        or not text.strip()
        or text.lstrip().startswith("{")
        or _is_json(text)
    ):
        return parse_json(text, shown_as)
    try:
        return parse_toml(text, shown_as)
    except PresetError as error:
        raise PresetError(f"{error}; nor is it a JSON object") from None


def _is_json(text: str) -> bool:
    import json  # noqa: PLC0415 - a start that reads TOML alone goes without

    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The table in a TOML text, called ``name`` in errors.

    Raises `PresetError` if it is not TOML.
    """
    import tomllib  # noqa: PLC0415 - help goes without

    try:
        table: dict[str, Any] = visible(tomllib.loads(text))
        return table
    except (ValueError, RecursionError) as error:
        raise PresetError(f"{name} is not valid TOML: {_one_line(error)}") from None


def parse_json(text: str, name: str) -> dict[str, Any]:
    """The object in a JSON text, called ``name`` in errors.

    Raises `PresetError` if it is not JSON, not an object, or has a key twice.
    """
    import json  # noqa: PLC0415 - a start that reads TOML alone goes without

    if not text.strip():
        raise PresetError(f"{name} is empty, not a JSON object")
    try:
        value = visible(json.loads(text, object_pairs_hook=_once_each))
    except (ValueError, RecursionError) as error:
        raise PresetError(f"{name} is not valid JSON: {_one_line(error)}") from None
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}.get(
            type(value), "a number"
        )
        raise PresetError(f"{name} is {kind}, not a JSON object")
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise PresetError(f"duplicate key {shown(twice)}")
    return table


def visible(value: Any) -> Any:
    r"""A value from a file with its strings made printable: control characters are escaped, and a
    line end becomes a space.

    >>> visible({"title": "a\nb", "notes": ["\x1b[2J"]})
    {'title': 'a b', 'notes': ['\\x1b[2J']}
    """
    if isinstance(value, str):
        if value.isprintable():
            return value
        spelled = "".join(
            " " if c.isspace() else c if c.isprintable() else c.encode("unicode_escape").decode()
            for c in value
        )
        return " ".join(spelled.split())
    if isinstance(value, dict):
        return {visible(key): visible(item) for key, item in value.items()}
    return [visible(item) for item in value] if isinstance(value, list) else value


def label(path: str) -> str:
    """A path as errors quote it: as written, or escaped if it has control characters."""
    return path if path.isprintable() else repr(path)


def read_text(path: str) -> str:
    """The text of a file or pipe; no more than `LARGEST_FILE` bytes are read.

    Raises `PresetError` if it is missing, neither a file nor a pipe, too large, or not UTF-8.
    """
    try:
        # Opening a named pipe would wait for a writer; this way reading says whether there is one.
        descriptor = os.open(
            path,
            os.O_RDONLY
            | getattr(os, "O_NONBLOCK", 0)
            | getattr(os, "O_NOCTTY", 0)
            | getattr(os, "O_BINARY", 0),
        )
        try:
            return decode(_read_small(descriptor, path), label(path))
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        if isinstance(error, PresetError):
            raise
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        )
        raise PresetError(f"{label(path)}: {reason[:1].lower()}{reason[1:]}") from None


def read_standard_input() -> str:
    """The text of standard input.

    Raises `PresetError` if it is closed, too large, or not UTF-8, and `OSError` if it cannot be
    read.
    """
    if sys.stdin is None:
        raise PresetError(f"{STANDARD_INPUT} is closed")
    return decode(sys.stdin.buffer.read(LARGEST_FILE + 1), STANDARD_INPUT)


def _read_small(descriptor: int, path: str) -> bytes:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise PresetError(f"{label(path)} is a directory, not a file")
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise PresetError(f"{label(path)} is a device, not a file")
    return _piped(descriptor, path) if stat.S_ISFIFO(mode) else _read(descriptor)


def _read(descriptor: int) -> bytes:
    """The rest of a file or pipe, at most one byte more than `LARGEST_FILE`."""
    data = b""
    while len(data) <= LARGEST_FILE and (part := os.read(descriptor, LARGEST_FILE + 1 - len(data))):
        data += part
    return data


def _piped(descriptor: int, path: str) -> bytes:
    """Everything that is written to a pipe, however slowly, once a writer has begun.

    Raises `PresetError` if nobody begins within `PATIENCE`.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            first = os.read(descriptor, 1)
        except BlockingIOError:  # somebody has it open
            select.select([descriptor], [], [])
            continue
        if first:
            break
        if time.monotonic() > until:
            raise PresetError(f"{label(path)} is a pipe that nothing was written to")
        time.sleep(0.01)
    os.set_blocking(descriptor, True)
    return first + _read(descriptor)


def decode(data: bytes, label: str) -> str:
    """The UTF-8 text in ``data``, called ``label`` in errors.

    Raises `PresetError` if it is larger than `LARGEST_FILE` or not text.
    """
    if len(data) > LARGEST_FILE:
        raise PresetError(
            f"{label} is larger than {LARGEST_FILE // 1_000_000} MB, too large for a job, model "
            "or preset"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PresetError(f"{label} is not a text file") from None
    if "\0" in text:
        raise PresetError(f"{label} is not a text file")
    return text


def _one_line(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if type(error) is ValueError:  # Python's own word on integers of thousands of digits
        return "a number of thousands of digits"
    return " ".join(str(error).split())
