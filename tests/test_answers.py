"""What an answer says in words: suggestions that hold what they promise, what is unknown, whose
data a GPU sees.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from typing import Any

import pytest

from tests.running import refused, run, run_line
from zerocalc import load_model
from zerocalc.answers import changes, suggestions
from zerocalc.estimator import estimate, estimate_with_assumptions
from zerocalc.results import Estimate, cheapest
from zerocalc.sharding.rank import Share
from zerocalc.spec.job import Job

TOO_LARGE = [
    "--model llama-3-70b --gpus 8 --gpu a100-40g --seq 8192 --micro-batch 4",
    "--model llama-3-70b --gpus 8 --gpu a100-40g --seq 8192 --micro-batch 4 --tp 8",
    "--model llama-3-8b --gpus 4 --gpu a100-40g --seq 8192",
    "--model llama-3-8b --gpus 8 --gpu h100-80g --seq 16384 --stage 0",
    "--model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192 --micro-batch 4",
    "--model llama-3.1-405b --gpus 64 --gpu h100-80g --seq 8192 --micro-batch 8 "
    "--attention eager --stage 1",
    "--model gpt2-xl --gpus 1 --gpu rtx-4090 --seq 1024 --attention eager --micro-batch 4",
    "--model gpt2-xl --gpus 12 --gpu l4 --seq 1024 --stage 0,1 --pp 2 --micro-batch 16 "
    "--attention eager",
    "--params 70B --gpus 8 --gpu h100-80g",
    "--params 10T --gpus 8 --gpu h100-80g",
    "--params 7B --gpus 8 --gpu h100-80g --stage 0",
]


def without(line: str, flags: str) -> str:
    """A command line less the flags that are given another value: a flag given twice is refused."""
    for flag in re.findall(r"--[a-z-]+", flags):
        line = re.sub(rf"{flag} \S+", "", line)
    return line


@pytest.mark.parametrize("line", TOO_LARGE)
def test_a_suggestion_holds_what_it_promises(line: str) -> None:
    answer = json.loads(run_line(f"plan {line} --json").out)
    assert answer["verdict"] == "does_not_fit"
    assert 1 <= len(answer["suggestions"]) <= 2
    for text in answer["suggestions"]:
        flags, _, promise = text.partition(": ")
        changed = json.loads(run_line(f"plan {without(line, flags)} {flags} --json").out)
        name = promise.split()[0].lower()
        candidate = next(c for c in changed["candidates"] if c["name"] == name)
        assert candidate["fits"] is (None if "not counting" in promise else True)
        assert promise.partition(", not counting ")[0].endswith(
            f" in {candidate['memory']['gpu']['reserved_bytes'] / 2**30:.2f} GiB"
        )


@pytest.mark.parametrize("line", TOO_LARGE)
def test_no_suggestion_asks_for_all_that_another_does(line: str) -> None:
    def asks(text: str) -> dict[str, int]:
        words = shlex.split(text.partition(": ")[0])
        values = [words[i + 1] if i + 1 < len(words) else "" for i in range(len(words))]
        levels = {"selective": 1, "full": 2}
        return {
            word: levels.get(value, int(value) if value.isdigit() else 1)
            for word, value in zip(words, values, strict=True)
            if word[0] == "-"
        }

    found = [asks(text) for text in json.loads(run_line(f"plan {line} --json").out)["suggestions"]]
    for one in found:
        for other in found:
            assert one is other or not all(
                flag in other and amount <= other[flag] for flag, amount in one.items()
            )


def test_fewest_gpus_are_fewest() -> None:
    answer = json.loads(run_line("plan --params 10T --gpus 8 --gpu h100-80g --json").out)
    (text,) = answer["suggestions"]
    gpus = int(text.partition("--gpus ")[2].partition(":")[0])
    assert gpus % 8 == 0
    fewer = json.loads(run_line(f"plan --params 10T --gpus {gpus - 8} --gpu h100-80g --json").out)
    assert fewer["verdict"] == "does_not_fit"


@pytest.mark.parametrize("gpus", [1, 8])
def test_of_stages_that_send_the_same_the_one_that_shards_least_is_cheapest(gpus: int) -> None:
    """The paper's stages 0 to 2 send 2Ψ, stage 3 sends 3Ψ ([ZeRO] §7); one GPU sends nothing."""
    job = Job.model_validate({"model": {"params": "1B"}, "cluster": {"gpus": gpus}})
    every = [estimate(job, stage) for stage in (3, 2, 1, 0)]
    for last in range(1, 5):
        assert cheapest(every[:last]) is cheapest(every[:last][::-1]) is every[last - 1]


