"""A job file: a job alone, or an answer of ours that holds one; anything else is called by what it
is.
"""

from __future__ import annotations

from typing import Any

from zerocalc import configs, presets
from zerocalc.cli.errors import UserError
from zerocalc.presets import PresetError
from zerocalc.results import SCHEMA_VERSION
from zerocalc.spec.base import Spec
from zerocalc.spec.cluster import Gpu, Node
from zerocalc.spec.framework import Framework
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import Recipe

STANDARD_INPUT = presets.STANDARD_INPUT
DESCRIBED: dict[str, type[Spec]] = {
    "--model": Model,
    "--gpu": Gpu,
    "--node": Node,
    "--recipe": Recipe,
    "--framework": Framework,
}
"""What the files describe that flags read."""


def read(source: str) -> tuple[dict[str, Any], str]:
    """The job in a file or, for ``-``, on standard input, and what errors call that. Raises
    `UserError` with one line.
    """
    try:
        if source == "-":
            name = STANDARD_INPUT
            table = presets.parse(presets.read_standard_input(), "", name)
        elif not source.strip():
            raise PresetError(f"{source!r} is no file; give a path, or - for standard input")
        else:
            name = presets.label(source)
            table = presets.read_table(source)
        return _job_in(table, name), name
    except PresetError as error:
        raise UserError(f"--job: {error}") from None
    except OSError as error:
        raise UserError(f"--job: {STANDARD_INPUT}: {error.strerror or error}") from None


def _job_in(table: dict[str, Any], name: str) -> dict[str, Any]:
    """The job itself; of a whole answer, its ``job``."""
    if "job" not in table:
        what = _other(table)
        if what:
            raise PresetError(f"{name} {what}")
        return table
    version = table.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise PresetError(
            f"{name} has schema_version {version!r}; this program reads {SCHEMA_VERSION}"
        )
    beside = [
        key
        for key in table
        if key in Job.model_fields or ("schema_version" not in table and key != "job")
    ]
    if beside:
        raise PresetError(
            f"{name} has a job and, beside it, "
            f"{', '.join(map(presets.label, beside[:3]))}; put these into the job, or "
            "leave one of them out"
        )
    job = table["job"]
    if not isinstance(job, dict):
        raise PresetError(f"the job in {name} is not a JSON object")
    return job


def _other(table: dict[str, Any]) -> str:
    """What a table is that is no job, and what would be right; nothing where it is one, or is
    empty.
    """
    fields = list(Job.model_fields)
    if table.keys() - set(fields):
        configuration = configs.config_file.described(table)
        if configuration:
            return configuration
    if not table or {"model", "cluster"} & table.keys():
        return ""
    known = _known(table)
    if known or table.keys() & set(fields):
        return known
    near = next((near for key in table if (near := presets.nearest(key, fields))), "")
    return f"has none of a job's fields, which are {', '.join(fields)}{near}"


def _known(table: dict[str, Any]) -> str:
    """What a table is, if it is something that another flag or command has to do with."""
    if {"model_type", "architectures"} & table.keys():
        return "is a Hugging Face config; --model reads it"
    if "schema_version" in table:
        command = (
            "params" if "components" in table else "paper" if "tables" in table else "a command"
        )
        return f"is an answer of {command}, without a job; plan --json writes one that has it"
    if table.keys() <= set(presets.KINDS):
        return "is a list of presets; a job names them in its fields (plan --json writes one)"
    for flag, spec in DESCRIBED.items():
        if table.keys() <= spec.model_fields.keys() and not table.keys() <= Job.model_fields.keys():
            return f"describes a {flag[2:].replace('gpu', 'GPU')}, not a job; {flag} reads it"
    return ""
