"""`zerocalc params`: a model's parameters, counted tensor by tensor."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from zerocalc import render
from zerocalc.cli import Sections, examples, new_app
from zerocalc.cli.error_location import about
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import FLAG_OF_PATH, FLAGS
from zerocalc.cli.jobs import make_model
from zerocalc.cli.parameters import AsJson, CountWith, option
from zerocalc.cli.streams import print_json
from zerocalc.model.counting import count_parameters
from zerocalc.presets import label

app = new_app()
TAKEN = ("model.quantised", "model.lora.rank", "model.lora.targets")
QUANTISE, RANK, TARGETS = (next(flag for flag in FLAGS if flag.path == path) for path in TAKEN)


@app.command(
    cls=Sections,
    epilog=examples("params llama-3-8b", "params path/to/config.json --quantise nf4"),
)
def params(
    model: Annotated[
        str,
        typer.Argument(metavar="CONFIG|PRESET", help="Preset, TOML file or config.json."),
    ],
    *,
    quantise: Annotated[Optional[str], option(QUANTISE)] = None,
    lora_rank: Annotated[Optional[str], option(RANK)] = None,
    lora_targets: Annotated[Optional[str], option(TARGETS)] = None,
    count_with: CountWith = None,
    as_json: AsJson = False,
) -> int:
    """Count a model's parameters and checkpoint bytes."""
    given: dict[str, Any] = {
        QUANTISE.path: quantise,
        RANK.path: lora_rank,
        TARGETS.path: lora_targets,
    }
    described = make_model(
        model, {path: value for path, value in given.items() if value is not None}, count_with
    )
    try:
        counts = count_parameters(described)
    except ValueError as error:
        path = getattr(error, "path", "")
        raise UserError(
            about(path, str(error))
            if path in FLAG_OF_PATH
            else f"CONFIG|PRESET {label(model)}: {error}"
        ) from None
    if as_json:
        print_json(counts)
    else:
        render.counts.show(described, counts)
    return 0
