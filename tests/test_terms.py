"""`explain --term`: entries by name, by kind, and by the rows of a plan's table; anything else is
refused.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.running import refused, run, run_line
from zerocalc import Job, plan
from zerocalc.answers.explain import row_name
from zerocalc.render.rows import memory_rows, traffic_rows

ARCHITECTURE = "--model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192"
JOB = {"model": "llama-3-8b", "cluster": {"gpus": 8, "gpu": "h100-80g"}, "training": {"seq": 8192}}
PLAN = plan(Job.model_validate(JOB))
LABELS = [row.label for row in (*memory_rows(PLAN, 1), *traffic_rows(PLAN, 1))]


@pytest.mark.parametrize("label", dict.fromkeys(LABELS))
def test_every_row_of_a_plan_can_be_explained(label: str) -> None:
    ran = run("explain", *ARCHITECTURE.split(), "--term", label)
    assert (ran.status, ran.err) == (0, "")
    assert "bytes" in ran.out


def test_rows_of_other_plans() -> None:
    assert (
        run_line("explain --params 1B --gpus 8 --no-defragment --term 'with fragmentation'").status
        == 0
    )
    assert (
        run_line(
            "explain --params 1B --gpus 8 --recipe megatron --term 'peak (known part), at'"
        ).status
        == 0
    )
    assert [
        row_name(text)
        for text in (
            "C_B",
            "sent per GPU, MB",
            "Peak (Known Part), at",
            "headroom",
            "",
            "mlp",
        )
    ] == [*("buffers and buckets", "sent per GPU", "total", "with fragmentation", "", "")]


@pytest.mark.parametrize("stage", range(4))
def test_what_a_row_names_sums_to_the_rows_figure(stage: int) -> None:
    answer = plan(Job.model_validate({**JOB, "zero": {"stage": stage}})).candidates[0]
    for term, total in (
        ("model states", answer.memory.gpu.states_bytes),
        ("peak", answer.memory.gpu.peak_bytes),
    ):
        ran = run("explain", *ARCHITECTURE.split(), "--stage", str(stage), "--term", term)
        assert f"= {total:,} bytes" in " ".join(ran.out.split())
        terms = json.loads(
            run(
                "explain", *ARCHITECTURE.split(), "--stage", str(stage), "--term", term, "--json"
            ).out
        )["stages"][0]["terms"]
        assert sum(entry["bytes"] for entry in terms) == total
    sent = json.loads(
        run(
            "explain",
            *ARCHITECTURE.split(),
            "--stage",
            str(stage),
            "--term",
            "sent per GPU",
            "--json",
        ).out
    )["stages"][0]["collectives"]
    assert sum(call["sent_bytes"] for call in sent) == answer.communication.sent_bytes_per_gpu


@pytest.mark.parametrize(
    "term",
    [
        "all-gathered parameters",
        "weights",
        "dp",
        "buffers and buckets (C_B)",
        "logits",
        "all_gather",
        "optimizer",
        "mlp",
    ],
)
@pytest.mark.parametrize("stage", ["0", "1", "0,1,2,3"])
def test_no_heading_is_empty(term: str, stage: str) -> None:
    ran = run("explain", *ARCHITECTURE.split(), "--stage", stage, "--term", term)
    if ran.status:
        assert term in refused(ran)
        return
    lines = ran.out.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"(DDP|ZeRO-\d), (memory|traffic per step)", line):
            assert lines[number + 1].strip(), line


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ("", "'': no such term (terms: weights"),
        (" ", "' ': no such term"),
        ("\t\n", "no such term"),
        ("wieghts", "'wieghts': no such term; nearest: weights"),
        ("optimiser", "nearest: optimizer states"),
        ("model state", "nearest: model states"),
        ("qqqq", "(terms: weights, gradients"),
        ("activations", "'activations' is unknown here; pass --model, or"),
        ("logits", "'logits' is unknown here"),
        ("16-bit weight copies", "no '16-bit weight copies' in this plan"),
        ("x" * 5000, "no such term"),
    ],
)
def test_terms_that_are_none(term: str, words: str) -> None:
    line = refused(run("explain", "--params", "1B", "--gpus", "8", "--stage", "1", "--term", term))
    assert line.startswith("error: --term: ")
    assert words in line


def test_a_check_that_cannot_be_made_says_so() -> None:
    unknown = run_line("plan --params 1B --gpus 8 --check")
    assert unknown.status == 1
    assert unknown.err == "--check: cannot judge the fit: pass --gpu or --gpu-memory\n"
    assert unknown.out == run_line("plan --params 1B --gpus 8").out
    partly = run_line("plan --params 1B --gpus 8 --gpu h100-80g --check --json")
    assert (partly.status, partly.err) == (
        1,
        "--check: cannot judge the fit: not all memory is known\n",
    )
    for flags, status in (("--params 10T", 1), ("--layers 4 --hidden 512 --heads 8 --seq 128", 0)):
        known = run_line(f"plan {flags} --gpus 8 --gpu h100-80g --check")
        assert (known.status, known.err) == (status, "")
