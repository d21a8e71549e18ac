"""`zerocalc params`: a model's parameters, counted tensor by tensor."""

from __future__ import annotations

from typing import Annotated

import typer

from zerocalc.cli import Sections, new_app
from zerocalc.cli.flags import AsJson, CountWith
from zerocalc.cli.jobs import make_model

app = new_app()


@app.command(cls=Sections)
def params(
    model: Annotated[str, typer.Argument(metavar="CONFIG|PRESET", help="A preset, a TOML file, or a config.json.")],
    *,
    count_with: CountWith = None,
    as_json: AsJson = False,
) -> int:
    """Count a model's parameters by component."""
    from zerocalc.counting import count_parameters

    described = make_model(model, count_with)
    counts = count_parameters(described)
    if as_json:
        from zerocalc.document import to_json

        typer.echo(to_json(counts))
    else:
        from zerocalc.render.counts import show

        show(described, counts)
    return 0
