"""From flags and files to a Job: the job file below, a tool's configuration over it, presets,
single flags on top; then the one validation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from zerocalc import answers, cli, configs, huggingface, presets
from zerocalc.cli.error_location import Written, about
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import CONFIG, COUNT_WITH, COUNTERS, FLAG_OF_PATH, NAMED
from zerocalc.cli.overrides import call_by_change, make_way
from zerocalc.presets import PresetError
from zerocalc.results import Plan
from zerocalc.spec.base import FieldError, Spec, explain
from zerocalc.spec.defaults import DEFAULT_FRAMEWORK
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

S = TypeVar("S", bound=Spec)
QUANTISED = "model.quantised"
STANDARD_INPUT = "-"
"""What stands for standard input in the place of a file."""


def make_plan(given: dict[str, Any], job_file: str | None) -> Plan:
    """The plan of the job that flags and files describe. Raises `UserError` with one line."""
    return plan_and_notes(given, job_file)[0]


def plan_and_notes(
    given: dict[str, Any], job_file: str | None, usual: dict[str, str] | None = None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan, and what is to be said of a tool's configuration; ``usual`` are the fields to take
    where no framework is named.

    Raises `UserError` with one line.
    """
    written = Written(given)
    try:
        answer = answers.planner.plan(_job(written, job_file, usual or {}))
    except FieldError as error:  # a contradiction that only counting shows
        raise UserError(written.line(error.path, str(error))) from None
    return answer, (*answer.job.config_notes, *written.notes)


def _job(written: Written, job_file: str | None, usual: dict[str, str]) -> Job:
    given = dict(written.given)
    counter, config = given.pop(COUNT_WITH, None), given.pop(CONFIG, None)
    if counter is not None and "model" not in given:
        raise UserError("--count-with: counts a config.json, which --model names")
    data = _read_job(written, job_file) if job_file is not None else {}
    named = {
        path: _named(NAMED[path], value, FLAG_OF_PATH[path], counter=counter)
        for path, value in given.items()
        if path in NAMED
    }
    if config is not None:
        given, named = _over_config(written, config, given, named, data)
    if _unnamed(data.get("framework"), usual) and "framework" not in given:
        given, named = _as_run(written, usual, given, named, data)
    _note(data, make_way(data, given, named))
    # A name replaces its subtree, the widest first, then single flags override fields.
    by_depth = sorted(named.items(), key=lambda item: item[0].count("."))
    for path, value in (*by_depth, *(item for item in given.items() if item[0] not in NAMED)):
        _put(data, path, value, written)
    call_by_change(data, given)
    written.data = data
    try:
        job = Job.model_validate(data)
    except ValidationError as error:
        raise UserError(written.line(*explain(error, Job))) from None
    if QUANTISED in given and job.model.trainable is None and job.model.lora is None:
        ways = "--lora-rank trains adapters, --trainable says how many other parameters are trained"
        raise UserError(f"{FLAG_OF_PATH[QUANTISED]}: quantised weights are frozen; {ways}")
    return job


def _unnamed(framework: Any, usual: dict[str, str]) -> bool:
    """Whether a job says nothing of a tool's framework: it has none, or the one that stands where
    none was named, which no tool runs.
    """
    return bool(usual) and (
        framework is None
        or (isinstance(framework, dict) and framework.get("name") == DEFAULT_FRAMEWORK)
    )


