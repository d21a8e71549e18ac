"""`zerocalc step`: one training step, moment by moment."""

from __future__ import annotations

from typing import Any

from zerocalc.cli import Sections, new_app
from zerocalc.cli.flags import AsJson, JobFile, job_flags
from zerocalc.cli.jobs import make_plan
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
        from zerocalc.answers.document import plain
        from zerocalc.answers.timeline import walk

        stages = [
            {"name": c.name, "stage": c.stage, "moments": plain(walk(c))} for c in answer.candidates
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
        from zerocalc.render.steps import show

        show(answer)
    return 0
