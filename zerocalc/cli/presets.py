"""`zerocalc presets`: what can be named, and what each name stands for."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from zerocalc import presets as store
from zerocalc.cli import Sections, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import AsJson
from zerocalc.cli.streams import print_json

app = new_app()
Kind = Annotated[Optional[str], typer.Argument(metavar="[KIND]", help=f"One of {', '.join(store.KINDS)}.", autocompletion=lambda: list(store.KINDS))]  # noqa: UP045
Name = Annotated[Optional[str], typer.Argument(metavar="[NAME]", help="A preset of that kind.")]  # noqa: UP045


@app.command(cls=Sections)
def presets(kind: Kind = None, name: Name = None, *, as_json: AsJson = False) -> int:
    """List presets: the kinds, the names of one kind, or one preset with its figures and their source."""
    if kind is not None and kind not in store.KINDS:
        near = store.nearest(kind, store.KINDS)
        raise UserError(f"KIND: {kind!r} is not a kind of preset{near}; the kinds are {', '.join(store.KINDS)}")
    try:
        tables = {one: store.load(kind, one) for one in (store.names(kind) if name is None else [name])} if kind else {}
    except store.PresetError as error:
        raise UserError(f"NAME: {error}") from None
    if as_json:
        print_json(tables if kind else {one: store.names(one) for one in store.KINDS})
        return 0
    from zerocalc.render import presets as view

    if kind is None:
        view.show_kinds({one: store.names(one) for one in store.KINDS})
    elif name is None:
        view.show_names(kind, tables)
    else:
        view.show_one(kind, name, tables[name])
    return 0
