"""`zerocalc params`: a model's parameters, counted tensor by tensor."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from zerocalc.cli import Sections, new_app
from zerocalc.cli.flags import AsJson, CountWith, option
from zerocalc.cli.jobs import make_model

app = new_app()
Quantise = Annotated[Optional[str], option("model.quantised")]  # noqa: UP045 - typer reads Optional


@app.command(cls=Sections)
def params(
    model: Annotated[str, typer.Argument(metavar="CONFIG|PRESET", help="A preset, a TOML file, or a config.json.")],
    *,
    quantise: Quantise = None,
    count_with: CountWith = None,
    as_json: AsJson = False,
) -> int:
    """Count a model's parameters by component, and the bytes that a checkpoint of it takes."""
    from zerocalc.counting import count_parameters

    described = make_model(model, count_with, quantise)
    counts = count_parameters(described)
    if as_json:
        from zerocalc.document import to_json

        typer.echo(to_json(counts))
    else:
        from zerocalc.render.counts import show

        show(described, counts)
    return 0
