"""What is said to somebody who is new: the next thing to write, in the words of the command
line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running import refused, run, run_line
from zerocalc.cli.error_location import in_flags
from zerocalc.cli.flags import FLAGS, Flag

DEEPSPEED = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "foo": 1}'
TORCHTITAN = '[model]\nname = "llama3"\n[parallelism]\ntensor_parallel_degree = 2\n'
ACCELERATE = "distributed_type: FSDP\nnum_processes: 2001-01-01\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(DEEPSPEED)
    Path("tt.toml").write_text(TORCHTITAN)
    Path("acc.yaml").write_text(ACCELERATE)
    Path("foobar.json").write_text('{"model_type": "foobar"}')


COMMANDS = (
    "the commands are plan, explain, step, export, params, paper, presets; --help explains them"
)
LINES = [
    (
        "plan llama-3-8b --gpus 8",
        "llama-3-8b: unexpected argument; give it as --model llama-3-8b",
    ),
    ("plan h100-80g --gpus 8", "h100-80g: unexpected argument; give it as --gpu h100-80g"),
    (
        "step deepspeed --gpus 8",
        "deepspeed: unexpected argument; give it as --framework deepspeed",
    ),
    (
        "plan --gpus 8 ./config.json",
        "./config.json: unexpected argument; give it as --model ./config.json",
    ),
    (
        "params gpt2 twice",
        "twice: unexpected argument; zerocalc params --help lists the flags",
    ),
    ("foo", f"'foo' is not a command; {COMMANDS}"),
    ("plann --gpus 8", f"'plann' is not a command; nearest: plan, explain; {COMMANDS}"),
    (
        "export --gpus 8",
        "--to: is missing. Tool to write for: deepspeed, accelerate, fsdp2, torchtitan, megatron",
    ),
    ("params", "CONFIG|PRESET: is missing. Preset, TOML file or config.json"),
    (
        "plan",
        "--model: say what is trained: --params 7B, or --model llama-3-8b, or --layers, "
        "--hidden and --heads",
    ),
    (
        "plan --model llama-3-8b --params 10B --gpus 8",
        "--params: contradicts --model llama-3-8b, whose parameters are counted: give one "
        "of the two",
    ),
    (
        "plan --model mamba-2.8b --gpus 8 --lora-rank 8",
        "--lora-rank: no linear layer of this model is called q_proj or v_proj, PEFT's defaults; "
        "name layers with --lora-targets: it has embeddings",
    ),
    (
        "params deepseek-v3 --lora-rank 8",
        "--lora-rank: no linear layer of this model is called q_proj or v_proj, PEFT's defaults; "
        "name layers with --lora-targets: it has embed_tokens",
    ),
    (
        "plan --params 1B --gpus 8 --framework torchtitan --overlap-comm",
        "--overlap-comm: not supported by torchtitan (supported: --defer-grad-sync, "
        "--reduce-dtype, --shard-group",
    ),
    (
        "plan --params 1B --gpus 8 --pa-cpu",
        "--cpu-checkpointing: needs --partition-activations: it moves partitioned activations "
        "to the CPU",
    ),
    (
        "plan --layers 4 --hidden 65 --heads 4 --gpus 8",
        "--heads: 4 does not divide the hidden size 65; if heads are wider, give --head-dim",
    ),
    (
        "plan --params 1B --gpus 8 --sequence-parallel",
        "--sequence-parallel: needs --tp above 1: it splits what tensor-parallel ranks replicate",
    ),
    (
        "plan --params 1B --gpus 8 --gather broadcast",
        "--gather: broadcast sends whole blocks: give their number (--blocks)",
    ),
    (
        "plan --params 1B --gpus 8 --kernel-efficiency 1",
        "--kernel-efficiency: '1' is not a share of at least 0 and below 1, such as 0.1",
    ),
    (
        "params meta-llama/Llama-3.1-8B",
        "CONFIG|PRESET: meta-llama/Llama-3.1-8B: no such file, and nothing is downloaded; "
        "give a preset or the path "
        "of its config.json; nearest: llama-3.1-8b",
    ),
    (
        "plan --model https://huggingface.co/x/gpt2 --gpus 8",
        "--model: https://huggingface.co/x/gpt2: no such file, and nothing is downloaded",
    ),
    (
        "plan --model lost/config.json --gpus 8",
        "--model: lost/config.json: no such file or directory",
    ),
    (
        "params foobar.json",
        "CONFIG|PRESET: foobar.json: model_type 'foobar' is not known yet; known are gpt2, llama",
    ),
    (
        "plan --config acc.yaml --params 1B",
        "num_processes: 2001-01-01 is not a whole number (in acc.yaml)",
    ),
    (
        "plan --model ds.json --gpus 8",
        "--model: ds.json is a configuration of DeepSpeed; --config reads it",
    ),
    (
        "plan --model tt.toml --gpus 8",
        "--model: tt.toml is a configuration of torchtitan; --config reads it",
    ),
    ("plan --job ds.json", "--job: ds.json is a configuration of DeepSpeed; --config reads it"),
    ("plan --job tt.toml", "--job: tt.toml is a configuration of torchtitan; --config reads it"),
    ("plan --config - --job -", "--job: standard input"),
]


@pytest.mark.parametrize(("line", "start"), LINES, ids=[line for line, _ in LINES])
def test_the_next_thing_to_write_is_named(line: str, start: str) -> None:
    assert refused(run_line(line)).startswith(f"error: {start}")


def test_fields_keep_their_names_where_a_file_is_at_fault() -> None:
    Path("job.json").write_text(
        json.dumps(
            {"model": {"params": "1B"}, "cluster": {"gpus": 8}, "zero": {"cpu_checkpointing": True}}
        )
    )
    said = refused(run("plan", "--job", "job.json"))
    assert said.endswith(
        "needs partition_activations: it moves partitioned activations to the CPU (in job.json)"
    )


@pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if "_" in flag.path], ids=lambda flag: flag.name
)
def test_every_field_is_called_by_its_flag(flag: Flag) -> None:
    path, name = flag.path, flag.name
    assert in_flags(f"it needs {path} too") == f"it needs {name} too"
    assert in_flags(f"it needs {path.rpartition('.')[2]} too") == f"it needs {name} too"
    assert (
        in_flags(f"'{path.rpartition('.')[2]}' is no number")
        == f"'{path.rpartition('.')[2]}' is no number"
    )


def test_a_configuration_on_standard_input() -> None:
    flags = ("--model", "gpt2", "--gpus", "8", "--json")
    piped, read = (
        json.loads(run("plan", "--config", name, *flags, stdin=DEEPSPEED).out)
        for name in ("-", "ds.json")
    )
    assert piped == read
    job = run("plan", *flags).out
    assert (
        refused(run("plan", "--config", "-", "--job", "-", stdin=job))
        == "error: --config: - is standard input, which --job reads already"
    )


def test_what_a_configuration_says_lives_with_the_job() -> None:
    first = run("plan", "--config", "ds.json", "--model", "gpt2", "--gpus", "8", "--json").out
    assert (
        "unknown keys of the DeepSpeed configuration, passed over: foo"
        in json.loads(first)["notes"]
    )
    assert run("plan", "--job", "-", "--json", stdin=first).out == first
    assert run("plan", "--job", "-", "--config", "ds.json", "--json", stdin=first).out == first


def test_a_framework_over_a_configuration_of_another_is_said() -> None:
    notes = json.loads(
        run_line("plan --config ds.json --model gpt2 --gpus 8 --framework fsdp2 --json").out
    )["notes"]
    assert "ds.json is for deepspeed; --framework fsdp2 is what is counted" in notes
    assert not any(
        "what is counted" in note
        for note in json.loads(run_line("plan --config ds.json --model gpt2 --gpus 8 --json").out)[
            "notes"
        ]
    )


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2", "torchtitan", "megatron"])
def test_another_framework_over_a_saved_job_is_that_framework(framework: str) -> None:
    flags = ("--model", "gpt2", "--gpus", "8", "--gpu", "h100-80g", "--seq", "512")
    saved = run("plan", *flags, "--json").out
    assert (
        run("plan", "--job", "-", "--framework", framework, "--json", stdin=saved).out
        == run("plan", *flags, "--framework", framework, "--json").out
    )


@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "fsdp2", "torchtitan"])
def test_a_saved_job_that_names_no_framework_is_exported_as_the_tools(target: str) -> None:
    flags = ("--model", "gpt2", "--gpus", "8", "--seq", "512")
    saved = run("plan", *flags, "--json").out
    piped = run("export", "--to", target, "--job", "-", "--stage", "2", stdin=saved)
    assert (piped.out, piped.err) == (
        (direct := run("export", "--to", target, *flags, "--stage", "2")).out,
        direct.err,
    )
    kept = run("plan", *flags, "--reduce-dtype", "fp32", "--json").out
    told = run("export", "--to", target, "--job", "-", "--stage", "2", stdin=kept).err
    assert not any(
        "counted with" in line and "--reduce-dtype" in line for line in told.splitlines()
    )