def _as_run(
    written: Written,
    usual: dict[str, str],
    given: dict[str, Any],
    named: dict[str, Any],
    below: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags, and the tables of those that are names, with what is usual for a tool where neither
    they nor the job below say otherwise.
    """
    known = configs.reader.Known(given, below)
    added = {
        path: value for path, value in usual.items() if path in NAMED or known.value(path) is None
    }
    written.notes.append(
        f"counted with {' '.join(f'{FLAG_OF_PATH[path]} {value}' for path, value in added.items())}"
    )
    tables = {
        path: _named(NAMED[path], value, FLAG_OF_PATH[path])
        for path, value in added.items()
        if path in NAMED
    }
    return {**added, **given}, {**tables, **named}


def _over_config(
    written: Written,
    config: str,
    given: dict[str, Any],
    named: dict[str, Any],
    below: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags, and the tables of those that are names, over what a tool's configuration says."""
    written.config_file = (
        presets.STANDARD_INPUT if config == STANDARD_INPUT else presets.label(config)
    )
    if config == STANDARD_INPUT and written.job_file == presets.STANDARD_INPUT:
        raise UserError("--config: - is standard input, which --job reads already")
    try:
        settings = configs.config_file.read(config, {**given, **named}, below)
    except PresetError as error:
        raise UserError(f"--config: {error}") from None
    except OSError as error:
        raise UserError(f"--config: {written.config_file}: {error.strerror or error}") from None
    except FieldError as error:
        raise UserError(f"{error.path}: {error} (in {written.config_file})") from None
    written.keys = settings.keys
    runs, counted = settings.items.get("framework"), named.get("framework", {}).get("name")
    if counted not in (None, runs):
        settings.notes.append(
            f"{written.config_file} is for {runs}; --framework {counted} is what is counted"
        )
    _note(below, settings.notes)
    tables = {
        path: _named(NAMED[path], v, settings.keys[path]) if isinstance(v, str) else v
        for path, v in settings.items.items()
        if path in NAMED
    }
    return {**settings.items, **given}, {**tables, **named}


def _note(data: dict[str, Any], notes: list[str]) -> None:
    """Add to what a job says of where it came from."""
    if notes:
        before = data.get("config_notes") or ()
        data["config_notes"] = [
            *(before if isinstance(before, (list, tuple)) else ()),
            *(note for note in notes if note not in before),
        ]


def make_model(name: str, given: dict[str, Any] | None = None, counter: str | None = None) -> Model:
    """The model that a preset, a TOML file or a config.json describes, the latter counted by
    ``counter``, with the flags ``given``.

    Raises `UserError` with one line.
    """
    return validated("models", Model, name, "CONFIG|PRESET", given, counter)[1]


def validated(
    kind: str,
    spec: type[S],
    name: str,
    where: str,
    given: dict[str, Any] | None = None,
    counter: str | None = None,
) -> tuple[dict[str, Any], S]:
    """The table that a name stands for, flags over it, and what it describes; ``where`` is what
    errors call the name.
    """
    table = _named(kind, name, where, counter=counter)
    part, given = kind.removesuffix("s"), given or {}
    for path, value in given.items():
        found = _named(NAMED[path], value, FLAG_OF_PATH[path]) if path in NAMED else value
        _put(table, path.removeprefix(f"{part}."), found, Written(given))
    try:
        return table, spec.model_validate(table)
    except ValidationError as error:
        path, text = explain(error, spec)
        if path in given:
            raise UserError(about(path, text)) from None
        field = path if kind == "papers" else path.removeprefix(part).lstrip(".")
        raise UserError(
            f"{where} {presets.label(name)}: {field + ': ' if field else ''}{text}"
        ) from None


NO_QUANTISATION = "none"
"""What --quantise takes for a model in 16 bits whatever its config.json says."""


def _named(kind: str, name: str, where: str, file: str = "", counter: str | None = None) -> Any:
    """The table that a name stands for; ``where`` is what errors begin with, ``file`` what they end
    with, ``counter`` who counts a config.
    """
    if kind == "quantisations" and name == NO_QUANTISATION:
        return None
    try:
        if not name.strip():
            raise PresetError(
                f"{name!r} is no name of a preset or a file (zerocalc presets {kind} lists them)"
            )
        config = (
            kind == "models"
            and not presets.is_preset(kind, name)
            and presets.is_path(name)
            and not name.lower().endswith(".toml")
        )
        if kind == "models" and counter is not None:
            return _counted(name, counter, config)
        if config:
            _check_local(name)
            return huggingface.config.read_model(name, configs.config_file.described)
        table = presets.load(kind, name)
        if kind == "models" and not table.keys() <= Model.model_fields.keys():
            other = configs.config_file.described(table)
            if other:
                raise PresetError(f"{presets.label(name)} {other}")
        return table
    except PresetError as error:
        raise UserError(f"{where}: {error}{file}") from None


REMOTE = re.compile(r"[a-z]+://.*|[\w.-]+/[\w.-]+(?<!\.json)", re.ASCII | re.IGNORECASE)
"""An address, or a model's name on a hub: owner and name."""


def _check_local(name: str) -> None:
    """Raise `PresetError` for the name of a model somewhere else, be it one that is read here under
    another name.
    """
    if REMOTE.fullmatch(name) and not Path(name).exists():
        near = presets.nearest(name.rstrip("/").rpartition("/")[2], presets.names("models"))
        raise PresetError(
            f"{presets.label(name)}: no such file, and nothing is downloaded; give a "
            f"preset or the path of its config.json{near}"
        )


def _counted(name: str, counter: str, config: bool) -> Any:
    """A config's model as somebody else's program counts it."""
    if counter not in COUNTERS:
        raise UserError(f"--count-with: {counter!r} is not one of {', '.join(COUNTERS)}")
    if not config:
        raise UserError(f"--count-with: counts a config.json, and {name!r} is none")
    try:
        model = huggingface.built_with_transformers.load_built(name)
    except PresetError as error:
        raise UserError(f"--count-with {counter}: {error}") from None
    return model.model_dump(mode="json", exclude_none=True)
    return model.model_dump(mode="json", exclude_none=True)


def _read_job(written: Written, source: str) -> dict[str, Any]:
    """The job in a file, with the table of a preset wherever it names one, so that single flags can
    override its fields.
    """
    data, written.job_file = cli.job_file.read(source)
    for path, kind in NAMED.items():
        parent: Any = data
        *parts, last = path.split(".")
        for part in parts:
            parent = parent.get(part) if isinstance(parent, dict) else None
        if isinstance(parent, dict) and isinstance(parent.get(last), str):
            name = written.names[path] = parent[last]
            beside = presets.beside(source, kind, name)
            if path == QUANTISED:
                parent[last] = beside  # a Model reads it itself, and words of earlier versions too
            elif path not in written.given and not (
                path == "cluster.gpu" and "cluster.node" in written.given
            ):
                parent[last] = _named(kind, beside, path, f" (in {written.job_file})")
    return data


def _put(data: dict[str, Any], path: str, value: Any, written: Written) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if inner is None:
            inner = data[parent] = {}
        if not isinstance(inner, dict):
            raise UserError(
                written.line(
                    parent,
                    f"is not a table of fields, so {FLAG_OF_PATH[path]} cannot change one of them",
                )
            )
        data = inner
    data[last] = value
