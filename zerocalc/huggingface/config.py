"""A Hugging Face ``config.json`` as a `Model`, its parameters counted exactly; anything else is
refused by name.

What each family's keys mean is data (`zerocalc.huggingface.flat_families`); here is the one reader
of them all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from zerocalc import configs, presets
from zerocalc.huggingface.expressions import ExpressionError, activation
from zerocalc.huggingface.family_file import MOST_LAYERS, FamilyFile, Places, model_types
from zerocalc.huggingface.family_file import find as find_family
from zerocalc.huggingface.flat_families import (
    BY_MODEL_TYPE,
    DERIVED,
    GUARDED,
    LAYER_TYPES,
    NEUTRAL,
    REQUIRED,
    SUSPECTS,
    WRITTEN_OUT,
    Family,
    Key,
)
from zerocalc.huggingface.key_types import check_lists, check_sizes, spelled
from zerocalc.huggingface.quantisation_table import QuantisationError
from zerocalc.huggingface.quantised import read as read_quantisation
from zerocalc.presets import PresetError, nearest
from zerocalc.quantities import parse_fraction, parse_whole, shown
from zerocalc.spec.base import explain
from zerocalc.spec.implementation import UNKNOWN
from zerocalc.spec.model import Model
from zerocalc.spec.quantisation import Quantisation

QUANTISED = "quantization_config"
DTYPES = {
    **dict.fromkeys(("float64", "double"), "fp64"),
    **dict.fromkeys(("float32", "float"), "fp32"),
    "bfloat16": "bf16",
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "fp8"),
}
"""PyTorch's names of what weights are kept in."""
CLOSE = 0.7
"""How alike the names of families must be to be told as near: they are short, and there are many.
"""
WAYS_OUT = "give --params for the states alone, or --count-with transformers"
BOOLEANS = frozenset({"tied_embeddings", "qkv_bias", "out_bias", "mlp_bias", "qk_norm"})
ACTIVATIONS = frozenset({"hidden_act", "hidden_activation", "activation_function"})
"""Keys that name a function: whatever it is changes no tensor, but a number there is a slip of the
pen.
"""
_LISTED = 6
"""Unknown keys that a note names; the rest is counted."""
_LONGEST_TITLE = 200


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


def read_model(name: str) -> dict[str, Any]:
    """The fields of such a model, validated only where a config says them; raises `PresetError` as
    `load_model` does.
    """
    if presets.is_preset("models", name) or not presets.is_path(name):
        return presets.load("models", name)
    text = _text(name)
    table = presets.parse(text, name)
    ours = bool(table) and table.keys() <= Model.model_fields.keys()
    if ours and isinstance(table.get("quantised"), str):
        table["quantised"] = presets.beside(name, "quantisations", table["quantised"])
    if not ours and "model_type" not in table:
        other = configs.config_file.described(table)
        if other:
            raise PresetError(f"{label(name)} {other}")
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
    reader = _Reader(config, name)
    return reader.model(source or name)


