"""Presets: one TOML file a thing, each with its source; a user's own TOML works wherever a preset's name does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KINDS = ("models", "gpus", "nodes", "recipes", "frameworks", "families", "quantisations", "papers")

LARGEST_FILE = 2_000_000
"""Bytes. A description of a job, a model or a preset is a few kilobytes; anything this large is another kind of file."""


class PresetError(ValueError):
    """A preset or a file that is not there, or cannot be read as one; the message is one line."""


def folder() -> Path:
    """Where the presets lie: beside the package when installed, at the top of a checkout otherwise."""
    installed = Path(__file__).with_name("_presets")
    return installed if installed.is_dir() else Path(__file__).parent.with_name("presets")


def names(kind: str) -> list[str]:
    """The names of all presets of a kind, sorted as a person would (numbers by value)."""
    return sorted((file.stem for file in (folder() / kind).glob("*.toml")), key=_natural)


def _natural(name: str) -> list[tuple[int, float, str]]:
    import re

    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(1, float(part), "") if part[:1].isdigit() else (0, 0.0, part) for part in parts]


def nearest(wanted: str, known: list[str] | tuple[str, ...]) -> str:
    """A clause that names the known names closest to an unknown one, or how to list them all."""
    import difflib

    lower = wanted.lower()
    starting = [name for name in known if lower and name.startswith(lower)]
    close = [*starting, *(name for name in difflib.get_close_matches(lower, known, n=3, cutoff=0.5) if name not in starting)][:3]
    return f"; nearest: {', '.join(close)}" if close else ""


def load(kind: str, name: str) -> dict[str, Any]:
    """The table of a preset, or of the TOML file that ``name`` is the path of.

    Raises `PresetError`, with one line that says what would be right.
    """
    if name.endswith(".toml"):
        return parse_toml(read_text(name), name)
    if any(file.name == f"{name}.toml" for file in (folder() / kind).iterdir()):
        return parse_toml((folder() / kind / f"{name}.toml").read_text("utf-8"), name)
    from zerocalc.units import shown

    if name.endswith(".json"):
        raise PresetError(f"{shown(name)} is no TOML file; zerocalc.load_model reads a Hugging Face config (on the command line --model does)")
    if os.sep in name:
        raise PresetError(f"{shown(name)} is not a TOML file (.toml)")
    raise PresetError(f"{shown(name)} is not a preset{nearest(name, names(kind))} (zerocalc presets {kind} lists them)")


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The table in a TOML text; ``name`` is what errors call it."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PresetError(f"{name} is not valid TOML: {_one_line(error)}") from None


def parse_json(text: str, name: str) -> dict[str, Any]:
    """The object in a JSON text; ``name`` is what errors call it."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PresetError(f"{name} is not valid JSON: {_one_line(error)}") from None
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", type(None): "null", bool: "a truth value"}.get(type(value), "a number")
        raise PresetError(f"{name} holds {kind}; a JSON object is wanted")
    return value


def read_text(path: str) -> str:
    """The text of a small file somebody named; refused by size before it is read.

    Raises `PresetError` where it is missing, no regular file, too large, or not UTF-8.
    """
    label = path if path.isprintable() else repr(path)
    try:
        file = Path(path)
        if file.is_dir():
            raise PresetError(f"{label} is a directory, not a file")
        with file.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, PresetError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise PresetError(f"{label}: {reason[:1].lower()}{reason[1:]}") from None
    return decode(data, label)


def decode(data: bytes, label: str) -> str:
    """UTF-8 text of at most `LARGEST_FILE` bytes, or `PresetError`."""
    if len(data) > LARGEST_FILE:
        raise PresetError(f"{label} is larger than {LARGEST_FILE // 1_000_000} MB; that is no job, model or preset")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PresetError(f"{label} is not a text file") from None
    if "\0" in text:
        raise PresetError(f"{label} is not a text file")
    return text


def _one_line(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
