"""The peak of each phase of a step under FSDP2, against recorded runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerocalc import Job, estimate, presets
from zerocalc.ledger import Moment

FILE = json.loads(
    (Path(__file__).parents[1] / "data" / "fsdp_memory.json").read_text(encoding="utf-8")
)
RUNS: list[dict[str, Any]] = FILE["runs"]
PHASES: dict[str, tuple[Moment, ...]] = {
    "forward": ("forward",),
    "backward": ("loss", "backward_start", "backward_end"),
    "step": ("step",),
}
"""The moments that a recorded phase covers."""
BYTES_PER_TOKEN, SCALARS = 24, 4096
"""Bytes that are not counted: the file says which."""


def model(written: Any) -> Any:
    """A preset's name or a spec as it is written, or a preset with ``layers`` or ``lora``
    changed.
    """
    if isinstance(written, str) or "preset" not in written:
        return written
    changes = {key: value for key, value in written.items() if key != "preset"}
    preset = presets.load("models", written["preset"])
    if "stack" in preset and "layers" in changes:
        (group,) = preset["stack"]["groups"]
        groups = [{**group, "count": changes.pop("layers")}]
        preset = {**preset, "stack": {**preset["stack"], "groups": groups}}
    return {**preset, **changes}


def job(run: dict[str, Any]) -> Job:
    return Job.model_validate(
        {
            "model": model(run["model"]),
            "cluster": {"gpus": run["gpus"]},
            "framework": run["framework"],
            "implementation": "huggingface",
            "loss": "fp32",
            **run["job"],
        }
    )


@pytest.mark.parametrize("run", RUNS, ids=[run["name"].replace(" ", "-") for run in RUNS])
def test_each_phase_peaks_where_it_was_recorded_or_misses_by_a_known_gap(
    run: dict[str, Any],
) -> None:
    asked = job(run)
    moments = estimate(asked).memory.gpu.moments
    tokens = (asked.training.seq or 0) * (asked.training.micro_batch or 0)
    gaps = {}
    for phase, among in PHASES.items():
        recorded, today = run["recorded"][phase], max(moments[moment] for moment in among)
        if not 0 <= recorded - today <= BYTES_PER_TOKEN * tokens + SCALARS:
            gaps[phase] = {"today": today, "gap": round(today / recorded - 1, 4)}
    known = run.get("gaps", {})
    assert gaps == {
        phase: {key: gap[key] for key in ("today", "gap")} for phase, gap in known.items()
    }
    assert all(gap["why"] in FILE["why"] for gap in known.values())


def test_every_reason_for_a_gap_is_still_needed() -> None:
    assert {gap["why"] for run in RUNS for gap in run.get("gaps", {}).values()} == set(FILE["why"])


def test_runs_have_a_source_and_names_of_their_own() -> None:
    assert {run["source"] for run in RUNS} == set(FILE["sources"])
    assert len({run["name"] for run in RUNS}) == len(RUNS)