def test_a_stage_that_sends_less_is_cheaper_than_one_that_shards_less() -> None:
    """DeepSpeed's stage 3 keeps what it gathered of a small model and reduce-scatters, where its
    stage 1 reduces all gradients and gathers all weights.
    """
    job = Job.model_validate(
        {"model": "pythia-1.4b", "cluster": {"gpus": 8}, "framework": "deepspeed"}
    )
    one, three = estimate(job, 1), estimate(job, 3)
    assert three.communication.sent_bytes_per_gpu < one.communication.sent_bytes_per_gpu
    assert cheapest([one, three]) is cheapest([three, one]) is three


def test_a_search_for_suggestions_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    once = estimate_with_assumptions

    def counted(job: Job, stage: int, held: list[Share]) -> tuple[Estimate, tuple[str, ...]]:
        tries.append(stage)
        return once(job, stage, held)

    monkeypatch.setattr(changes, "estimate_with_assumptions", counted)
    for line in TOO_LARGE:
        job = Job.model_validate(json.loads(run_line(f"plan {line} --json").out)["job"])
        tries.clear()
        assert suggestions.suggestions(job, activations_known=not job.model.is_bare)
        assert 0 < len(tries) <= suggestions.MOST_TRIES


def test_what_no_gpus_shrink_is_a_note_not_a_change() -> None:
    answer = json.loads(
        run_line("plan --model llama-3-8b --gpus 8 --gpu h100-80g --seq 131072 --json").out
    )
    assert any(note.startswith("more data-parallel GPUs do not reduce") for note in answer["notes"])
    assert all(text.startswith("--") for text in answer["suggestions"])


# What is unknown.


def table(line: str) -> dict[str, list[str]]:
    """The rows of a plan's table by label."""
    rows = [
        line.strip("| ").split(" | ")
        for line in run_line(f"plan {line} --format markdown").out.splitlines()
        if line.startswith("| ")
    ]
    return {row[0].strip(): [cell.strip() for cell in row[2:]] for row in rows}


UNKNOWN_TRAFFIC: list[tuple[str, list[str], int]] = [
    ("--params 1B --gpus 8 --tp 8", ["tensor-parallel traffic"], 0),
    ("--params 1B --gpus 8 --pp 8", ["pipeline-parallel traffic"], 0),
    (
        "--params 1B --gpus 8 --tp 2 --pp 2",
        ["tensor-parallel traffic", "pipeline-parallel traffic"],
        500_000_000,
    ),
    ("--model gpt2 --gpus 8 --tp 4", ["tensor-parallel traffic"], 63_484_800),
    ("--params 1B --gpus 8 --cp 8 --seq 1024", ["context-parallel traffic"], 3_500_000_000),
    (
        "--params 1B --gpus 8 --tp 8 --recompute full --pa --pa-cpu",
        ["tensor-parallel traffic", "CPU-GPU traffic"],
        0,
    ),
    ("--model gpt2 --gpus 8 --tp 4 --seq 1024", [], -1),
    ("--params 1B --gpus 8", [], -1),
]


@pytest.mark.parametrize(
    ("line", "unknown", "known"), UNKNOWN_TRAFFIC, ids=[line for line, _, _ in UNKNOWN_TRAFFIC]
)
def test_unknown_traffic_is_no_number(line: str, unknown: list[str], known: int) -> None:
    answer = json.loads(run_line(f"plan {line} --json").out)["candidates"][0]["communication"]
    assert answer["unknown"] == unknown
    rows = table(line)
    written = next(csv.DictReader(io.StringIO(run_line(f"plan {line} --format csv").out)))
    assert written["unknown_traffic"] == ", ".join(unknown)
    assert int(written["known_sent_bytes_per_gpu"]) == answer["sent_bytes_per_gpu"]
    if not unknown:
        assert int(written["sent_bytes_per_gpu"]) == answer["sent_bytes_per_gpu"] > 0
        assert "sent per GPU" in rows
        return
    assert answer["sent_bytes_per_gpu"] == known
    assert f"unknown, not in the sums: {', '.join(unknown)}" in " ".join(
        run_line(f"explain {line} --stage 0").out.split()
    )
    assert written["sent_bytes_per_gpu"] == ""
    assert (rows["sent per GPU (known part)"][0] == "unknown") is (known == 0)
    for name in unknown:
        assert rows[name] == ["unknown"] * 4
    if "CPU-GPU traffic" in unknown:
        assert rows["CPU memory per node"] == ["unknown"] * 4
        assert written["host_bytes_per_gpu"] == ""


