"""The command line: bad input is one line that names what was written; everything else is an
answer.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.running import Ran, program, refused, run, shell
from zerocalc import __version__
from zerocalc.cli import COMMANDS

BARE = ("plan", "--params", "10B", "--gpus", "64")
GPT = "plan --layers 4 --hidden 512 --heads 8 --seq 128 --gpus 8 "


# (name, arguments, what the line must say first: the flag or the file that is at fault)
COUNTS = [
    "10Q",
    "-3",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e19",
    "",
    " ",
    "true",
    "1e-5",
    "0.5",
    "10GB",
    "ten",
    "0x10",
    "1,000",
    "10 B B",
    "１０B",
    "9" * 5000,
]
BAD_COUNTS = [
    (value[:8], ("plan", "--gpus", "64", f"--params={value}"), "--params:") for value in COUNTS
]
WHOLES = ["1.5", "-1", "0", "1e3", "8K", "nan", "true", "", "99999999999", "a\nb", "\x1b[31m"]
BAD_WHOLES = [
    (repr(value)[:8], ("plan", "--params", "1B", f"--gpus={value}"), "--gpus:") for value in WHOLES
]

BAD_FLAGS = [
    ("params with layers", "plan --params 10B --layers 4 --gpus 8", "--params:"),
    ("params with a preset", "plan --params 10B --model gpt2 --gpus 8", "--params:"),
    ("no model", "plan --gpus 8", "--model:"),
    ("nothing at all", "plan", "--"),
    ("no GPUs", "plan --params 1B", "--gpus:"),
    ("layers alone", "plan --layers 4 --gpus 8", "--hidden:"),
    ("hidden alone", "plan --hidden 4 --gpus 8", "--layers:"),
    ("no heads", "plan --layers 4 --hidden 64 --gpus 8", "--heads:"),
    ("negative dimension", "plan --layers -4 --hidden 64 --heads 4 --gpus 8", "--layers:"),
    ("heads do not divide", "plan --layers 4 --hidden 65 --heads 4 --gpus 8", "--heads:"),
    (
        "kv heads do not divide",
        "plan --layers 4 --hidden 64 --heads 4 --kv-heads 3 --gpus 8",
        "--kv-heads:",
    ),
    ("kind unknown", "plan --kind bert --layers 4 --hidden 64 --heads 4 --gpus 8", "--kind:"),
    ("trainable over params", "plan --params 1B --trainable 2B --gpus 8", "--trainable:"),
    ("trainable over an architecture", GPT + "--trainable 2T", "--trainable:"),
    ("blocks over params", "plan --params 10 --blocks 11 --gpus 8", "--blocks:"),
    ("blocks with an architecture", GPT + "--blocks 4", "--blocks:"),
    ("63 GPUs with tp 8", "plan --params 1B --gpus 63 --tp 8", "--gpus:"),
    ("tp over GPUs", "plan --params 1B --gpus 4 --tp 8", "--tp:"),
    ("tp does not divide heads", "plan --layers 4 --hidden 64 --heads 4 --gpus 24 --tp 3", "--tp:"),
    ("pp over layers", "plan --layers 4 --hidden 64 --heads 4 --gpus 8 --pp 8", "--pp:"),
    ("cp over tokens", "plan --layers 4 --hidden 64 --heads 4 --gpus 8 --cp 8 --seq 4", "--cp:"),
    ("tp of nothing", "plan --params 1B --gpus 8 --tp 0", "--tp:"),
    ("sequence parallel with tp 1", GPT + "--sequence-parallel", "--sequence-parallel:"),
    ("P_a with tp 1", GPT + "--recompute full --pa", "--partition-activations:"),
    ("P_a without recomputation", GPT + "--tp 2 --pa", "--partition-activations:"),
    (
        "P_a with selective recomputation",
        GPT + "--tp 2 --pa --recompute selective",
        "--partition-activations:",
    ),
    (
        "P_a with sequence parallelism",
        GPT + "--tp 2 --pa --recompute full --sequence-parallel",
        "--partition-activations:",
    ),
    ("P_a+cpu without P_a", GPT + "--tp 2 --recompute full --pa-cpu", "--cpu-checkpointing:"),
    ("stage 4", "plan --params 1B --gpus 8 --stage 4", "--stage:"),
    ("stage 1,x", "plan --params 1B --gpus 8 --stage 1,x", "--stage:"),
    ("stage of nothing", "plan --params 1B --gpus 8 --stage=", "--stage:"),
    ("stage comma", "plan --params 1B --gpus 8 --stage 1,", "--stage:"),
    ("stage -1", "plan --params 1B --gpus 8 --stage=-1", "--stage:"),
    ("stage all", "plan --params 1B --gpus 8 --stage all", "--stage:"),
    (
        "all-reduce at stage 3",
        "plan --params 1B --gpus 8 --stage 3 --grad-sync all-reduce",
        "--grad-sync:",
    ),
    (
        "broadcast at stage 1",
        "plan --params 1B --blocks 4 --gpus 8 --stage 1 --gather broadcast",
        "--gather:",
    ),
    ("broadcast of one block", "plan --params 1B --gpus 8 --gather broadcast", "--gather:"),
    (
        "deferring at stage 0",
        "plan --params 1B --gpus 8 --stage 0 --defer-grad-sync",
        "--defer-grad-sync:",
    ),
    ("grad sync unknown", "plan --params 1B --gpus 8 --grad-sync allreduce", "--grad-sync:"),
    ("dtype unknown", "plan --params 1B --gpus 8 --reduce-dtype fp8", "--reduce-dtype:"),
    ("recompute unknown", GPT + "--recompute some", "--recompute:"),
    ("attention unknown", GPT + "--attention sdpa", "--attention:"),
    ("buffers unknown", "plan --params 1B --gpus 8 --buffers big", "--buffers:"),
    ("memory without a unit", "plan --params 1B --gpus 8 --gpu-memory 80", "--gpu-memory:"),
    ("memory of none", "plan --params 1B --gpus 8 --gpu-memory 0GB", "--gpu-memory:"),
    ("memory below zero", "plan --params 1B --gpus 8 --gpu-memory=-80GB", "--gpu-memory:"),
    ("memory in bits", "plan --params 1B --gpus 8 --gpu-memory 80Gb/s", "--gpu-memory:"),
    (
        "bucket in bytes",
        "plan --params 1B --gpus 8 --reduce-bucket-size 500MB",
        "--reduce-bucket-size:",
    ),
    (
        "bucket of none",
        "plan --params 1B --gpus 8 --allgather-bucket-size 0",
        "--allgather-bucket-size:",
    ),
    ("fragmentation with M_D", "plan --params 1B --gpus 8 --fragmentation 0.2", "--fragmentation:"),
    (
        "fragmentation with M_D said",
        "plan --params 1B --gpus 8 --defragment --fragmentation 0.2",
        "--fragmentation:",
    ),
    (
        "fragmentation of all",
        "plan --params 1B --gpus 8 --no-defragment --fragmentation 1",
        "--fragmentation:",
    ),
    (
        "fragmentation in percent",
        "plan --params 1B --gpus 8 --no-defragment --fragmentation 30%",
        "--fragmentation:",
    ),
    (
        "fragmentation nan",
        "plan --params 1B --gpus 8 --no-defragment --fragmentation nan",
        "--fragmentation:",
    ),
    ("micro-batch of none", GPT + "--micro-batch 0", "--micro-batch:"),
    ("accumulation of half", GPT + "--accumulation 0.5", "--accumulation:"),
    ("sequence over positions", "plan --model gpt2 --gpus 8 --seq 2048", "--seq:"),
    ("adafactor without shapes", "plan --params 1B --gpus 8 --recipe adafactor", "--recipe"),
    ("recipe unknown", "plan --params 1B --gpus 8 --recipe adamm", "--recipe:"),
    ("model unknown", "plan --model llama-3-9b --gpus 8", "--model:"),
    ("GPU unknown", "plan --params 1B --gpus 8 --gpu h100", "--gpu:"),
    ("framework unknown", "plan --params 1B --gpus 8 --framework papper", "--framework:"),
    ("preset by a path out", "plan --model ../gpus/h100-80g --gpus 8", "--model:"),
    ("model of no name", "plan --model= --gpus 8", "--model:"),
    ("option unknown", "plan --parms 1B", "no such option: --parms"),
    ("command unknown", "plann", "'plann' is not a command"),
    ("value missing", "plan --params", "option '--params'"),
    ("flag with a value", GPT + "--overlap-comm=yes", "option '--overlap-comm'"),
    ("argument too many", "plan --params 1B --gpus 8 64", "64: unexpected argument"),
    ("format unknown", "plan --params 1B --gpus 8 --format yaml", "--format:"),
    ("json and csv", "plan --params 1B --gpus 8 --json --format csv", "--json:"),
    ("term unknown", "explain --params 1B --gpus 8 --term wieghts", "--term:"),
    ("params of nothing", "params", "config|preset: is missing"),
    ("params of no preset", "params gpt3", "config|preset:"),
    ("presets of no kind", "presets gpu", "kind:"),
    ("presets of no name", "presets gpus h100", "name:"),
    ("steps of no stage", "step --params 1B --gpus 8 --stage 7", "--stage:"),
]
BAD_LINES = [
    *BAD_COUNTS,
    *BAD_WHOLES,
    *((name, tuple(shlex.split(line)), start) for name, line, start in BAD_FLAGS),
]


@pytest.mark.parametrize(
    ("arguments", "start"), [case[1:] for case in BAD_LINES], ids=[case[0] for case in BAD_LINES]
)
def test_bad_input_is_one_line_that_names_it(arguments: tuple[str, ...], start: str) -> None:
    line = refused(run(*arguments))
    assert line.lower().startswith(f"error: {start}")


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ("plan --model llama-3-9b --gpus 8", "llama-3-8b"),
        ("plan --params 1B --gpus 8 --gpu h100", "h100-80g"),
        ("plan --params 1B --gpus 8 --recipe mixed-adm", "mixed-adam"),
        ("plan --params 1B --gpus 8 --framework papper", "paper"),
        ("presets gpu", "gpus"),
        ("presets nodes dgx-h10", "dgx-h100"),
        ("presets papers zero-table", "zero-table1"),
        ("params gpt-2", "gpt2"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(arguments: str, nearest: str) -> None:
    line = refused(run(*arguments.split()))
    assert "nearest: " in line
    assert nearest in line.partition("nearest: ")[2]


def test_every_job_flag_takes_no_rubbish() -> None:
    """Whatever the flag, a value that nothing can be made of is one line that names the flag."""
    from zerocalc.cli.flags import FLAGS

    for flag in FLAGS:
        if flag.switch:
            continue
        base = (
            ["--gpus", "8", "--params", "1B"]
            if not flag.path.startswith("model")
            else ["--gpus", "8"]
        )
        if flag.path.startswith("model.") and flag.name not in {"--params"}:
            base += ["--layers", "4", "--hidden", "512", "--heads", "8"]
        line = refused(run("plan", *base, flag.name, "¿rubbish?\n\t\x07"))
        assert line.startswith(f"error: {flag.name}: "), line


def test_the_same_refusals_from_the_program() -> None:
    for arguments in (
        ["plan", "--params", "10Q", "--gpus", "8"],
        ["plan", "--parms"],
        ["plann"],
        ["plan", "--model", "/", "--gpus", "1"],
    ):
        ran = program(*arguments)
        refused(ran)
        assert ran == run(*arguments)


# Exit status, standard input, precedence.


def test_check_says_no_with_1_after_the_answer() -> None:
    huge = ["plan", "--params", "10T", "--gpus", "8", "--gpu", "h100-80g"]
    small = [
        "plan",
        "--layers",
        "4",
        "--hidden",
        "512",
        "--heads",
        "8",
        "--seq",
        "128",
        "--gpus",
        "8",
        "--gpu",
        "h100-80g",
    ]
    assert run(*huge).status == 0
    no = run(*huge, "--check")
    assert (no.status, no.err) == (1, "")
    assert no.out == run(*huge).out
    assert run(*small, "--check").status == 0
    assert run(*BARE, "--check").status == 1  # not known to fit
    assert run(*huge, "--check", "--json").status == 1
    assert program(*huge, "--check").status == 1


def job_of(*arguments: str, stdin: str = "") -> dict[str, Any]:
    ran = run("plan", "--json", *arguments, stdin=stdin)
    assert (ran.status, ran.err) == (0, "")
    job: dict[str, Any] = json.loads(ran.out)["job"]
    return job


def test_a_job_from_standard_input() -> None:
    from_flags = run(*BARE, "--json").out
    assert run("plan", "--job", "-", "--json", stdin=from_flags).out == from_flags
    assert program("plan", "--job", "-", "--json", stdin=from_flags.encode()).out == from_flags
    assert (
        shell("zerocalc plan --params 10B --gpus 64 --json | zerocalc plan --job - --json").out
        == from_flags
    )


def test_job_from_toml_and_with_a_byte_order_mark(tmp_path: Path) -> None:
    toml, marked = tmp_path / "job.toml", tmp_path / "job.json"
    toml.write_text('model = "gpt2"\n[cluster]\ngpus = 8\n[zero]\nstage = 2\n')
    marked.write_bytes(
        b"\xef\xbb\xbf"
        + json.dumps({"model": "gpt2", "cluster": {"gpus": 8}, "zero": {"stage": "2"}}).encode()
    )
    assert (
        job_of("--job", str(toml))
        == job_of("--job", str(marked))
        == job_of("--model", "gpt2", "--gpus", "8", "--stage", "2")
    )


def test_flags_over_job_file_over_preset_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(
        json.dumps(
            {
                "model": "gpt2",
                "cluster": {"gpus": 8, "gpu": "a100-40g"},
                "training": {"seq": 512},
                "zero": {"stage": [1]},
            }
        )
    )
    plain = job_of("--job", str(file))
    assert plain["model"]["layers"] == 12  # the preset's
    assert plain["training"] == {
        "seq": 512,
        "micro_batch": 1,
        "accumulation": 1,
        "recompute": "none",
        "recompute_every": 1,
        "recompute_modules": ["core_attn"],
        "kernel_efficiency": None,
        "tokens": None,
        "reentrant": False,
        "attention": "flash",
    }
    over = job_of(
        "--job",
        str(file),
        "--seq",
        "256",
        "--layers",
        "24",
        "--stage",
        "3",
        "--gpu",
        "h100-80g",
        "--gpus",
        "16",
    )
    assert over["training"]["seq"] == 256
    assert over["model"]["layers"] == 24
    assert over["model"]["hidden"] == 768
    assert over["zero"]["stage"] == [3]
    assert over["cluster"]["gpus"] == 16
    assert over["cluster"]["gpu"]["title"] == "NVIDIA H100 SXM 80 GB"
    replaced = job_of("--job", str(file), "--model", "llama-2-7b")
    assert (
        replaced["model"] == job_of("--model", "llama-2-7b", "--gpus", "8")["model"]
    )  # the whole subtree
    assert "with layers 24" in over["model"]["title"]


def test_an_own_gpu_and_recipe(tmp_path: Path) -> None:
    gpu, recipe = tmp_path / "my-gpu.toml", tmp_path / "mine.toml"
    gpu.write_text('title = "Our card"\nsource = "its data sheet"\nusable_bytes = "47.5GiB"\n')
    rows = [
        ("weights", "weights", "fp16", 3, "all"),
        ("gradients", "gradients", "fp16", 2, "trainable"),
    ]
    text = 'name = "mine"\nsource = "us"\n' + "".join(
        f'[[rows]]\nname = "{name}"\nkind = "{kind}"\ndtype = "{dtype}"\nsharded_from = '
        f'{first}\nof = "{of}"\n'
        for name, kind, dtype, first, of in rows
    )
    recipe.write_text(text)
    ran = run(*BARE, "--gpu", str(gpu), "--recipe", str(recipe), "--json")
    answer = json.loads(ran.out)
    assert answer["job"]["cluster"]["gpu"]["usable_bytes"] == int(47.5 * 2**30)
    assert answer["candidates"][0]["memory"]["gpu"]["states_bytes"] == 40 * 10**9


def test_gpu_memory_overrides_the_preset() -> None:
    assert run(*BARE, "--gpu", "h100-80g", "--gpu-memory", "1GB", "--check").status == 1
    assert "0.93 GiB" in run(*BARE, "--gpu", "h100-80g", "--gpu-memory", "1GB").out


def test_environment_sets_no_job_field() -> None:
    names = {f"ZEROCALC_{name}": "4" for name in ("STAGE", "PLAN_STAGE", "GPUS", "PLAN_GPUS", "TP")}
    assert run(*BARE, variables=names) == run(*BARE)


# Help, version, looks.


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, flag: str) -> None:
    ran = run(*[command] * bool(command), flag)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("Usage: zerocalc")
    assert max(map(len, ran.out.splitlines())) <= 80


def test_help_says_what_each_command_is_for() -> None:
    out = run("--help").out
    for command in COMMANDS:
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [command]]
        assert len(line.split()) > 3, f"{command} has no help"
        assert len(run(command, "--help").out.splitlines()) > 5


def test_every_flag_is_in_the_help_with_a_sentence() -> None:
    from zerocalc.cli.flags import FLAGS

    for command in ("plan", "explain", "step"):
        out = " ".join(run(command, "--help").out.split())
        for flag in FLAGS:
            assert f"{flag.name} " in out or f"{flag.name}, " in out or f"{flag.name} / " in out, (
                flag.name
            )
            assert (
                flag.help in out.replace("- ", "-")
                or flag.help.replace("-", "- ") in out
                or flag.help.split(":")[0][:20] in out
            )


def test_version() -> None:
    assert run("--version") == Ran(0, f"zerocalc {__version__}\n", "")
    assert program("--version").out == f"zerocalc {__version__}\n"


def test_no_arguments_are_a_wish_for_help() -> None:
    assert run() == run("--help")


COLOURFUL = [
    "plan --params 10B --gpus 64",
    "explain --params 10B --gpus 64 --stage 3",
    "step --params 10B --gpus 4",
    "presets gpus",
    "params gpt2",
]


@pytest.mark.parametrize("line", COLOURFUL)
def test_colour_only_where_it_is_wanted(line: str) -> None:
    arguments = line.split()
    assert "\x1b[" in run(*arguments, colour=True).out
    assert "\x1b[" not in run(*arguments).out
    assert not re.search(
        r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)[;m]",
        run(*arguments, colour=True, variables={"NO_COLOR": "1"}).out,
    )  # bold may stay


@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_data_is_never_coloured_nor_wrapped(form: str) -> None:
    narrow, wide = (
        run(*BARE, "--format", form, columns=20, colour=True),
        run(*BARE, "--format", form, columns=200),
    )
    assert narrow == wide
    assert "\x1b" not in narrow.out


def test_json_everywhere_is_json() -> None:
    bare = [f"{command} --params 10B --gpus 64" for command in ("plan", "explain", "step")]
    for line in (
        *bare,
        "params gpt2",
        "paper all",
        "presets",
        "presets gpus",
        "presets gpus h100-80g",
    ):
        ran = run(*line.split(), "--json")
        assert (ran.status, ran.err) == (0, "")
        json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert run(*BARE, "--format", "json") == run(*BARE, "--json")
    assert json.loads(run("params", "gpt2", "--json").out)["total"] == 124_439_808


@pytest.mark.parametrize(
    "line",
    [
        " ".join(BARE),
        "explain --params 10B --gpus 64",
        "plan --params 10B --gpus 64 --json",
        "presets models",
        "--help",
    ],
)
@pytest.mark.parametrize("reader", ["head -1", "true", "head -c 1"])
def test_a_reader_that_goes_away_is_no_error(line: str, reader: str) -> None:
    ran = shell(f"{{ zerocalc {line}; echo status $? >&2; }} | {reader}")
    assert ran.err == "status 0\n"


def test_a_node_brings_its_gpus_and_another_node_brings_others(tmp_path: Path) -> None:
    first = run("plan", "--params", "7B", "--gpus", "16", "--node", "dgx-a100", "--json")
    assert json.loads(first.out)["job"]["cluster"]["gpu"]["title"] == "NVIDIA A100 SXM 80 GB"
    file = tmp_path / "job.json"
    file.write_text(first.out, "utf-8")
    second = json.loads(run("plan", "--job", str(file), "--node", "dgx-2", "--json").out)["job"][
        "cluster"
    ]
    assert (second["gpu"]["title"], second["gpus_per_node"]) == ("NVIDIA V100 SXM 32 GB", 16)
    third = json.loads(run("plan", "--job", str(file), "--gpu", "h200", "--json").out)["job"][
        "cluster"
    ]
    assert (third["gpu"]["title"][:11], third["gpus_per_node"]) == ("NVIDIA H200", 8)


def test_closed_standard_input_and_empty_names_are_one_line() -> None:
    closed = shell("zerocalc plan --job - <&-")
    assert (closed.status, closed.out, closed.err) == (
        2,
        "",
        "error: --job: standard input is closed\n",
    )
    assert refused(run("presets", "gpus", "")).startswith("error: NAME: ''")
