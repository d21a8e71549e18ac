"""`zerocalc step`: one training step, moment by moment."""

from __future__ import annotations

from typing import Any

from zerocalc import answers, render
from zerocalc.cli import Sections, new_app
from zerocalc.cli.jobs import make_plan
from zerocalc.cli.parameters import AsJson, JobFile, job_flags
from zerocalc.cli.streams import print_json

app = new_app()


@app.command(cls=Sections)
@job_flags
def step(*, given: dict[str, Any], job_file: JobFile = None, as_json: AsJson = False) -> int:
    """Walk through one training step, stages side by side: what each GPU holds, what arrives, what
    is freed, what is sent.
    """
    answer = make_plan(given, job_file)
    if as_json:
        stages = [
            {
                "name": c.name,
                "stage": c.stage,
                "moments": answers.document.plain(answers.timeline.walk(c)),
            }
            for c in answer.candidates
        ]
        print_json(
            {
                "schema_version": answer.schema_version,
                "job": answer.job,
                "stages": stages,
                "notes": answer.notes,
            }
        )
    else:
        render.steps.show(answer)
    return 0