def test_unknown_memory_is_no_number() -> None:
    rows = table("--params 1B --gpus 8")
    assert rows["activations"] == ["unknown"] * 4
    assert rows["all-gathered parameters"] == ["0.00", "0.00", "0.00", "unknown"]
    for line, known in (
        ("--params 1B", False),
        ("--model gpt2", False),
        ("--model gpt2 --seq 128", True),
    ):
        gpu = json.loads(run_line(f"plan --gpus 8 {line} --json").out)["candidates"][0]["memory"][
            "gpu"
        ]
        assert gpu["activations_known"] is known
        assert sum(gpu["at_peak"].values()) == gpu["peak_bytes"]


def test_what_is_unknown_can_only_add() -> None:
    short = " ".join(run_line("plan --params 70B --gpus 8 --gpu h100-80g").out.split())
    assert "the closest, is short by at least 52.68 GiB" in short
    assert "headroom, at most" in short
    mixed = " ".join(run_line("plan --params 7B --gpus 8 --gpu h100-80g").out.split())
    assert "DDP is short by at least" in mixed
    assert "total (known part) 112.00" in " ".join(
        run_line("step --params 7B --gpus 1 --stage 0").out.split()
    )
    known = (
        run_line("plan --model gpt2-xl --gpus 8 --gpu l4 --seq 1024").out
        + run_line("step --model gpt2 --gpus 8 --seq 512").out
    )
    assert "at least" not in known
    assert "total" in known
    assert "known part" not in known


# One unit, and numbers that can be read.


@pytest.mark.parametrize(
    "line",
    [
        "--params 10B --gpus 64",
        "--params 20M --gpus 8",
        "--params 10B --gpus 64 --gpu h100-80g",
        "--model gpt2 --gpus 8 --seq 128",
        "--model gpt2 --gpus 8 --tp 4 --seq 1024 --recompute full --pa --pa-cpu --gpu h100-80g",
    ],
)
def test_one_unit_a_table(line: str) -> None:
    lines = [
        row.partition(" | ")[0]
        for row in run_line(f"plan {line} --format markdown").out.splitlines()
        if row.startswith("| ")
    ]
    assert [label for label in lines if "iB" in label or "GB" in label or "MB" in label] == [
        lines[0]
    ]


def test_small_models_are_shown_in_small_units() -> None:
    assert "MB (1e6) per GPU" in run_line("plan --params 20M --gpus 8").out
    assert "MiB (2^20) per GPU" in run_line("plan --params 20M --gpus 8 --gpu h100-80g").out


def test_large_multiples_have_no_powers_of_ten() -> None:
    rows = table("--params 1B --gpus 8 --accumulation 1000000")
    assert rows["of DDP"][2:] == ["500,000×", "1,500,000×"]
    assert rows["traffic per step"][2:] == ["1,000,001Ψ", "3,000,000Ψ"]


# Whose data, whose parameters.


def sentences(line: str) -> str:
    return " ".join(run_line(f"step {line}").out.partition("What does each GPU hold")[2].split())


@pytest.mark.parametrize(
    ("line", "said", "not_said"),
    [
        ("--params 1B --gpus 1", ["The one GPU updates all parameters"], ["every GPU processes"]),
        (
            "--params 1B --gpus 8",
            ["every GPU processes different data", "Every GPU updates all parameters from"],
            ["The one GPU", "tokens"],
        ),
        (
            "--params 1B --gpus 8 --cp 8 --seq 1024",
            ["context-parallel ranks other tokens", "1/8 of the"],
            ["The one GPU", "process different data", "of its"],
        ),
        (
            "--params 1B --gpus 8 --tp 8",
            ["tensor-parallel ranks the same tokens", "which no other GPU holds"],
            ["The one GPU", "process different data"],
        ),
        (
            "--params 1B --gpus 8 --pp 8",
            ["pipeline stages the same tokens", "which no other GPU holds"],
            ["The one GPU", "process different data"],
        ),
        (
            "--params 1B --gpus 8 --tp 4",
            ["data-parallel ranks process different data", "1/4 of the model"],
            ["every GPU processes", "no other GPU"],
        ),
    ],
)
def test_step_says_what_is_true(line: str, said: list[str], not_said: list[str]) -> None:
    text = sentences(line)
    assert [words for words in said if words not in text] == []
    assert [words for words in not_said if words in text] == []