class _Reader:
    """Reads one config; ``notes`` is what it took on trust."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.notes: list[str] = []

    def model(self, source: str) -> Model:
        file = self.family_file()
        if file is not None:
            return self.written_out(file, source)
        family = self.family()
        self.check_architecture(family.model_type, family.architectures)
        known = family.neutral | family.dropouts.keys() | {family.activation[0]}
        known |= {
            spelling
            for fact in family.fields.values()
            if isinstance(fact, Key)
            for spelling in fact.spellings
        }
        self.check_guarded(frozenset())
        self.check_keys(family.model_type, known, self.config)
        self.check_layer_types()
        self.check_lengths()
        values: dict[str, Any] = {
            "kind": family.kind,
            "source": source,
            "title": self.title(family.model_type),
        }
        for field, fact in family.fields.items():
            values[field] = self.value(field, fact, family) if isinstance(fact, Key) else fact
        values["dropout"] = self.dropout(family)
        layers = values.get("layers")
        values["quantised"] = self.quantised(
            (tuple(range(layers)),) if isinstance(layers, int) and layers <= MOST_LAYERS else None
        )
        values["dtype"] = self.dtype()
        values["activation"] = self.activation(*family.activation)
        try:
            return Model.model_validate({**values, "assumed": tuple(self.notes)})
        except ValidationError as error:
            path, text = explain(error)
            blamed = family.fields.get(path.rsplit(".", 1)[-1])
            key = self.spelling(blamed) if isinstance(blamed, Key) else path
            raise PresetError(f"{self.name}: {key}: {text}") from None

    def family_file(self) -> FamilyFile | None:
        """The file of a family whose layers are written out, where ``model_type`` names one."""
        wanted, classes = self.config.get("model_type"), self.config.get("architectures")
        if not isinstance(wanted, str) or wanted in BY_MODEL_TYPE:
            return None
        return find_family(
            wanted, [c for c in classes if isinstance(c, str)] if isinstance(classes, list) else []
        )

    def written_out(self, file: FamilyFile, source: str) -> Model:
        """The model of a family's file, module by module."""
        model_type = self.config["model_type"]
        self.check_architecture(model_type, tuple(file.architectures))
        known = file.known()
        self.check_guarded(known | WRITTEN_OUT)
        self.check_keys(model_type, known, self.config)
        for key, value in self.config.items():
            if isinstance(value, dict) and key in known and key not in NEUTRAL:
                self.check_keys(model_type, known, value)
        for key, what in file.refuse.items():
            if self.config.get(key):
                self.refuse(key, f"{what} not counted yet; {WAYS_OUT}")
        try:
            stack, places = file.placed(self.config)
            quantised = self.quantised(places if len(file.layers) == 1 else None)
            values = {
                "stack": stack,
                "family": model_type,
                "source": source,
                "title": self.title(model_type),
                "quantised": quantised,
            }
            model = Model.model_validate(
                {
                    **values,
                    "dtype": self.dtype(),
                    "assumed": (*self.notes, *file.noted(self.config)),
                }
            )
        except ExpressionError as error:
            raise PresetError(f"{self.name}: {error}") from None
        except ValidationError as error:
            raise PresetError(
                f"{self.name}: {' '.join(part for part in explain(error) if part != 'model.stack')}"
            ) from None
        return model

    def quantised(self, places: Places | None) -> Quantisation | None:
        """How the checkpoint's weights are quantised, if they are; the count is that of the model
        they were made from.
        """
        table = self.config.get(QUANTISED)
        if not table:
            return None
        try:
            found, notes = read_quantisation(table, places, self.dtype() == "fp32")
        except QuantisationError as error:
            key = f"{QUANTISED}.{error.key}" if error.key else QUANTISED
            raise PresetError(f"{self.name}: {key}: {error}") from None
        self.notes.append(f"{QUANTISED}: {found.title}; parameters counted as before quantisation")
        self.notes += notes
        return found

    def dtype(self) -> str | None:
        """In which a checkpoint is kept, where the config, or its text model's, says so."""
        nested = self.config.get("text_config")
        for table in (self.config, nested if isinstance(nested, dict) else {}):
            for key in ("dtype", "torch_dtype"):
                value = table.get(key)
                if value is None or value == "auto":
                    continue
                if not isinstance(value, str) or value.removeprefix("torch.") not in DTYPES:
                    self.refuse(
                        key,
                        f"{spelled(value)} is not a dtype that weights are kept in, such "
                        "as bfloat16 or float32",
                    )
                return DTYPES[value.removeprefix("torch.")]
        return None

    def refuse(self, key: str, text: str) -> NoReturn:
        raise PresetError(f"{self.name}: {_word(key)}: {text}")

    def family(self) -> Family:
        """The family that ``model_type`` names."""
        wanted = self.config.get("model_type")
        if wanted is None:
            raise PresetError(
                f"{self.name}: model_type is missing; this is no config.json of a Hugging "
                "Face model"
            )
        if not isinstance(wanted, str):
            self.refuse("model_type", f"{spelled(wanted)} is not a text")
        if wanted not in BY_MODEL_TYPE:
            missing = sorted(
                {what for key, value in self.config.items() if value and (what := _suspicion(key))}
            )
            why = f" ({', '.join(missing)} not counted)" if missing else ""
            known = [*BY_MODEL_TYPE, *model_types()]
            near = nearest(wanted, known, CLOSE)
            listed = ", ".join(
                name for name in BY_MODEL_TYPE if name not in presets.names("families")
            )
            known_are = f"known are {listed} and those of zerocalc presets families"
            raise PresetError(
                f"{self.name}: model_type {shown(wanted)} is not known yet{why}{near}; "
                f"{known_are}; {WAYS_OUT}"
            )
        return BY_MODEL_TYPE[wanted]

    def check_architecture(self, model_type: str, architectures: tuple[str, ...]) -> None:
        """The class must be the family's causal language model: other heads have other tensors."""
        named, ours = self.config.get("architectures"), architectures[0]
        if named is None or named == []:
            self.notes.append(f"architectures is not given; counted as {ours}")
        elif not isinstance(named, list):
            self.refuse("architectures", f"{spelled(named)} is not a list of names")
        else:
            for architecture in named:
                if architecture not in architectures:
                    self.refuse(
                        "architectures",
                        f"{spelled(architecture)} is not counted yet; of model_type "
                        f"{model_type} {ours} is; or --count-with transformers",
                    )
        if self.config.get("auto_map"):
            self.notes.append(
                f"auto_map points to code of its own; counted as transformers' {ours}"
            )

    def check_guarded(self, known: frozenset[str]) -> None:
        """Keys of any config that mean tensors of other kinds, but for those a family's file
        knows.
        """
        for key, what in GUARDED.items():
            if self.config.get(key) and key not in known:
                self.refuse(key, f"{what} are not counted yet; {WAYS_OUT}")

    def check_keys(
        self, model_type: str, known: AbstractSet[str], table: Mapping[str, Any]
    ) -> None:
        """Keys this family does not know: refused where the name speaks of tensors, noted
        otherwise.
        """
        for key in ACTIVATIONS & table.keys():
            if table[key] is not None and not isinstance(table[key], str):
                self.refuse(key, f"{spelled(table[key])} is not the name of an activation function")
        unknown = [
            key
            for key in table
            if key not in known and key not in NEUTRAL and key not in GUARDED and key != QUANTISED
        ]
        for key in unknown:
            what = _suspicion(key)
            if what and table[key]:
                self.refuse(
                    key,
                    f"is not known for model_type {model_type}, and {what} are not counted "
                    f"yet; {WAYS_OUT}",
                )
        if unknown:
            more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
            plural = "keys" if len(unknown) > 1 else "key"
            self.notes.append(
                f"config {plural} not known, taken as changing nothing: "
                f"{', '.join(map(_word, unknown[:_LISTED]))}{more}"
            )

    def check_layer_types(self) -> None:
        """Layers may differ in their masks only."""
        types = self.config.get("layer_types")
        if types is None:
            return
        if not isinstance(types, list):
            self.refuse("layer_types", f"{spelled(types)} is not a list of names")
        for kind in types:
            if not isinstance(kind, str) or kind not in LAYER_TYPES:
                self.refuse(
                    "layer_types",
                    f"{spelled(kind)} is not counted yet; {' and '.join(sorted(LAYER_TYPES))} are",
                )

    def check_lengths(self) -> None:
        """Sizes of any config, and lists with one entry for each layer."""
        try:
            check_sizes(self.config)
            check_lists(self.config)
        except ExpressionError as error:
            raise PresetError(f"{self.name}: {error}") from None

    def spelling(self, key: Key) -> str:
        """The spelling that the config uses, or the family's first."""
        return next(
            (spelling for spelling in key.spellings if spelling in self.config), key.spellings[0]
        )

    def value(self, field: str, key: Key, family: Family) -> int | None:
        """The value of one field; ``None`` leaves it to `Model`."""
        given = [spelling for spelling in key.spellings if spelling in self.config]
        if not given:
            if key.absent == REQUIRED:
                raise PresetError(f"{self.name}: {key.spellings[0]} is missing")
            if key.absent == DERIVED:
                return None
            if field not in BOOLEANS:
                self.notes.append(
                    f"{key.spellings[0]} is not given; {key.absent} "
                    f"({family.architectures[0]}'s default)"
                )
            return key.absent
        values = [self.one(spelling, field, key) for spelling in given]
        for spelling, value in zip(given, values, strict=True):
            if value != values[0]:
                self.refuse(spelling, f"{value} contradicts {given[0]} {values[0]}")
        return values[0]

    def one(self, spelling: str, field: str, key: Key) -> int | None:
        """One spelling's value, checked: true or false, or a whole number of at least 1."""
        value = self.config[spelling]
        if value is None and key.null:
            return None
        if field in BOOLEANS:
            if not isinstance(value, bool):
                self.refuse(spelling, f"{spelled(value)} is not true or false")
            return value
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or (isinstance(value, float) and not value.is_integer())
        ):
            self.refuse(spelling, f"{spelled(value)} is not a whole number")
        try:
            return parse_whole(value)
        except ValueError as error:
            self.refuse(
                spelling, f"{spelled(value)} is not at least 1" if value < 0 else str(error)
            )

    def activation(self, key: str, default: str) -> str:
        """The activation of the MLPs, by our word for it."""
        given = self.config.get(key, default)
        word = activation(given)
        if word == UNKNOWN:
            self.refuse(
                key,
                f"what {spelled(given)} keeps for backward is not known; give --params for "
                "the states alone",
            )
        return word

    def dropout(self, family: Family) -> float:
        """The one rate of dropout that `Model` has; memory depends only on whether it is zero."""
        rates = {key: self.rate(key, default) for key, default in family.dropouts.items()}
        largest = max(rates.values(), default=0.0)
        if family.kind != "gpt2":
            self.notes.extend(
                f"{key} {rate:g}: its masks are not counted (flash attention keeps none)"
                for key, rate in rates.items()
                if rate
            )
            return 0.0
        if len(set(rates.values())) > 1:
            self.notes.append(
                f"dropout {largest:g} everywhere "
                f"({', '.join(f'{key} {rate:g}' for key, rate in rates.items())})"
            )
        return largest

    def rate(self, key: str, default: float) -> float:
        """A rate of dropout: a number from 0 up to 1; null is no dropout."""
        value = self.config.get(key, default)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, f"{spelled(value)} is not a fraction from 0 up to 1, such as 0.1")
        try:
            return parse_fraction(value)
        except ValueError as error:
            self.refuse(key, str(error))

    def title(self, model_type: str) -> str:
        """What the config says it was loaded from, or its family."""
        given = self.config.get("_name_or_path")
        if (
            isinstance(given, str)
            and given.strip()
            and given.isprintable()
            and len(given) <= _LONGEST_TITLE
        ):
            return given.strip()
        titled = f"{model_type} ({self.name})"
        return titled if len(titled) <= _LONGEST_TITLE else model_type


def _suspicion(key: str) -> str | None:
    """The tensors that a key's name speaks of, if it does; ids of tokens are numbers only."""
    lower = key.lower()
    if lower.endswith(("_token_id", "_token_index", "_token_ids")):
        return None
    return next((what for part, what in SUSPECTS.items() if part in lower), None)


def label(path: str) -> str:
    """The path as errors call it: as written, unless that would not be one line."""
    return path if path.isprintable() else shown(path).strip("'\"")


def _word(key: str) -> str:
    """A key as a line quotes it."""
    return key if key.isprintable() and len(key) <= 40 else shown(key)
