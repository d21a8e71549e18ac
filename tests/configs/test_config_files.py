"""Configurations as files: flags over them, jobs below, how they are told apart; whatever else they
hold, one line or an answer.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.configs.asking import BASE, ON_8, Table, job, line, written, zero
from tests.configs.test_accelerate import ACCELERATE, fsdp
from tests.configs.test_deepspeed import DEEPSPEED
from tests.configs.test_torchtitan import TORCHTITAN
from tests.running import refused, run


def test_flags_lie_over_a_configuration_and_that_over_a_job() -> None:
    Path("job.json").write_text(
        json.dumps(
            {
                "model": "gpt2",
                "cluster": {"gpus": 4},
                "zero": {"stage": [1], "sub_group_size": 5},
                "training": {"seq": 64},
            }
        )
    )
    found = job(zero(2, overlap_comm=True), "--no-overlap-comm", base=("plan", "--job", "job.json"))
    assert found["zero"]["stage"] == [2]
    assert found["zero"]["overlap_comm"] is False
    assert found["zero"]["sub_group_size"] == 5
    assert found["training"]["seq"] == 64


def test_batch_sizes_of_flags_count_as_the_files() -> None:
    assert (
        job({**zero(), "train_batch_size": 64}, "--micro-batch", "2")["training"]["accumulation"]
        == 4
    )
    refusal = line(
        {**zero(), "train_batch_size": 64, "gradient_accumulation_steps": 1}, "--micro-batch", "2"
    )
    assert "64 is not micro-batch 2 × accumulation 1 × data-parallel 8 = 16" in refusal


def test_another_frameworks_flag_blames_the_key() -> None:
    refusal = line(zero(sub_group_size=5), "--framework", "fsdp2")
    assert refusal.startswith("error: zero_optimization.sub_group_size: not supported by fsdp2")


def test_a_wrong_flag_is_still_blamed() -> None:
    assert line(zero(), "--sub-group-size", "x").startswith("error: --sub-group-size: ")


@pytest.mark.parametrize("name", ["config", "config.YAML", "config.yml"])
def test_yaml_is_known_by_its_ending_or_its_content(name: str) -> None:
    assert job(fsdp(), name=name, base=BASE)["framework"]["name"] == "fsdp1"


def test_json_is_yaml_too() -> None:
    assert (
        job(
            {"distributed_type": "MULTI_GPU", "num_processes": 4}, name="accelerate.json", base=BASE
        )["framework"]["name"]
        == "torch-ddp"
    )


@pytest.mark.parametrize(
    ("content", "name", "wanted"),
    [
        (
            {"model": {"params": 5}, "cluster": {"gpus": 3}},
            "x.json",
            "x.json describes a job; --job reads it",
        ),
        ({"model_type": "llama"}, "x.json", "x.json is a Hugging Face config; --model reads it"),
        ({"learning_rate": 5}, "x.json", "x.json has no key by which"),
        ("", "x.yaml", "x.yaml holds no table"),
        ("- 1", "x.yaml", "x.yaml holds no table"),
        ("a: &x 1\nb: *x", "x.yaml", "x.yaml is not valid YAML: aliases"),
        ("a: 1\na: 2", "x.yaml", "x.yaml is not valid YAML: a key stands twice"),
        ("1: 2", "x.yaml", "x.yaml is not valid YAML: a key is no text"),
        ("a: [1", "x.yaml", "x.yaml is not valid YAML: "),
        ("a: " + "[" * 5000, "x.yaml", "x.yaml is not valid YAML: "),
        ("a: " + "9" * 5000, "x.yaml", "x.yaml is not valid YAML: "),
        ("a: !!python/object:os.system x", "x.yaml", "x.yaml is not valid YAML: "),
        ('{"a": 1', "x.json", "x.json is not valid JSON"),
        ("[a", "x.toml", "x.toml is not valid TOML"),
    ],
)
def test_what_is_no_configuration(content: Table | str, name: str, wanted: str) -> None:
    assert line(content, name=name).startswith(f"error: --config: {wanted}")


def test_a_file_that_is_not_there() -> None:
    assert (
        refused(run(*ON_8, "--config", "nothing.json"))
        == "error: --config: nothing.json: no such file or directory"
    )
    assert refused(run(*ON_8, "--config", "")).startswith("error: --config: '' is no file")


SEEDS = (
    [json.dumps(config) for config, *_ in DEEPSPEED[10:]]
    + [config for config, *_ in ACCELERATE]
    + [config for config, *_ in TORCHTITAN]
)
VALUES = [
    "auto",
    -1,
    0,
    1.5,
    10**30,
    True,
    None,
    "",
    "no",
    [],
    {},
    [1],
    {"enabled": 1},
    {"device": []},
    "\x1b[2J",
]


def answered(text: str, name: str) -> None:
    ran = run(*ON_8, "--config", written(text, name), "--micro-batch", "1", "--json")
    if ran.status:
        refused(ran)


@given(st.data())
def test_a_broken_file_is_an_answer_or_one_line(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.sampled_from(["truncate", "insert", "delete"]))
    rest = (
        ""
        if cut == "truncate"
        else data.draw(st.text(max_size=3)) + text[at:]
        if cut == "insert"
        else text[at + 3 :]
    )
    answered(
        text[:at].encode("utf-8", "ignore").decode() + rest.encode("utf-8", "ignore").decode(),
        data.draw(st.sampled_from(["x", "x.json", "x.yaml", "x.toml"])),
    )


def paths(table: Table, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [(*prefix, key) for key in table]
    return found + [
        path
        for key, inner in table.items()
        if isinstance(inner, dict)
        for path in paths(inner, (*prefix, key))
    ]


@given(st.data())
def test_a_file_of_wrong_values_is_an_answer_or_one_line(data: st.DataObject) -> None:
    import tomllib

    import yaml

    text = data.draw(st.sampled_from(SEEDS))
    table = (
        json.loads(text)
        if text.startswith("{")
        else tomllib.loads(text)
        if "[training]" in text
        else yaml.safe_load(text)
    )
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(paths(table) or [("zero_optimization",)]))
        inner = table
        for parent in parents:
            inner = inner[parent]
        inner[last] = copy.deepcopy(data.draw(st.sampled_from(VALUES)))
    answered(json.dumps(table), "x.json")