def test_context_parallel_ranks_share_states_and_gradients() -> None:
    def candidates(line: str) -> Any:
        return json.loads(run_line(f"plan --params 8B --gpus 64 {line} --json").out)["candidates"]

    for with_cp, without in zip(candidates("--cp 8 --seq 1024"), candidates(""), strict=True):
        assert with_cp["memory"]["gpu"]["states_bytes"] == without["memory"]["gpu"]["states_bytes"]
        for key in ("volume_params", "ratio_to_dp", "sent_bytes_per_gpu"):
            assert with_cp["communication"][key] == without["communication"][key]
    assumed = json.loads(run_line("plan --params 8B --gpus 64 --cp 8 --seq 1024 --json").out)[
        "assumptions"
    ]
    assert any("dp·cp = 8·8 = 64 ranks" in line for line in assumed)


def test_what_is_told_of_a_pipeline_is_its_worst_stage() -> None:
    line = "plan --model llama-3-8b --gpus 30 --pp 5 --seq 4096 --gpu h200"
    text = " ".join(run_line(line).out.split())
    assert "even" not in text
    assert "memory and traffic of the pipeline stage with the largest peak" in text
    assert "32 layers assigned to pipeline stages as 2 × 7, 3 × 6" in text
    worst = json.loads(run_line(f"{line} --json").out)["candidates"][0]
    assert worst["pipeline_stage"] == 1
    # 7 layers of 218,112,000 and the embedding of 128,256 by 4,096
    assert worst["memory"]["gpu"]["states_bytes"] == 16 * (7 * 218_112_000 + 128_256 * 4096)


@pytest.mark.parametrize("more", ["--params 8B", "--model llama-3-8b --lora-rank 16"])
def test_pipeline_stages_that_are_not_known_are_said_to_be_even(more: str) -> None:
    ran = run_line(f"plan {more} --gpus 30 --pp 5 --seq 4096 --gpu h200")
    text = " ".join(ran.out.split())
    assert "pipeline parallelism divides model states evenly" in text
    assert "the fit is judged on an even share" in text
    if "llama" in more:
        assert "fits on an even share of the pipeline" in text
        assert "32 layers on 5 pipeline stages: 6.4 per stage; the fullest stage has 7" in text


UNEVEN = [
    (
        ("--tp", "8", "--sequence-parallel", "--seq", "511"),
        "error: --sequence-parallel: tp = 8 does not divide the 511 tokens of a sequence on a rank",
    ),
    (
        ("--tp", "8", "--cp", "2", "--sequence-parallel", "--seq", "1028"),
        "tp = 8 does not divide the 514 tokens of a sequence on a rank",
    ),
    (("--tp", "8", "--ffn", "14337"), "error: --tp: 8 does not divide an MLP's width of 14337"),
]


@pytest.mark.parametrize(("flags", "said"), UNEVEN)
def test_what_ranks_cannot_divide_is_refused(flags: tuple[str, ...], said: str) -> None:
    assert said in refused(run("plan", "--model", "llama-3-8b", "--gpus", "16", *flags))


def test_experts_are_divided_too() -> None:
    model = load_model("mixtral-8x7b").model_dump(mode="json")
    (experts,) = [
        module for module in model["stack"]["groups"][0]["modules"] if module["type"] == "moe"
    ]
    experts["values"]["ffn"] = 14337
    with pytest.raises(ValueError, match="8 does not divide an MLP's width of 14337"):
        Job.model_validate({"model": model, "cluster": {"gpus": 8}, "parallel": {"tp": 8}})


def test_a_vocabulary_that_ranks_do_not_divide_is_noted() -> None:
    model = ("plan", "--model", "gpt2-xl", "--gpus", "10", "--tp")
    assert "tp 5 does not divide the vocabulary of 50,257" in " ".join(run(*model, "5").out.split())
    assert "vocabulary of" not in run("plan", "--model", "gpt2-xl", "--gpus", "10").out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "llama-3-70b --tp 8",
            "128,256 to 129,024, a multiple of 128·tp: 786,432 extra parameters in a rank's "
            "embedding and again in its head",
        ),
        (
            "llama-3-8b --tp 4",
            "128,256 to 128,512, a multiple of 128·tp: 262,144 extra parameters in a rank's "
            "embedding and again in its head",
        ),
        (
            "gpt2-xl",
            "50,257 to 50,304, a multiple of 128·tp: 75,200 extra parameters in a rank's embedding",
        ),
        ("mixtral-8x7b --tp 2 --sequence-parallel", None),
    ],
)
def test_the_rows_that_megatron_adds_to_a_vocabulary_are_said(asked: str, said: str | None) -> None:
    line = f"plan --gpus 8 --framework megatron --json --model {asked}"
    padded = [
        words
        for words in json.loads(run(*line.split()).out)["assumptions"]
        if "pads the vocabulary" in words
    ]
    assert padded == ([f"megatron pads the vocabulary from {said}, not counted"] if said else [])
    assert "pads the vocabulary" not in run(*line.replace("megatron", "paper").split()).out
