"""`zerocalc step`: one training step, moment by moment."""

from __future__ import annotations

from typing import Any

from zerocalc import answers, render
from zerocalc.cli import Sections, examples, new_app
from zerocalc.cli.jobs import make_plan
from zerocalc.cli.parameters import AsJson, JobFile, job_flags
from zerocalc.cli.streams import print_json

app = new_app()


@app.command(
    cls=Sections,
    epilog=examples(
        "step --params 10B --gpus 4", "step --model gpt2 --gpus 8 --seq 1024 --stage 3"
    ),
)
@job_flags
def step(*, given: dict[str, Any], job_file: JobFile = None, as_json: AsJson = False) -> int:
    """Walk through one training step, moment by moment.

    ZeRO stages side by side: what each GPU holds, allocates, frees and sends.
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
