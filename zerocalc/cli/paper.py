"""`zerocalc paper`: published tables, recomputed and compared."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from zerocalc import papers, render
from zerocalc.cli import Sections, examples, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.parameters import AsJson
from zerocalc.cli.streams import print_json
from zerocalc.presets import PresetError

app = new_app()


Wanted = Annotated[
    Optional[str],
    typer.Argument(
        metavar="[TABLE]",
        help="Table name, or all (default: overview).",
        autocompletion=lambda: [*papers.tables.tables(), "all"],
    ),
]


@app.command(cls=Sections, epilog=examples("paper", "paper zero-table1"))
def paper(table: Wanted = None, *, as_json: AsJson = False) -> int:
    """Recompute published tables, cell by cell.

    Exit 1 if a cell differs by more than its printed rounding.
    """
    try:
        names = papers.tables.tables() if table in (None, "all") else [table]
        tables = papers.tables.all_tables(names)
    except PresetError as error:
        raise UserError(f"TABLE: {error}") from None
    if as_json:
        whole = {"comparison": papers.comparison.comparison()} if table is None else {}
        print_json({"schema_version": 1, **whole, "tables": tables})
    elif table is None:
        render.papers.show_overview(papers.comparison.comparison(), tables)
    else:
        render.papers.show_tables(tables)
    return 1 if any(t.differs for t in tables) else 0
