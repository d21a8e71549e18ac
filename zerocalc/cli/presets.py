"""`zerocalc presets`: what can be named, and what each name stands for."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Optional

import typer

from zerocalc import model as models
from zerocalc import presets as store
from zerocalc import render
from zerocalc.cli import Sections, examples, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.jobs import validated
from zerocalc.cli.parameters import AsJson
from zerocalc.cli.streams import print_json
from zerocalc.spec.base import Spec
from zerocalc.spec.model import Model

app = new_app()
Kind = Annotated[
    Optional[str],
    typer.Argument(
        metavar="[KIND]",
        help="Kind of preset (default: all kinds).",
        autocompletion=lambda: list(store.KINDS),
    ),
]
Name = Annotated[
    Optional[str],
    typer.Argument(metavar="[NAME]", help="Preset name, or a file to check."),
]


@app.command(cls=Sections, epilog=examples("presets gpus", "presets models llama-3-8b"))
def presets(kind: Kind = None, name: Name = None, *, as_json: AsJson = False) -> int:
    """List presets, or show one with its source."""
    if kind is not None and kind not in store.KINDS:
        near = store.nearest(kind, store.KINDS)
        raise UserError(
            f"KIND: {kind!r} is not a kind of preset{near}; the kinds are {', '.join(store.KINDS)}"
        )
    if kind is None:
        kinds = {one: store.names(one) for one in store.KINDS}
        if as_json:
            print_json(kinds)
        else:
            render.presets.show_kinds(kinds)
        return 0
    if as_json:
        print_json(
            {
                one: _in_plain_numbers(kind, one)
                for one in (store.names(kind) if name is None else [name])
            }
        )
        return 0
    if name is None:
        render.presets.show_names(
            kind,
            {
                one: _model(one) if kind == "models" else store.load(kind, one)
                for one in store.names(kind)
            },
        )
    else:
        render.presets.show_one(kind, store.label(name), _checked(kind, name)[0])
    return 0


def _model(name: str) -> dict[str, Any]:
    """What a list shows of a model: it is counted."""
    model = Model.model_validate(store.load("models", name))
    counts = models.counting.count_parameters(model)
    return {
        "family": model.kind or model.family,
        "layers": model.layer_count,
        "parameters": f"{counts.total:,}",
        "active per token": "all" if counts.active == counts.total else f"{counts.active:,}",
    }


def _in_plain_numbers(kind: str, name: str) -> dict[str, Any]:
    """A preset's fields, each figure as a number of what its key says: bytes, FLOP/s."""
    table, made = _checked(kind, name)
    plain = made.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {key: plain.get(key, value) for key, value in table.items()}


def _checked(kind: str, name: str) -> tuple[dict[str, Any], Spec]:
    """A preset's table and what it describes; what it names is checked too."""
    table, made = validated(kind, _spec(kind), name, "NAME")
    for field, other in store.REFERENCES.get(kind, {}).items():
        named = getattr(made, field)
        if isinstance(named, str):  # a model reads the format that it names itself
            validated(other, _spec(other), named, f"NAME {store.label(name)}: {field}")
    return table, made


def _spec(kind: str) -> type[Spec]:
    """What a file of that kind describes."""
    place, _, what = {
        "models": "spec.model.Model",
        "gpus": "spec.cluster.Gpu",
        "nodes": "spec.cluster.Node",
        "recipes": "spec.recipe.Recipe",
        "frameworks": "spec.framework.Framework",
        "implementations": "spec.implementation.Implementation",
        "losses": "spec.loss.Loss",
        "families": "huggingface.family_file.FamilyFile",
        "quantisations": "spec.quantisation.Quantisation",
        "papers": "spec.paper.Paper",
    }[kind].rpartition(".")
    found: type[Spec] = getattr(import_module(f"zerocalc.{place}"), what)
    return found
