"""From flags and a job file to a Job: the file below, a preset over it, single flags on top; then the one validation."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zerocalc import presets
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import FLAG_OF_PATH
from zerocalc.presets import PresetError
from zerocalc.results import SCHEMA_VERSION
from zerocalc.spec.base import explain
from zerocalc.spec.job import Job
from zerocalc.spec.model import DEFAULT_KIND, DIMENSIONS, Model, only_given

NAMED = {"model": "models", "cluster.gpu": "gpus", "cluster.node": "nodes", "recipe": "recipes", "framework": "frameworks"}
"""Fields that a name can stand for, and the kind of preset it names."""

FROM_NODE = {"gpu": "gpu", "gpus_per_node": "gpus"}
"""What a node says of a cluster: the cluster's field, and the node's."""
ONE_KIND_ONLY = ("dropout", "positions")
"""Dimensions of a model that mean something to layers of one kind only, or something else to the other."""
CHANGED = re.compile(rf" with ((?:(?:{'|'.join(DIMENSIONS)}) \S+(?:, )?)+)$")
"""The end of a title that says what was changed."""
LONGEST_TITLE = 200


def make_job(given: dict[str, Any], job_file: str | None) -> Job:
    """The job that flags and a file describe. Raises `UserError` with one line."""
    data = _read_job(job_file) if job_file is not None else {}
    # A name replaces its subtree, then single flags override fields; what zerocalc filled in below follows from what lies above.
    named = {path: _named(path, value) for path, value in given.items() if path in NAMED}
    _clear_cluster(data, given, named)
    _clear_recipe(data, given)
    for path, value in named.items():
        _put(data, path, value)
    if given and isinstance(data.get("model"), dict):
        _clear_kind(data["model"], given)
        data["model"] = only_given(data["model"])
    for path, value in given.items():
        if path not in NAMED:
            _put(data, path, value)
    _check_positions(data, given)
    _mark_changed(data, given)
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        path, text = explain(error)
        raise UserError(f"{_label(path, given, job_file)}: {text}") from None


def make_model(name: str) -> Model:
    """The model that a preset, a TOML file or a config.json describes. Raises `UserError` with one line."""
    try:
        return Model.model_validate(_named("model", name, "CONFIG|PRESET"))
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


def _named(path: str, name: str, label: str = "") -> Any:
    kind = NAMED[path]
    try:
        if path == "model" and (name.endswith(".json") or (os.sep in name and Path(name).is_dir())):
            from zerocalc.interop.huggingface import load_model

            return load_model(name).model_dump(mode="json")
        return presets.load(kind, name)
    except PresetError as error:
        raise UserError(f"{label or FLAG_OF_PATH[path]}: {error}") from None


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


def _clear_cluster(data: dict[str, Any], given: dict[str, Any], named: dict[str, Any]) -> None:
    """Another node brings its own GPUs; other GPUs, or another number of them, make a job's node another one."""
    cluster = data.get("cluster")
    if not isinstance(cluster, dict):
        return
    if "cluster.node" in given:
        for field in FROM_NODE:
            cluster.pop(field, None)
        return
    node = cluster.get("node")
    if not isinstance(node, dict):
        return
    for field, key in FROM_NODE.items():
        if cluster.get(field) is None:
            cluster[field] = node.get(key)
    gpu = cluster.get("gpu")
    same_gpu = "cluster.gpu" not in named or (isinstance(gpu, dict) and gpu.get("title") == named["cluster.gpu"].get("title"))
    if not same_gpu or given.get("cluster.gpus_per_node", cluster["gpus_per_node"]) not in (cluster["gpus_per_node"], str(cluster["gpus_per_node"])):
        del cluster["node"]


def _clear_recipe(data: dict[str, Any], given: dict[str, Any]) -> None:
    """Another framework brings its own recipe, where the job has the one that its framework brought."""
    framework, recipe = data.get("framework"), data.get("recipe")
    if "framework" in given and isinstance(framework, dict) and isinstance(recipe, dict) and recipe.get("name") == framework.get("recipe"):
        del data["recipe"]


def _clear_kind(model: dict[str, Any], given: dict[str, Any]) -> None:
    """Layers of another kind have no use for what only the model's own kind has."""
    kind = given.get("model.kind")
    if kind is None or kind == (model.get("kind") or DEFAULT_KIND):
        return
    for field in ONE_KIND_ONLY:
        model.pop(field, None)


def _check_positions(data: dict[str, Any], given: dict[str, Any]) -> None:
    """Presets of kind llama state how long a sequence the model was trained on; to a user who gives positions, that they change nothing is said."""
    model = data.get("model")
    if "model.positions" in given and isinstance(model, dict) and model.get("kind") == "llama":
        raise UserError("--positions: kind llama has no learned positions; they are for kind gpt2")


def _mark_changed(data: dict[str, Any], given: dict[str, Any]) -> None:
    """A named model with another dimension is another model, and is called so: once, however often it is changed."""
    model = data.get("model")
    changed = {name: str(given[f"model.{name}"]).strip() for name in DIMENSIONS if f"model.{name}" in given}
    if not isinstance(model, dict) or not isinstance(model.get("title"), str) or not changed:
        return
    title, before = model["title"], CHANGED.search(model["title"])
    if before is not None:
        title = title[: before.start()]
        changed = {**dict(part.rsplit(" ", 1) for part in before[1].split(", ")), **changed}
    words = f" with {', '.join(f'{name} {changed[name]}' for name in DIMENSIONS if name in changed and model.get(name) is not None)}"
    model["title"] = title[: LONGEST_TITLE - len(words)] + words
