"""`zerocalc export`: the configuration that runs a candidate, for the tool that is to run it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from zerocalc.answers.notes import CANNOT_JUDGE
from zerocalc.cli import Sections, examples, new_app
from zerocalc.cli.error_location import about
from zerocalc.cli.errors import UserError
from zerocalc.cli.jobs import plan_and_notes
from zerocalc.cli.parameters import AsJson, JobFile, file_option, job_flags
from zerocalc.cli.streams import print_json, tell
from zerocalc.configs.export import FORMS, defaults, write
from zerocalc.presets import nearest
from zerocalc.quantities import shown
from zerocalc.results import Estimate, Plan
from zerocalc.spec.base import FieldError

app = new_app()
To = Annotated[
    str,
    file_option(
        "--to",
        f"Tool to write for: {', '.join(FORMS)}.",
        "|".join(FORMS),
        autocompletion=lambda: list(FORMS),
    ),
]


@app.command(
    cls=Sections,
    epilog=examples(
        "export --to deepspeed --model llama-3-8b --gpus 8 --stage 3",
        "export --to fsdp2 --model llama-3-8b --gpus 8 --gpu h100-80g",
    ),
)
@job_flags
def export(
    *, given: dict[str, Any], to: To, job_file: JobFile = None, as_json: AsJson = False
) -> int:
    """Write the configuration of one ZeRO stage.

    The stage is the one of --stage, or else the recommended one. Settings that the configuration
    cannot hold are listed on standard error.
    """
    if to not in FORMS:
        raise UserError(
            f"--to: {shown(to)} is not one of {', '.join(FORMS)}{nearest(to, list(FORMS))}"
        )
    answer, notes = plan_and_notes(given, job_file, defaults(to))
    chosen = _chosen(answer)
    try:
        written = write(to, answer.job, chosen.stage)
    except FieldError as error:
        raise UserError(about(error.path, str(error))) from None
    if as_json:
        print_json(
            {
                "schema_version": answer.schema_version,
                "to": to,
                "name": chosen.name,
                "text": written.text,
                "not_in_it": written.remarks,
                "notes": notes,
            }
        )
        return 0
    typer.echo(written.text)
    sys.stdout.flush()  # before the remarks
    for line in (
        *(f"not in it: {remark}" for remark in written.remarks),
        *(f"note: {note}" for note in notes),
    ):
        tell(line)
    return 0


def _chosen(answer: Plan) -> Estimate:
    """The candidate to write: the only one, or the one recommended."""
    if len(answer.candidates) == 1:
        return answer.candidates[0]
    if answer.recommended is None:
        why = "nothing fits" if answer.verdict == "does_not_fit" else CANNOT_JUDGE
        stages = ", ".join(str(candidate.stage) for candidate in answer.candidates)
        raise UserError(f"--stage: pass one of {stages}; none is recommended: {why}")
    return next(
        candidate for candidate in answer.candidates if candidate.name == answer.recommended.name
    )
