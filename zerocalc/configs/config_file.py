"""A configuration of a training tool, whichever it is: read, told apart by its content, and turned
into fields of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from zerocalc import configs, presets
from zerocalc.configs.reader import Known, Settings
from zerocalc.presets import PresetError

READERS = {"accelerate": "accelerate", "torchtitan": "torchtitan", "deepspeed": "DeepSpeed"}
"""Tools whose configurations are read, and their names; accelerate's can hold keys of DeepSpeed's.
"""


def read(path: str, given: Mapping[str, Any], below: Mapping[str, Any]) -> Settings:
    """What the configuration at ``path`` says of a job; ``given`` are flags over it by path,
    ``below`` the tables of a job under it.

    Raises `PresetError` for a file that is none of these, and `FieldError`, with the key for a
    path, for what cannot be taken over.
    """
    table = read_any(path)
    tool = tool_of(table)
    if tool is None:
        raise PresetError(
            f"{presets.STANDARD_INPUT if path == '-' else presets.label(path)} {_other(table)}"
        )
    settings, module = Settings(), import_module(f"zerocalc.configs.{tool}")
    module.read(table, Known(given, below), settings, *([path] if tool == "accelerate" else []))
    settings.notes = settings.remarks(READERS[tool])
    return settings


def tool_of(table: Mapping[str, Any]) -> str | None:
    """The tool whose configuration a table is, ``None`` where it is none that is read."""
    if _is_job(table):
        return None
    return next(
        (
            tool
            for tool in READERS
            if import_module(f"zerocalc.configs.{tool}").MARKS & table.keys()
        ),
        None,
    )


def described(table: Mapping[str, Any]) -> str:
    """What to say of a configuration that another flag than ``--config`` names; nothing of any
    other table.
    """
    tool = tool_of(table)
    return f"is a configuration of {READERS[tool]}; --config reads it" if tool else ""


def _is_job(table: Mapping[str, Any]) -> bool:
    return "schema_version" in table or "cluster" in table


def _other(table: dict[str, Any]) -> str:
    if _is_job(table):
        return "describes a job; --job reads it"
    if {"model_type", "architectures"} & table.keys():
        return "is a Hugging Face config; --model reads it"
    return (
        "has no key by which a configuration of DeepSpeed (zero_optimization), accelerate "
        "(distributed_type) or torchtitan (parallelism) is known"
    )


def read_any(path: str) -> dict[str, Any]:
    """The table in a JSON, TOML or YAML file, or on standard input (``-``): what its name ends with
    says which, else its content.

    Raises `PresetError`.
    """
    if not path.strip():
        raise PresetError(f"{path!r} is no file; give a path")
    if path == "-":
        return _read_any_text(presets.read_standard_input(), path, presets.STANDARD_INPUT)
    return _read_any_text(presets.read_text(path), path, presets.label(path))


def _read_any_text(text: str, path: str, name: str) -> dict[str, Any]:
    lower = path.lower()
    if lower.endswith((".yaml", ".yml")):
        return configs.yaml_text.parse_yaml(text, name)
    if lower.endswith((".toml", ".json")) or text.lstrip().startswith("{"):
        return presets.parse(text, path, name)
    try:
        return presets.parse_toml(text, name)
    except PresetError:
        return configs.yaml_text.parse_yaml(text, name)
