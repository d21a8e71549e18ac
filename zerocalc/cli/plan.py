"""`zerocalc plan`: memory, traffic and what fits, stages side by side."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Optional

from zerocalc import answers, render
from zerocalc.answers.notes import CANNOT_JUDGE
from zerocalc.cli import Sections, examples, new_app
from zerocalc.cli.errors import UserError
from zerocalc.cli.jobs import make_plan
from zerocalc.cli.parameters import AsJson, JobFile, file_option, job_flags
from zerocalc.cli.streams import print_json, tell
from zerocalc.results import PipelineStages, Plan
from zerocalc.spec.base import FieldError

app = new_app()
FORMATS = ("table", "json", "csv", "markdown")


@app.command(
    cls=Sections,
    epilog=examples(
        "plan --model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192",
        "plan --params 7.5B --gpus 64 --stage 2,3 --json",
    ),
)
@job_flags
def plan(
    *,
    given: dict[str, Any],
    job_file: JobFile = None,
    as_json: AsJson = False,
    output_format: Annotated[
        str, file_option("--format", "Output format.", "|".join(FORMATS))
    ] = "table",
    compare_with: Annotated[
        Optional[str],
        file_option(
            "--compare-with",
            "Tool to compare with: deepspeed-estimator.",
            "TOOL",
        ),
    ] = None,
    stages_table: Annotated[
        bool, file_option("--stages-table", "Show each pipeline stage's memory.")
    ] = False,
    check: Annotated[bool, file_option("--check", "Exit 1 unless a stage fits.")] = False,
) -> int:
    """Compare ZeRO stages: memory, traffic, step time, fit.

    Memory and traffic are per GPU. A fit needs --gpu or --gpu-memory.
    """
    if output_format not in FORMATS:
        raise UserError(f"--format: {output_format!r} is not one of {', '.join(FORMATS)}")
    if as_json and output_format not in ("table", "json"):
        raise UserError(f"--json: contradicts --format {output_format}")
    if compare_with is not None and output_format not in ("table", "json"):
        raise UserError(
            f"--compare-with: not supported by --format {output_format} (supported: table, json)"
        )
    if stages_table and output_format not in ("table", "json"):
        raise UserError(
            f"--stages-table: not supported by --format {output_format} (supported: table, json)"
        )
    answer = make_plan(given, job_file)
    compared = None if compare_with is None else _compared(answer, compare_with)
    rows = _stages(answer) if stages_table else ()
    if as_json or output_format == "json":
        more = {
            **({"comparison": compared} if compared else {}),
            **({"stages": rows} if rows else {}),
        }
        print_json({**_fields(answer), **more} if more else answer)
    else:
        _show(answer, output_format)
        if compared is not None:
            render.comparisons.show(answer, compared)
        if rows:
            render.pipelines.show(answer, rows)
    if check and answer.verdict == "unknown":
        why = (
            CANNOT_JUDGE
            if answer.job.cluster.usable_bytes is None
            else "cannot judge the fit: not all memory is known"
        )
        tell(f"--check: {why}")
    return 1 if check and answer.verdict != "fits" else 0


def _show(answer: Plan, output_format: str) -> None:
    if output_format == "table":
        render.plans.show(answer)
    elif output_format == "csv":
        render.flat.show_csv(answer)
    else:
        render.flat.show_markdown(answer)


def _compared(answer: Plan, tool: str) -> answers.other_tools.ToolComparison:
    try:
        return answers.other_tools.compare(answer, tool)
    except FieldError as error:
        raise UserError(f"--compare-with: {error}") from None


def _stages(answer: Plan) -> tuple[PipelineStages, ...]:
    try:
        return answers.pipeline_stages.stages_table(answer)
    except FieldError as error:
        raise UserError(f"--stages-table: {error}") from None


def _fields(answer: Plan) -> dict[str, Any]:
    return {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
