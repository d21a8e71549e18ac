"""Files that users name: jobs, models and presets of every sort are read by what they hold, or
refused in one line that blames the right thing.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.running import Ran, refused, run, shell
from zerocalc import presets

JOB = {"model": {"params": "1B"}, "cluster": {"gpus": 8}}


def job_text(**changes: Any) -> str:
    return json.dumps({**JOB, **changes})


def recipe(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"name": "x", "source": "y", "rows": rows}


def framework(recipe: str, stages: int) -> dict[str, Any]:
    stage = {"stage": 1, "name": "a", "sync": "step"}
    return {
        "name": "x",
        "like": "paper",
        "source": "y",
        "recipe": recipe,
        "implementation": "paper",
        "stages": [stage] * stages,
    }


GRADIENTS = {"name": "g", "kind": "gradients", "dtype": "bf16", "sharded_from": 2}

BAD_JOBS: list[tuple[str, str | bytes, str]] = [
    ("empty", "", "--job: job.json is empty"),
    ("not JSON", "{params: 1B}", "--job: job.json is not valid JSON"),
    ("truncated", job_text()[:-5], "--job: job.json is not valid JSON"),
    ("a list", "[1, 2]", "--job: job.json is a list"),
    ("a text", '"plan"', "--job: job.json is a string"),
    ("null", "null", "--job: job.json is null"),
    ("NaN", '{"model": {"params": NaN}, "cluster": {"gpus": 8}}', "model.params:"),
    ("infinity", '{"model": {"params": 1e999}, "cluster": {"gpus": 8}}', "model.params:"),
    (
        "thousands of digits",
        '{"model": {"params": ' + "9" * 5000 + '}, "cluster": {"gpus": 8}}',
        "--job: job.json is not valid JSON",
    ),
    (
        "deep",
        '{"model": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "--job: job.json is not valid JSON",
    ),
    (
        "deep but parsed",
        '{"cluster": {"gpus": 8}, "model": ' + "[" * 300 + "]" * 300 + "}",
        "model",
    ),
    ("binary", bytes(range(256)), "--job: job.json is not a text file"),
    ("nul", b'{"model": "\0"}', "--job: job.json is not a text file"),
    ("utf-16", job_text().encode("utf-16"), "--job: job.json is not a text file"),
    (
        "another schema",
        json.dumps({"schema_version": 2, "job": JOB}),
        "--job: job.json has schema_version 2",
    ),
    (
        "schema of no number",
        json.dumps({"schema_version": [], "job": JOB}),
        "--job: job.json has schema_version []",
    ),
    (
        "job of no object",
        json.dumps({"schema_version": 1, "job": 3}),
        "--job: the job in job.json is not a JSON object",
    ),
    ("unknown field", job_text(modle={}), "modle: is not a known field"),
    ("unknown inner field", job_text(zero={"stages": 1}), "zero.stages: is not a known field"),
    ("answer without its job", json.dumps({"schema_version": 1, "candidates": []}), ""),
    ("true for a count", job_text(model={"params": True}), "model.params:"),
    ("a list for a count", job_text(model={"params": [1]}), "model.params:"),
    ("half a GPU", job_text(cluster={"gpus": 1.5}), "cluster.gpus:"),
    ("text for a truth value", job_text(zero={"overlap_comm": "yes"}), "zero.overlap_comm:"),
    ("number for a truth value", job_text(zero={"overlap_comm": 1}), "zero.overlap_comm:"),
    ("a number for a model", job_text(model=7), "model:"),
    ("a list for a model", job_text(model=["gpt2"]), "model:"),
    ("an unknown model", job_text(model="gpt-2"), "model:"),
    ("an unknown GPU", job_text(cluster={"gpus": 1, "gpu": "h1"}), "cluster.gpu:"),
    ("an unknown recipe", job_text(recipe="adam"), "recipe:"),
    ("a recipe without rows", job_text(recipe=recipe()), "recipe.rows:"),
    ("a recipe without weights", job_text(recipe=recipe(GRADIENTS)), "recipe.rows:"),
    (
        "a framework of two stages 1",
        job_text(framework=framework("mixed-adam", 2)),
        "framework.stages:",
    ),
    (
        "a framework like none",
        job_text(framework={**framework("sgd", 1), "like": "x"}),
        "framework.like: 'x' is no framework to be like",
    ),
    (
        "a framework with a field that the other lacks",
        job_text(framework={"name": "x", "like": "paper", "source": "y", "wraps": "root"}),
        "framework.wraps: paper has no such choice",
    ),
    (
        "a framework with an unknown option",
        job_text(framework={"name": "x", "like": "paper", "source": "y", "options": ["z"]}),
        "framework.options: 'z' is no field of zero",
    ),
    (
        "a framework without a source",
        job_text(framework={"name": "x", "like": "paper"}),
        "framework.source: is missing",
    ),
    (
        "a framework with an unknown field",
        job_text(framework={"name": "x", "like": "paper", "source": "y", "moves": []}),
        "framework.moves: is not a known field",
    ),
    ("a framework of an unknown recipe", job_text(framework=framework("nothing", 1)), ""),
    ("stage true", job_text(zero={"stage": True}), "zero.stage:"),
    ("stage 1.0", job_text(zero={"stage": 1.0}), "zero.stage:"),
    ("no stages", job_text(zero={"stage": []}), "zero.stage:"),
    ("no cluster", json.dumps({"model": {"params": 1}}), "cluster.gpus:"),
    ("cluster null", job_text(cluster=None), "cluster.gpus:"),
    ("training of no table", job_text(training="long"), "training:"),
    ("model without dimensions", job_text(model={}), "model:"),
    ("model with some dimensions", job_text(model={"layers": 3}), "model.hidden:"),
    (
        "model in the negative",
        job_text(model={"layers": -3, "hidden": 4, "heads": 2}),
        "model.layers:",
    ),
]


@pytest.mark.parametrize(
    ("text", "start"), [case[1:] for case in BAD_JOBS], ids=[case[0] for case in BAD_JOBS]
)
def test_a_bad_job_file_is_one_line(
    text: str | bytes, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.json").write_bytes(text.encode() if isinstance(text, str) else text)
    from_file = refused(run("plan", "--job", "job.json"))
    assert from_file.startswith(f"error: {start}")
    from_stdin = refused(run("plan", "--job", "-", stdin=text))
    assert from_stdin == from_file.replace("job.json", "standard input")


BAD_MODELS: list[tuple[str, str, str]] = [
    ("config.json", "{}", "--model: "),
    ("config.json", '{"model_type": "llama"}', "--model: "),
    (
        "config.json",
        '{"model_type": "gpt2", "n_embd": -64, "n_layer": 2, "n_head": 2, "vocab_size": 4, '
        '"n_positions": 4}',
        "--model",
    ),
    ("config.json", '{"model_type": "mamba", "hidden_size": 64}', "--model: "),
    ("config.json", "[]", "--model: "),
    ("config.json", "{", "--model: "),
    ("model.toml", "", "--model"),
    ("model.toml", "layers = ", "--model: "),
    ("model.toml", "layers = 2\nlayers = 2", "--model: "),
    (
        "model.toml",
        'layers = 2\nhidden = 64\nheads = 4\ncolour = "red"',
        "--model model.toml: colour: ",
    ),
    ("model.toml", "layers = -2\nhidden = 64\nheads = 4", "--model model.toml: layers: "),
    ("model.toml", "layers = 2", "--model model.toml: hidden: "),
    ("model.toml", "hidden = nan\nlayers = 2\nheads = 2", "--model model.toml: hidden: "),
    ("model.toml", "x = " + "[" * 5000, "--model: "),
    ("model.txt", "layers = 2", "--model model.txt: hidden: "),
]


@pytest.mark.parametrize(
    ("name", "text", "start"),
    BAD_MODELS,
    ids=[f"{name} {text[:40]!r}" for name, text, _ in BAD_MODELS],
)
def test_a_bad_model_file_is_one_line(
    name: str, text: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert refused(run("plan", "--gpus", "8", "--model", name)).startswith(f"error: {start}")
    assert refused(run("params", name)).startswith("error: ")


@pytest.mark.parametrize("flag", ["--job", "--model", "--gpu", "--recipe", "--framework"])
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_paths_that_are_no_small_text_file(
    flag: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"folder{suffix}").mkdir()
    Path(f"binary{suffix}").write_bytes(bytes(range(256)) * 8)
    Path(f"large{suffix}").write_text("#" + " " * 2_100_000)
    with Path(f"sparse{suffix}").open("wb") as stream:
        stream.truncate(200_000_000)
    os.mkfifo("pipe")
    others = ["--params", "1B"] if flag not in {"--job", "--model"} else []
    for name in ("missing", "folder", "binary", "large", "sparse"):
        line = refused(run("plan", "--gpus", "8", *others, flag, f"{name}{suffix}"))
        assert line.startswith(f"error: {flag}: ")
        assert name in line
        if suffix == ".toml" and name in {"large", "sparse"}:
            assert "larger than 2 MB" in line
    assert refused(run("plan", "--gpus", "8", *others, flag, f"nul\0byte{suffix}")).startswith(
        f"error: {flag}: "
    )
    assert refused(run("plan", "--gpus", "8", *others, flag, f"{'long' * 70}{suffix}")).startswith(
        f"error: {flag}: "
    )


# What a file is, is read from it where its name does not say; pipes are files too, and nothing is
# waited for or read without an end.

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
MODEL = {"layers": 2, "hidden": 64, "heads": 4, "title": "ours"}
GPU = 'title = "Our card"\nsource = "its data sheet"\nusable_bytes = "40GiB"\n'


@pytest.mark.parametrize(
    "name", ["config.json", "CONFIG.JSON", "config", "config.txt", "model.safetensors.index"]
)
def test_a_config_is_known_by_its_content(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(json.dumps(CONFIG))
    assert json.loads(run("params", name, "--json").out)["total"] == 95_040
    assert "95.04K" in run("plan", "--model", name, "--gpus", "8").out
    assert run("plan", "--job", "-", "--gpus", "8", stdin=json.dumps({"model": name})).status == 0
    assert run("presets", "models", name).status == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.TOML", "layers = 2\nhidden = 64\nheads = 4\n"),
        ("m", "layers = 2\nhidden = 64\nheads = 4\n"),
        ("m.json", json.dumps(MODEL)),
        ("m", json.dumps(MODEL)),
    ],
)
def test_our_own_models_are_known_by_their_content(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    flags = run(
        "plan", "--layers", "2", "--hidden", "64", "--heads", "4", "--gpus", "8", "--format", "csv"
    ).out
    assert run("plan", "--model", name, "--gpus", "8", "--format", "csv").out == flags


def test_jobs_and_presets_without_an_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job").write_text('model = "gpt2"\n[cluster]\ngpus = 8\ngpu = "card"\n')
    Path("card").write_text(GPU)
    plain = run("plan", "--job", "job", "--json")
    assert json.loads(plain.out)["job"]["cluster"]["gpu"]["title"] == "Our card"
    Path("job.JSON").write_text(plain.out)
    assert run("plan", "--job", "job.JSON", "--json") == plain
    assert run("plan", "--job", "-", "--json", stdin=Path("job").read_text()) == plain
    assert refused(run("plan", "--job", "-", stdin="model = ")).endswith(
        "; nor is it a JSON object"
    )


@pytest.mark.parametrize("flag", ["--job", "--model", "--gpu", "--node", "--recipe", "--framework"])
@pytest.mark.parametrize("value", ["", " "])
def test_empty_names(flag: str, value: str) -> None:
    others = ["--params", "1B"] if flag != "--model" else []
    line = refused(run("plan", "--gpus", "8", *others, flag, value))
    assert line.startswith(f"error: {flag}: {value!r} is no")


def bash(line: str, cwd: Path) -> Ran:
    if not Path("/bin/bash").exists() or not Path("/dev/fd").exists():
        pytest.skip("no process substitution here")
    return shell(f"timeout 60 bash -c {shlex.quote(line)}", cwd=cwd)


def test_process_substitution(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "card.toml").write_text(GPU)
    for line in (
        "zerocalc params <(cat config.json)",
        "zerocalc params <(sleep 1; cat config.json)",
        "cat config.json | zerocalc params /dev/stdin",
        "zerocalc plan --gpus 8 --model <(cat config.json) --gpu <(cat card.toml)",
        "zerocalc plan --job <(zerocalc plan --model config.json --gpus 8 --json)",
        "mkfifo slow; (sleep 0.5; cat config.json > slow) & zerocalc params slow; wait",
    ):
        ran = bash(line, tmp_path)
        assert (ran.status, ran.err) == (0, ""), line
        assert "95.04K" in ran.out


@pytest.mark.parametrize("flag", ["--job", "--model", "--gpu", "--recipe"])
def test_pipes_and_devices_neither_hang_nor_fill_memory(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(presets, "PATIENCE", 0.05)
    others = ["--params", "1B"] if flag not in {"--job", "--model"} else []
    for name, words in {
        "pipe": "is a pipe that nothing was written to",
        "pipe.toml": "is a pipe that",
        "/dev/zero": "is a device, not a file",
    }.items():
        if not name.startswith("/") and not Path(name).exists():
            os.mkfifo(name)
        line = refused(run("plan", "--gpus", "8", *others, flag, name))
        assert line.startswith(f"error: {flag}: {name} {words}")
    assert (
        refused(run("presets", "gpus", "/dev/zero"))
        == "error: NAME: /dev/zero is a device, not a file"
    )
    assert (
        refused(run("presets", "gpus", "pipe"))
        == "error: NAME: pipe is a pipe that nothing was written to"
    )


def test_endless_pipes_are_read_within_bounds(tmp_path: Path) -> None:
    ran = bash("zerocalc plan --job <(yes)", tmp_path)
    assert ran.status == 2
    assert "larger than 2 MB" in ran.err
    assert "larger than 2 MB" in shell("zerocalc plan --job - < /dev/zero").err


# What a file's texts would do to a terminal, they do not.

NASTY = "a\x1b[31mred\nZeRO-1 fits\t\u202e\x9b\x07"


def controls(text: str) -> set[str]:
    return {letter for letter in text if not letter.isprintable() and letter != "\n"}


def test_texts_of_files_are_printed_visibly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps(NASTY)
    framework = json.loads(run("presets", "frameworks", "paper", "--json").out)["paper"]
    recipe = json.loads(run("presets", "recipes", "sgd", "--json").out)["sgd"]
    for table in (framework, recipe, framework["stages"][1], recipe["rows"][0]):
        table["name"] = NASTY
    framework["like"] = "paper"
    Path("fw.json").write_text(json.dumps(framework))
    Path("recipe.json").write_text(json.dumps({**recipe, "note": NASTY, "title": NASTY}))
    toml = text.replace("\\u001b", "\\u001B")
    Path("model.toml").write_text(
        f"title = {toml}\nsource = {toml}\nlayers = 2\nhidden = 64\nheads = 4\nassumed = [{toml}]\n"
    )
    Path("card.toml").write_text(
        f"title = {toml}\nsource = {toml}\nusable_bytes = '1GiB'\nruntime_bytes = "
        f"'1GiB'\nruntime_note = {toml}\n"
    )
    flags = [
        "--model",
        "model.toml",
        "--gpus",
        "8",
        "--seq",
        "8",
        "--gpu",
        "card.toml",
        "--framework",
        "fw.json",
        "--recipe",
        "recipe.json",
    ]
    for command in (
        ["plan"],
        ["plan", "--format", "csv"],
        ["plan", "--format", "markdown"],
        ["explain"],
        ["step"],
        ["plan", "--json"],
    ):
        ran = run(*command, *flags)
        assert (ran.status, ran.err) == (0, "")
        assert not controls(ran.out)
        assert "\\x1b[31mred" in ran.out
        assert not [line for line in ran.out.splitlines() if line.startswith("ZeRO-1 fits\t")]
    for kind, name in {
        "models": "model.toml",
        "gpus": "card.toml",
        "recipes": "recipe.json",
        "frameworks": "fw.json",
    }.items():
        assert not controls(run("presets", kind, name).out)
        assert "\\x1b[31mred ZeRO-1 fits \\u202e\\x9b\\x07" in " ".join(
            run("presets", kind, name, columns=120).out.split()
        )
    assert not controls(run("params", "model.toml").out)
    Path("q\x1b[31m.toml").write_text(GPU)
    assert not controls(run("presets", "gpus", "q\x1b[31m.toml").out)


# The wording of refusals is ours.

FOREIGN = [
    "string should",
    "input should",
    "tuple",
    "validation",
    "valid integer",
    "Exceeds the limit",
    "dictionary",
    "instance of",
    "NoneType",
    "None ",
]


def test_refusals_are_in_our_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = {
        kind: json.loads(run("presets", kind, name, "--json").out)[name]
        for kind, name in {
            "gpus": "h200",
            "nodes": "dgx-h100",
            "recipes": "sgd",
            "frameworks": "paper",
            "models": "gpt2",
        }.items()
    }
    wrong: list[Any] = [
        None,
        True,
        -1,
        0,
        1.5,
        9,
        10**400,
        "",
        "x" * 5000,
        [],
        [1],
        [[1]] * 30,
        {},
        {"a": 1},
        "\ud800",
        "2",
        1e300,
    ]
    for kind, table in base.items():
        for key in [*table, "nonsense"]:
            for value in wrong:
                Path("own.json").write_text(json.dumps({**table, key: value}))
                ran = run("presets", kind, "own.json")
                if ran.status:
                    line = refused(ran)
                    assert line.startswith(("error: NAME own.json: ", "error: NAME: "))
                    assert not [word for word in FOREIGN if word in line], line


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (
            "gpus",
            'title = "x"\nsource = "y"\nusable = "1GB"',
            "usable: is not a known field; nearest: usable_bytes",
        ),
        (
            "gpus",
            'title = "x"\nsource = "y"\nusable_bytes = "5.5X"',
            "usable_bytes: '5.5X' is not an amount of memory",
        ),
        (
            "nodes",
            'title = "x"\nsource = "y"\ngpus = 8\ngpu = "h100"',
            "gpu: 'h100' is not a preset; nearest: h100-80g",
        ),
        ("frameworks", 'name = "x"\nsource = "y"', "recipe: is missing"),
        ("recipes", 'name = "x"\nsource = "y"\nrows = []', "rows: is an empty list"),
        ("models", "layers = 2\nhiden = 4", "hiden: is not a known field; nearest: hidden"),
        ("families", 'title = "x"\nsource = "y"', "model_types: is missing"),
        ("papers", 'title = "x"\nsource = "y"', "columns: is missing"),
    ],
)
def test_presets_checks_a_file_as_its_kind(
    kind: str, text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(text)
    for form in ([], ["--json"]):
        line = refused(run("presets", kind, "own.toml", *form))
        assert line.startswith("error: NAME own.toml: ")
        assert words in line


@pytest.mark.parametrize("kind", presets.KINDS)
def test_presets_in_json_are_in_the_unit_of_their_keys(kind: str) -> None:
    tables = json.loads(run("presets", kind, "--json").out)
    assert list(tables) == presets.names(kind)
    figures = [
        value
        for table in tables.values()
        for key, value in table.items()
        if key.endswith(("_bytes", "_per_second"))
    ]
    assert all(isinstance(figure, int) for figure in figures)
    assert bool(figures) == (kind in {"gpus", "nodes", "quantisations"})


@pytest.mark.parametrize("kind", presets.KINDS)
def test_presets_of_every_kind_are_listed_and_shown(kind: str) -> None:
    listed = run("presets", kind)
    assert listed.status == 0
    for name in presets.names(kind):
        assert name in listed.out
    first = presets.names(kind)[0]
    shown = run("presets", kind, first)
    assert shown.out.startswith(f"{first} ({kind})")


@pytest.mark.parametrize("name", presets.names("papers"))
def test_published_tables_are_printed_in_words(name: str) -> None:
    out = run("presets", "papers", name).out
    assert "{'" not in out
    assert "['" not in out


def test_models_are_listed_by_family_and_size() -> None:
    listed = [line.split()[0] for line in run("presets", "models").out.splitlines()[2:]]
    assert listed == presets.names("models")
    for order in (
        ["cerebras-gpt-111m", "cerebras-gpt-1.3b", "cerebras-gpt-6.7b", "cerebras-gpt-13b"],
        ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-6.7b", "gpt3-175b"],
        [
            "llama-7b",
            "llama-65b",
            "llama-2-7b",
            "llama-2-70b",
            "llama-3-8b",
            "llama-3.1-405b",
            "llama-3.2-1b",
        ],
        ["megatron-1.7b", "megatron-145.6b", "megatron-1t"],
        ["smollm2-135m", "smollm2-360m", "smollm2-1.7b"],
    ):
        assert sorted(order, key=listed.index) == order
