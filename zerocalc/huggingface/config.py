"""A Hugging Face ``config.json`` as a `Model`, its parameters counted exactly; anything else is
refused by name.

What each family's keys mean is data (``presets/families``, `zerocalc.huggingface.family_file`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from zerocalc import presets
from zerocalc.huggingface.dimensions import dimensions, spelling
from zerocalc.huggingface.expressions import ExpressionError
from zerocalc.huggingface.family_file import MOST_LAYERS, FamilyFile, Places, find, model_types
from zerocalc.huggingface.key_types import spelled
from zerocalc.huggingface.known_keys import (
    NEUTRAL,
    QUANTISED,
    WRITTEN_OUT,
    check_guarded,
    check_known,
    suspicion,
)
from zerocalc.huggingface.quantisation_table import QuantisationError
from zerocalc.huggingface.quantised import read as read_quantisation
from zerocalc.huggingface.reader import NO_MODEL_TYPE, WAYS_OUT, Reader
from zerocalc.presets import PresetError, label, nearest
from zerocalc.quantities import shown
from zerocalc.spec.base import FieldError, explain
from zerocalc.spec.dimensions import ModelKind
from zerocalc.spec.implementation import UNKNOWN
from zerocalc.spec.model import Model
from zerocalc.spec.quantisation import Quantisation

CLOSE = 0.7
"""How alike the names of families must be to be told as near: they are short, and there are many.
"""


def load_model(name: str | os.PathLike[str]) -> Model:
    """The model that a preset's name, a TOML file or a Hugging Face ``config.json`` describes.

    Raises `PresetError`, one line that starts with the name, where there is no such thing or it
    holds what is not counted exactly.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(
            "load_model takes the name of a preset or the path of a file, not "
            f"{type(name).__name__}"
        )
    path = os.fspath(name)
    try:
        return Model.model_validate(read_model(path))
    except ValidationError as error:
        raise PresetError(": ".join([label(path), *filter(None, explain(error, Model))])) from None


def read_model(
    name: str, other: Callable[[Mapping[str, Any]], str] = lambda table: ""
) -> dict[str, Any]:
    """The fields of such a model, validated only where a config says them; raises `PresetError` as
    `load_model` does.

    ``other`` says what a table is that describes no model, or nothing where it does not know.
    """
    if presets.is_preset("models", name) or not presets.is_path(name):
        return presets.load("models", name)
    text = _text(name)
    table = presets.parse(text, name)
    ours = bool(table) and table.keys() <= Model.model_fields.keys()
    if ours and isinstance(table.get("quantised"), str):
        table["quantised"] = presets.beside(name, "quantisations", table["quantised"])
    if not ours and "model_type" not in table and (words := other(table)):
        raise PresetError(f"{label(name)} {words}")
    if ours or not (name.lower().endswith(".json") or text.lstrip().startswith("{")):
        return table
    if {"job", "cluster", "candidates"} & table.keys():
        raise PresetError(f"{label(name)} is a job or an answer, not a model; --job reads it")
    return model_from_config(table, label(name), source=label(Path(name).name)).model_dump(
        mode="json", exclude_none=True
    )


def read_config(path: str) -> dict[str, Any]:
    """The JSON object in the file at ``path``, not looked into; raises `PresetError`, one line,
    where there is none.
    """
    return presets.parse_json(_text(path), label(path))


def _text(path: str) -> str:
    nested = False
    with contextlib.suppress(OSError, ValueError):
        nested = Path(path).is_dir() and (Path(path) / "config.json").is_file()
    if nested:
        raise PresetError(f"{label(path)} is a directory; give the config.json in it")
    return presets.read_text(path)


def model_from_config(config: Mapping[str, Any], name: str, *, source: str | None = None) -> Model:
    """The model that a config describes: sizes in elements, parameters exact.

    ``name`` is what errors call the config, ``source`` what the model says it came from. Whatever
    was taken on trust is in the model's ``assumed``. Raises `PresetError`, one line, where a
    dimension is missing or is none, the family or its class is not known, or a key speaks of
    tensors that are not counted. Source: the classes of transformers 5.24.0 and 4.57.3.
    """
    reader = Reader(config, name)
    file = _family(reader)
    _check(reader, file)
    try:
        fields, places = _described(reader, file)
        dtype = reader.dtype()
        fields["quantised"] = _quantised(reader, places, dtype)
        if fields.get("activation") == UNKNOWN:
            _refuse_activation(reader, file)
        fields |= {
            "source": source or name,
            "title": reader.title(config["model_type"]),
            "dtype": dtype,
            "assumed": (*reader.notes, *file.noted(config)),
        }
        return Model.model_validate(fields)
    except (ExpressionError, FieldError) as error:
        raise PresetError(f"{name}: {error}") from None
    except ValidationError as error:
        raise PresetError(f"{name}: {_blamed(reader, file, error)}") from None


