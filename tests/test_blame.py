"""Errors name what the user wrote: the flag that was given, the file that it names, the field in a
job file; never what was only filled in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import refused, run
from zerocalc import presets

GPU = 'title = "Our card"\nsource = "its data sheet"\nusable_bytes = "40GiB"\n'
BAD_GPU = GPU + 'memory = "1GB"\n'
NODE = 'title = "Our node"\nsource = "us"\ngpus = 4\ngpu = "{}"\n'
FRAMEWORK = (presets.folder() / "frameworks" / "paper.toml").read_text("utf-8")
RECIPE = (presets.folder() / "recipes" / "sgd.toml").read_text("utf-8")


@pytest.fixture(autouse=True)
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with files of our own, some of them wrong."""
    monkeypatch.chdir(tmp_path)
    folder = Path("ours")
    folder.mkdir()
    files = {
        "card.toml": GPU,
        "bad-card.toml": BAD_GPU,
        "node.toml": NODE.format("card.toml"),
        "bad-node.toml": NODE.format("h1000"),
        "bad-card-node.toml": NODE.format("bad-card.toml"),
        "lost-node.toml": NODE.format("lost.toml"),
        "no-node.toml": NODE.format("card.toml") + "gpus_ = 1",
        "sgd.toml": RECIPE,
        "bad-recipe.toml": 'name = "x"\nsource = "y"\nrows = []\n',
    }
    for name, recipe in {
        "fw": "sgd.toml",
        "bad-fw": "nothing",
        "bad-recipe-fw": "bad-recipe.toml",
        "adafactor-fw": "adafactor",
    }.items():
        files[f"{name}.toml"] = FRAMEWORK.replace('"mixed-adam"', f'"{recipe}"')
    for name, text in files.items():
        (folder / name).write_text(text)


def job(**changes: Any) -> str:
    Path("job.json").write_text(
        json.dumps({"model": {"params": "1B"}, "cluster": {"gpus": 8}, **changes})
    )
    return "job.json"


BARE = ("plan", "--params", "1B", "--gpus", "8")


def test_what_a_file_names_lies_beside_it() -> None:
    with_node = json.loads(run(*BARE, "--node", "ours/node.toml", "--json").out)["job"]
    assert with_node["cluster"]["gpu"]["title"] == "Our card"
    assert with_node["cluster"]["gpus_per_node"] == 4
    assert (
        json.loads(run(*BARE, "--framework", "ours/fw.toml", "--json").out)["job"]["recipe"]["name"]
        == "sgd"
    )
    Path("ours/job.json").write_text(
        json.dumps(
            {
                "model": {"params": "1B"},
                "cluster": {"gpus": 8, "node": "node.toml"},
                "framework": "fw.toml",
            }
        )
    )
    from_file = json.loads(run("plan", "--job", "ours/job.json", "--json").out)["job"]
    assert from_file["cluster"]["gpu"]["title"] == "Our card"
    assert from_file["recipe"]["name"] == "sgd"
    dumped = run("plan", "--job", "ours/job.json", "--json").out
    assert run("plan", "--job", "-", "--json", stdin=dumped).out == dumped


BLAMED = [
    ("--node ours/bad-node.toml", "--node ours/bad-node.toml: gpu: 'h1000' is not a preset"),
    (
        "--node ours/bad-card-node.toml",
        "--node ours/bad-card-node.toml: gpu ours/bad-card.toml: memory: is not a known "
        "field; nearest",
    ),
    ("--node ours/lost-node.toml", "--node ours/lost-node.toml: gpu: ours/lost.toml: no such file"),
    (
        "--node ours/no-node.toml",
        "--node ours/no-node.toml: gpus_: is not a known field; nearest: gpus",
    ),
    ("--node ours/bad-node.toml --gpu h1001", "--gpu: 'h1001' is not a preset"),
    (
        "--framework ours/bad-fw.toml",
        "--framework ours/bad-fw.toml: recipe: 'nothing' is not a preset",
    ),
    (
        "--framework ours/bad-recipe-fw.toml",
        "--framework ours/bad-recipe-fw.toml: recipe ours/bad-recipe.toml: rows: is an empty list",
    ),
    (
        "--framework ours/adafactor-fw.toml",
        "--framework ours/adafactor-fw.toml: recipe: adafactor stores",
    ),
    ("--recipe adafactor", "--recipe: adafactor stores"),
    ("--gpu ours/bad-card.toml", "--gpu ours/bad-card.toml: memory: is not"),
    ("--gpu ours/node.toml", "--gpu ours/node.toml: gpus: is not a known field"),
]


