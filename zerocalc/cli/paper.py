"""`zerocalc paper`: published tables, recomputed and set beside what is printed."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from zerocalc.cli import Sections, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import AsJson
from zerocalc.cli.streams import print_json
from zerocalc.presets import PresetError

app = new_app()


def _tables() -> list[str]:
    from zerocalc.papers.tables import tables

    return [*tables(), "all"]


Wanted = Annotated[
    Optional[str],
    typer.Argument(
        metavar="[TABLE]",
        help="A published table, or all; without one, ZeRO's comparison at 7.5B and a list.",
        autocompletion=_tables,
    ),
]


@app.command(cls=Sections)
def paper(table: Wanted = None, *, as_json: AsJson = False) -> int:
    """Recompute published tables, cell by cell; exit 1 if a cell differs by more than its printed
    rounding.
    """
    from zerocalc.papers import tables as papers

    try:
        names = papers.tables() if table in (None, "all") else [table]
        tables = papers.all_tables(names)
    except PresetError as error:
        raise UserError(f"TABLE: {error}") from None
    if as_json:
        whole = {"comparison": papers.comparison()} if table is None else {}
        print_json({"schema_version": 1, **whole, "tables": tables})
    else:
        from zerocalc.render import papers as view

        if table is None:
            view.show_overview(papers.comparison(), tables)
        else:
            view.show_tables(tables)
    return 1 if any(t.differs for t in tables) else 0