def _family(reader: Reader) -> FamilyFile:
    """The file of the family that ``model_type`` and ``architectures`` name."""
    wanted, classes = reader.table.get("model_type"), reader.table.get("architectures")
    if wanted is None:
        raise PresetError(f"{reader.name}: {NO_MODEL_TYPE}")
    if not isinstance(wanted, str):
        reader.refuse("model_type", f"{spelled(wanted)} is not a text")
    named = [c for c in classes if isinstance(c, str)] if isinstance(classes, list) else []
    file = find(wanted, named)
    if file is None:
        missing = {
            what for key, value in reader.table.items() if value and (what := suspicion(key))
        }
        why = f" ({', '.join(sorted(missing))} not counted)" if missing else ""
        near = nearest(wanted, model_types(), CLOSE)
        raise PresetError(
            f"{reader.name}: model_type {shown(wanted)} is not known yet{why}{near}; known are "
            f"{', '.join(get_args(ModelKind))} and those of zerocalc presets families; {WAYS_OUT}"
        )
    return file


def _check(reader: Reader, file: FamilyFile) -> None:
    """Refuse a class or a key that the family's file does not count; note what it does not know."""
    config, model_type, known = reader.table, reader.table["model_type"], file.known_keys()
    _check_architecture(reader, file)
    check_guarded(reader, known if file.kind else known | WRITTEN_OUT)
    check_known(reader, model_type, known, config)
    for key, value in config.items():
        if not file.kind and isinstance(value, dict) and key in known and key not in NEUTRAL:
            check_known(reader, model_type, known, value)
    for key, what in file.refuse.items():
        if config.get(key):
            reader.refuse(key, f"{what} not counted yet; {WAYS_OUT}")


def _check_architecture(reader: Reader, file: FamilyFile) -> None:
    """Refuse another class than the family's causal language model: other heads have other
    tensors.
    """
    named, ours = reader.table.get("architectures"), file.architectures[0]
    if named is None or named == []:
        reader.notes.append(f"architectures is not given; counted as {ours}")
    elif not isinstance(named, list):
        reader.refuse("architectures", f"{spelled(named)} is not a list of names")
    else:
        for architecture in named:
            if architecture not in file.architectures:
                reader.refuse(
                    "architectures",
                    f"{spelled(architecture)} is not counted yet; of model_type "
                    f"{reader.table['model_type']} {ours} is; or --count-with transformers",
                )
    if reader.table.get("auto_map"):
        reader.notes.append(f"auto_map points to code of its own; counted as transformers' {ours}")


def _described(reader: Reader, file: FamilyFile) -> tuple[dict[str, Any], Places | None]:
    """The architecture's fields of `Model`, and which layers are alike where their numbers are
    those of one list.
    """
    if file.kind is not None:
        fields = dimensions(reader, file)
        layers = fields["layers"]
        return fields, (tuple(range(layers)),) if layers <= MOST_LAYERS else None
    stack, places = file.placed(reader.table)
    one_list = len(file.layers) == 1
    return {"stack": stack, "family": reader.table["model_type"]}, places if one_list else None


def _quantised(reader: Reader, places: Places | None, dtype: str | None) -> Quantisation | None:
    """How the checkpoint's weights are quantised, if they are; the count is that of the model they
    were made from.
    """
    table = reader.table.get(QUANTISED)
    if not table:
        return None
    try:
        found, notes = read_quantisation(table, places, dtype == "fp32")
    except QuantisationError as error:
        key = f"{QUANTISED}.{error.key}" if error.key else QUANTISED
        raise PresetError(f"{reader.name}: {key}: {error}") from None
    reader.notes.append(f"{QUANTISED}: {found.title}; parameters counted as before quantisation")
    reader.notes += notes
    return found


def _refuse_activation(reader: Reader, file: FamilyFile) -> None:
    """Refuse a function of which it is not known what it saves for backward."""
    key = spelling(reader, file, "activation") or "activation"
    reader.refuse(
        key,
        f"what {spelled(reader.table[key])} keeps for backward is not known; give --params for "
        "the states alone",
    )


def _blamed(reader: Reader, file: FamilyFile, error: ValidationError) -> str:
    """What a `Model` refuses, under the config's key where there is one."""
    path, text = explain(error)
    if file.kind is not None:
        return f"{spelling(reader, file, path.rpartition('.')[2]) or path}: {text}"
    return text if path == "model.stack" else f"{path} {text}"
