"""`zerocalc explain`: every term and collective with its formula, numbers, source and
assumption.
"""

from __future__ import annotations

from typing import Annotated, Any, Optional

from zerocalc import answers, render
from zerocalc.cli import Sections, examples, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.jobs import make_plan
from zerocalc.cli.parameters import AsJson, JobFile, file_option, job_flags
from zerocalc.cli.streams import print_json
from zerocalc.presets import nearest
from zerocalc.quantities import shown
from zerocalc.results import Plan

app = new_app()
Wanted = Annotated[
    Optional[str],
    file_option(
        "--term",
        "Term, kind or table row to explain.",
        "TEXT",
    ),
]


@app.command(
    cls=Sections,
    epilog=examples(
        "explain --model llama-3-8b --gpus 8 --stage 2 --term gradients",
        "explain --model llama-3-8b --gpus 8 --seq 8192 --term activations",
    ),
)
@job_flags
def explain(
    *, given: dict[str, Any], term: Wanted = None, job_file: JobFile = None, as_json: AsJson = False
) -> int:
    """Show each figure's formula, numbers and source.

    Every memory term, collective and time of a plan: the formula in symbols, with numbers, the
    result, the source and the assumption. Saved activations are listed tensor by tensor.
    """
    answer = make_plan(given, job_file)
    explanations = answers.explain.explain(answer, term)
    if term is not None and not (
        term.strip() and any(e.terms or e.collectives or e.times for e in explanations)
    ):
        raise UserError(f"--term: {_unknown(term, answer)}")
    if as_json:
        print_json(answers.explain.document(answer, explanations))
    else:
        render.explanations.show(answer, explanations, whole=term is None)
    return 0


def _unknown(term: str, answer: Plan) -> str:
    """Why a term has no entry, and which do."""
    known, row = answers.explain.names(answer), answers.explain.row_name(term)
    if {term.strip().lower(), row} & {
        name for c in answer.candidates for name in c.memory.gpu.unknown
    }:
        return (
            f"{shown(term)} is unknown here; pass --model, or --layers --hidden --heads, and --seq"
        )
    if row:
        return f"no {shown(term)} in this plan"
    terms = [
        t.name
        for c in answer.candidates
        for tier in (c.memory.gpu, c.memory.cpu, c.memory.nvme)
        if tier is not None
        for t in tier.terms
    ]
    entries = ", ".join(
        dict.fromkeys([*terms, *(["time"] if any(c.time for c in answer.candidates) else [])])
    )
    return f"{shown(term)}: no such term{nearest(term.strip(), known) or f' (terms: {entries})'}"