@pytest.mark.parametrize(("flags", "start"), BLAMED, ids=[flags for flags, _ in BLAMED])
def test_what_a_file_brings_is_the_files_fault(flags: str, start: str) -> None:
    assert refused(run(*BARE, *flags.split())).startswith(f"error: {start}")


def test_a_good_gpu_beside_a_bad_nodes_is_taken() -> None:
    assert run(*BARE, "--node", "ours/bad-node.toml", "--gpu", "h100-80g").status == 0


DERIVED = [
    (
        "--layers 1 --hidden 900000000 --heads 1",
        "--hidden: the ffn that follows from it: 3600000000 is too large",
    ),
    (
        "--layers 1 --hidden 900000000 --heads 1 --kind llama",
        "--hidden: the ffn that follows from it: 2400000000 is too large",
    ),
    (
        "--layers 1 --hidden 900000000 --heads 1 --ffn 2000000000",
        "--ffn: '2000000000' is too large",
    ),
    ("--layers 1 --hidden 2000000000 --heads 1", "--hidden: '2000000000' is too large"),
    ("--model gpt2 --trainable 2B", "--trainable: 2,000,000,000 is more"),
]


@pytest.mark.parametrize(("flags", "start"), DERIVED, ids=[flags for flags, _ in DERIVED])
def test_what_is_filled_in_is_the_fault_of_what_was_given(flags: str, start: str) -> None:
    assert refused(run("plan", "--gpus", "8", *flags.split())).startswith(f"error: {start}")


IN_FILES: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"zero": {"stages": 1}},
        "",
        "zero.stages: is not a known field; nearest: stage",
        "(in job.json)",
    ),
    ({"cluster": {}}, "", "cluster.gpus: is missing", "(in job.json)"),
    ({"cluster": {"gpus": "x"}}, "", "cluster.gpus: 'x' is not a whole number", "(in job.json)"),
    ({"cluster": {"gpus": "x"}}, "--gpus y", "--gpus: 'y' is not a whole number", ""),
    ({"parallel": {"tp": 3}}, "", "cluster.gpus: 8 is not divisible", "(in job.json)"),
    ({"parallel": {"tp": 3}}, "--gpus 7", "--gpus: 7 is not divisible", ""),
    (
        {"model": {"layers": 1, "hidden": 900000000, "heads": 1}},
        "",
        "model.hidden: the ffn that follows from it",
        "(in job.json)",
    ),
    ({"model": "gpt-2"}, "", "model: 'gpt-2' is not a preset", "(in job.json)"),
    (
        {"cluster": {"gpus": 8, "gpu": "ours/bad-card.toml"}},
        "",
        "cluster.gpu.memory: is",
        "(in ours/bad-card.toml, which job.json names)",
    ),
    (
        {"cluster": {"gpus": 8, "node": "ours/bad-card-node.toml"}},
        "",
        "cluster.node.gpu ours/bad-card.toml: memory: is",
        ", which job.json names)",
    ),
    (
        {"recipe": {"name": "x", "source": "y", "rows": []}},
        "",
        "recipe.rows: is an empty list",
        "(in job.json)",
    ),
    (
        {"cluster": 5},
        "--gpu-memory 1GB",
        "cluster: is not a table of fields, so --gpu-memory cannot",
        "(in job.json)",
    ),
    (
        {"model": "gpt2", "training": {"seq": 4096}},
        "",
        "training.seq: 4096 is more",
        "(in job.json)",
    ),
    ({"model": "gpt2", "training": {"seq": 4096}}, "--seq 5000", "--seq: 5000 is more", ""),
]


@pytest.mark.parametrize(("changes", "flags", "start", "end"), IN_FILES)
def test_a_job_file_is_named(changes: dict[str, Any], flags: str, start: str, end: str) -> None:
    line = refused(run("plan", "--job", job(**changes), *flags.split()))
    assert line.startswith(f"error: {start}")
    assert line.endswith(end)
    assert ("job.json" in line) == bool(end)


def test_a_contradiction_that_counting_shows_names_the_file() -> None:
    line = refused(
        run("plan", "--job", job(model={"layers": 2, "hidden": 64, "heads": 4, "trainable": "1T"}))
    )
    assert line.startswith("error: model.trainable: ")
    assert line.endswith("(in job.json)")


