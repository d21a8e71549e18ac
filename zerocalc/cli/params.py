"""`zerocalc params`: a model's parameters, counted tensor by tensor."""

from __future__ import annotations

from typing import Annotated

import typer

from zerocalc.cli import Sections, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import AsJson
from zerocalc.cli.jobs import make_model
from zerocalc.cli.streams import print_json
from zerocalc.presets import label

app = new_app()


@app.command(cls=Sections)
def params(
    model: Annotated[str, typer.Argument(metavar="CONFIG|PRESET", help="A preset, a TOML file, or a config.json.")], *, as_json: AsJson = False
) -> int:
    """Count a model's parameters by component."""
    from zerocalc.counting import count_parameters

    described = make_model(model)
    try:
        counts = count_parameters(described)
    except ValueError as error:
        raise UserError(f"CONFIG|PRESET {label(model)}: {error}") from None
    if as_json:
        print_json(counts)
    else:
        from zerocalc.render.counts import show

        show(described, counts)
    return 0
