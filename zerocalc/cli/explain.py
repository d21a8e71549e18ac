"""`zerocalc explain`: every term and collective with its formula, numbers, source and assumption."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from zerocalc.cli import Sections, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import AsJson, JobFile, job_flags
from zerocalc.cli.jobs import make_plan
from zerocalc.cli.streams import print_json

app = new_app()
Wanted = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--term", metavar="TEXT", help="Only entries of this name or kind; activations come tensor by tensor.", rich_help_panel="Input and output"
    ),
]


@app.command(cls=Sections)
@job_flags
def explain(*, given: dict[str, Any], job_file: JobFile = None, as_json: AsJson = False, term: Wanted = None) -> int:
    """Write out every number of a plan: its formula in symbols, the numbers put in, the result, the source, the assumption."""
    answer = make_plan(given, job_file)
    from zerocalc import explained

    explanations = explained.explain(answer, term)
    if not any(e.terms or e.collectives for e in explanations):
        names = dict.fromkeys(t.name for c in answer.candidates for t in c.memory.gpu.terms)
        raise UserError(f"--term: {term!r} names no entry; the entries are {', '.join(names)}")
    if as_json:
        print_json(explained.document(answer, explanations))
    else:
        from zerocalc.render.explanations import show

        show(answer, explanations, whole=term is None)
    return 0
