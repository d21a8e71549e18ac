"""From flags and a job file to a Job: the file below, a preset over it, single flags on top; then the one validation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zerocalc import presets
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import COUNT_WITH, COUNTERS, FLAG_OF_PATH
from zerocalc.presets import PresetError
from zerocalc.results import SCHEMA_VERSION
from zerocalc.spec.base import explain
from zerocalc.spec.job import Job
from zerocalc.spec.model import DIMENSIONS, Model

NAMED = {
    "model": "models",
    "model.quantised": "quantisations",
    "cluster.gpu": "gpus",
    "cluster.node": "nodes",
    "recipe": "recipes",
    "framework": "frameworks",
}
"""Fields that a name can stand for, and the kind of preset it names."""

QUANTISED = "model.quantised"
FROM_NODE = ("gpu", "gpus_per_node")
"""What a node's preset says of a cluster."""


def make_job(given: dict[str, Any], job_file: str | None) -> Job:
    """The job that flags and a file describe. Raises `UserError` with one line."""
    data = _read_job(job_file) if job_file is not None else {}
    counter = given.get(COUNT_WITH)
    if counter is not None and "model" not in given:
        raise UserError("--count-with: counts a config.json, which --model names")
    given = {path: value for path, value in given.items() if path != COUNT_WITH}
    if "cluster.node" in given and isinstance(data.get("cluster"), dict):
        for field in FROM_NODE:  # another node brings its own
            data["cluster"].pop(field, None)
    for path in sorted(given, key=lambda p: (p not in NAMED, p.count("."))):  # a name replaces its subtree, then single flags override fields
        value = given[path]
        if path in NAMED:
            value = _named(path, value, counter=counter)
        _put(data, path, value)
    _mark_changed(data, given)
    try:
        job = Job.model_validate(data)
    except ValidationError as error:
        path, text = explain(error)
        raise UserError(f"{_label(path, given, job_file)}: {text}") from None
    if QUANTISED in given and job.model.trainable is None:
        raise UserError(f"{FLAG_OF_PATH[QUANTISED]}: quantised weights are frozen; --trainable says how many other parameters are trained")
    return job


def make_model(name: str, counter: str | None = None, quantisation: str | None = None) -> Model:
    """The model that a preset, a TOML file or a config.json describes, the latter counted by ``counter``. Raises `UserError` with one line."""
    table = _named("model", name, "CONFIG|PRESET", counter)
    if quantisation is not None:
        table[QUANTISED.rpartition(".")[2]] = _named(QUANTISED, quantisation)
    try:
        return Model.model_validate(table)
    except ValidationError as error:
        path, text = explain(error)
        raise UserError(f"{name}: {path.removeprefix('model.')}: {text}") from None


def _label(path: str, given: dict[str, Any], job_file: str | None) -> str:
    """What the user wrote: the flag where one was given (or nothing else could have been), else the field."""
    if path in given:
        return FLAG_OF_PATH[path]
    for named in NAMED:
        if named in given and path.startswith(f"{named}."):
            return f"{FLAG_OF_PATH[named]} {given[named]}: {path[len(named) + 1 :]}"
    if path in FLAG_OF_PATH and job_file is None:
        return FLAG_OF_PATH[path]
    return path or "job"


def _named(path: str, name: str, label: str = "", counter: str | None = None) -> Any:
    kind = NAMED[path]
    config = path == "model" and (name.endswith(".json") or (os.sep in name and Path(name).is_dir()))
    if path == "model" and counter is not None:
        return _counted(name, counter, config)
    try:
        if config:
            from zerocalc.interop.huggingface import load_model

            return load_model(name).model_dump(mode="json")
        return presets.load(kind, name)
    except PresetError as error:
        raise UserError(f"{label or FLAG_OF_PATH[path]}: {error}") from None


def _counted(name: str, counter: str, config: bool) -> Any:
    """A config's model as somebody else's program counts it."""
    if counter not in COUNTERS:
        raise UserError(f"--count-with: {counter!r} is not one of {', '.join(COUNTERS)}")
    if not config:
        raise UserError(f"--count-with: counts a config.json, and {name!r} is none")
    from zerocalc.interop.built import load_built

    try:
        return load_built(name).model_dump(mode="json")
    except PresetError as error:
        raise UserError(f"--count-with {counter}: {error}") from None


def _read_job(source: str) -> dict[str, Any]:
    """The job in a file or on standard input; of a whole answer, its ``job``."""
    try:
        if source == "-":
            label = "standard input"
            if sys.stdin is None:
                raise PresetError(f"{label} is closed")
            text = presets.decode(sys.stdin.buffer.read(presets.LARGEST_FILE + 1), label)
        else:
            label, text = source, presets.read_text(source)
        data = presets.parse_toml(text, label) if source.endswith(".toml") else presets.parse_json(text, label)
    except PresetError as error:
        raise UserError(f"--job: {error}") from None
    if "job" in data:
        version = data.get("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise UserError(f"--job: {label} has schema_version {version!r}; this program reads {SCHEMA_VERSION}")
        data = data["job"]
        if not isinstance(data, dict):
            raise UserError(f"--job: the job in {label} is not a JSON object")
    for path, kind in NAMED.items():
        if path == QUANTISED:
            continue  # Model reads these itself, and words of earlier versions with them
        _resolve(data, path, kind)
    return data


def _resolve(data: dict[str, Any], path: str, kind: str) -> None:
    """Put a preset's table where a job file names it, so that single flags can override its fields."""
    parent: Any = data
    *parts, last = path.split(".")
    for part in parts:
        parent = parent.get(part) if isinstance(parent, dict) else None
    if isinstance(parent, dict) and isinstance(parent.get(last), str):
        try:
            parent[last] = presets.load(kind, parent[last])
        except PresetError as error:
            raise UserError(f"{path}: {error}") from None


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if inner is None:
            inner = data[parent] = {}
        if not isinstance(inner, dict):
            raise UserError(f"{parent}: {inner!r} is not a table of fields, so {FLAG_OF_PATH[path]} cannot change one of them")
        data = inner
    data[last] = value


def _mark_changed(data: dict[str, Any], given: dict[str, Any]) -> None:
    """A named model with another dimension is another model, and is called so."""
    model = data.get("model")
    changed = [f"{name} {given[f'model.{name}']}" for name in DIMENSIONS if f"model.{name}" in given]
    if isinstance(model, dict) and model.get("title") and changed:
        model["title"] = f"{model['title']} with {', '.join(changed)}"