def test_a_name_that_a_flag_replaces_is_not_looked_up() -> None:
    file = job(
        cluster={"gpus": 8, "gpu": "h1000", "node": "dgx-1000"}, model="gpt-2", recipe="adam"
    )
    others = ["--model", "gpt2", "--recipe", "sgd", "--node", "dgx-h100"]
    assert run("plan", "--job", file, *others).status == 0
    assert refused(run("plan", "--job", file, *others[:-2])).startswith(
        "error: cluster.gpu: 'h1000' is not a preset"
    )


def refused_job(table: Any) -> str:
    return refused(
        run("plan", "--job", "-", stdin=table if isinstance(table, str) else json.dumps(table))
    )


def printed(line: str) -> str:
    return run(*line.split(), "--json").out


NO_JOBS = [
    ({"model_type": "llama", "hidden_size": 64}, "is a Hugging Face config; --model reads it"),
    (printed("params gpt2"), "is an answer of params, without a job; plan --json writes one"),
    (printed("paper zero-figure1"), "is an answer of paper, without a job"),
    (printed("presets"), "is a list of presets"),
    (printed("presets gpus h200"), "has none of a job's fields, which are model, cluster,"),
    ({"modle": {"params": "1B"}}, "nearest: model"),
    ({"zero_optimization": {"stage": 2}}, "is a configuration of DeepSpeed; --config reads it"),
    (GPU, "describes a GPU, not a job; --gpu reads it"),
    (NODE.format("h200"), "describes a node, not a job; --node reads it"),
    (RECIPE, "describes a recipe, not a job; --recipe reads it"),
    (FRAMEWORK, "describes a framework, not a job; --framework reads it"),
    ("layers = 2\nhidden = 64\nheads = 4\n", "describes a model, not a job; --model reads it"),
    (
        {"job": {"model": "gpt2", "cluster": {"gpus": 4}}, "cluster": {"gpus": 8}},
        "has a job and, beside it, cluster",
    ),
    (
        {"job": {"model": "gpt2", "cluster": {"gpus": 4}}, "zreo": {}},
        "has a job and, beside it, zreo",
    ),
    ('{"cluster": {"gpus": 4, "gpus": 8}, "model": "gpt2"}', "duplicate key 'gpus'"),
    ('{"cluster": {"gpus": 4}, "model": "gpt2", "model": "gpt2"}', "duplicate key 'model'"),
    ('{"model": {"params": ' + "9" * 5000 + "}}", "a number of thousands of digits"),
    ("[cluster]\ngpus = " + "9" * 5000, "a number of thousands of digits"),
]


@pytest.mark.parametrize(("table", "words"), NO_JOBS, ids=[words for _, words in NO_JOBS])
def test_what_is_no_job_is_called_by_what_it_is(table: Any, words: str) -> None:
    line = refused_job(table)
    assert line.startswith("error: --job: standard input ")
    assert words in line


@pytest.mark.parametrize("command", ["plan", "explain", "step"])
def test_every_answer_that_holds_a_job_is_one(command: str) -> None:
    answer = printed(f"{command} --params 1B --gpus 8")
    assert run("plan", "--job", "-", "--json", stdin=answer).out == printed(
        "plan --params 1B --gpus 8"
    )


TWICE = [
    ("--gpus 16", "--gpus: given twice, as '8' and '16'"),
    ("--stage 1 --stage=2", "--stage: given twice, as '1' and '2'"),
    ("--overlap-comm --no-overlap-comm", "--overlap-comm: contradicts --no-overlap-comm"),
    ("--no-defragment --defragment", "--defragment: contradicts --no-defragment"),
    ("--format csv --format json", "--format: given twice"),
    ("--job a --job b", "--job: given twice"),
]


@pytest.mark.parametrize(("flags", "start"), TWICE, ids=[flags for flags, _ in TWICE])
def test_a_flag_with_two_values_is_refused(flags: str, start: str) -> None:
    assert refused(run(*BARE, *flags.split())).startswith(f"error: {start}")


@pytest.mark.parametrize(
    "flags",
    [
        "--gpus 8",
        "--stage 1 --stage 1",
        "--json --json",
        "--overlap-comm --overlap-comm",
        "--format csv --format=csv",
    ],
)
def test_a_flag_said_again_is_no_contradiction(flags: str) -> None:
    assert run(*BARE, *flags.split()).status == 0
