"""Flags over a saved answer give what the same flags give in the first place; what contradicts is
refused in one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import zerocalc as zc
from tests.running import Ran, refused, run, run_line
from zerocalc.spec.dimensions import DIMENSIONS, only_given

FLAGS: dict[str, list[str]] = {
    "--kind": ["gpt2", "llama"],
    "--layers": ["4", "6", "12"],
    "--hidden": ["256", "768", "1024"],
    "--heads": ["4", "8", "12"],
    "--kv-heads": ["2", "4"],
    "--head-dim": ["32", "64"],
    "--ffn": ["1000", "4096"],
    "--vocab": ["1000", "32000"],
    "--positions": ["4096"],
    "--tied-embeddings": [""],
    "--no-tied-embeddings": [""],
    "--seq": ["512", "2048", "4096"],
    "--micro-batch": ["2"],
    "--recompute": ["full"],
    "--tp": ["2", "4"],
    "--pp": ["2"],
    "--cp": ["2"],
    "--gpu": ["h100-80g", "a100-40g"],
    "--gpu-memory": ["30GiB"],
    "--stage": ["1", "2,3"],
    "--recipe": ["megatron"],
    "--trainable": ["1000000"],
}
START: list[dict[str, str]] = [
    {"--model": "gpt2"},
    {"--model": "llama-3-8b"},
    {"--model": "qwen2.5-0.5b"},
    {"--layers": "4", "--hidden": "256", "--heads": "4"},
    {"--kind": "llama", "--layers": "4", "--hidden": "256", "--heads": "4"},
]


def chosen() -> st.SearchStrategy[dict[str, str]]:
    names = st.lists(st.sampled_from(sorted(FLAGS)), max_size=4, unique=True)
    return names.flatmap(
        lambda drawn: st.fixed_dictionaries({name: st.sampled_from(FLAGS[name]) for name in drawn})
    )


def spelled(flags: dict[str, str]) -> list[str]:
    return [word for name, value in flags.items() for word in (name, value) if word]


def layered(first: dict[str, str], second: dict[str, str]) -> tuple[Ran, Ran, Ran]:
    """The answer to some flags, the one to more of them over its JSON, and the one to all of them
    at once.
    """
    saved = run("plan", *spelled(first), "--json")
    opposite = {
        "--tied-embeddings": "--no-tied-embeddings",
        "--no-tied-embeddings": "--tied-embeddings",
    }
    overruled = {opposite[name] for name in second if name in opposite}
    together = {name: value for name, value in first.items() if name not in overruled} | second
    return (
        saved,
        run("plan", "--job", "-", *spelled(second), "--json", stdin=saved.out),
        run("plan", *spelled(together), "--json"),
    )


@settings(max_examples=60)
@given(st.sampled_from(START), chosen(), chosen())
def test_flags_over_an_answer_are_flags_in_the_first_place(
    start: dict[str, str], first: dict[str, str], second: dict[str, str]
) -> None:
    both = {"--tied-embeddings", "--no-tied-embeddings"}
    assume(not both <= set(first) and not both <= set(second))
    # A preset's dropout and positions, and positions that were given, are gone once its kind has
    # been changed, and do not come back with it.
    assume("--kind" not in second or not {"--kind", "--positions"} & set(first))
    saved, over, once = layered({"--gpus": "16", **start, **first}, second)
    assume(saved.status == 0)
    assert over.status == once.status
    assert over.out == once.out


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--model llama-3-8b", "--hidden 2048"),
        ("--model llama-3-8b", "--layers 16"),
        ("--model llama-3-8b --layers 16", "--layers 32"),
        ("--model llama-3-8b --layers 16", "--hidden 2048"),
        ("--model llama-2-7b", "--heads 64"),
        ("--model gpt2", "--kind llama"),
        ("--model gpt2", "--hidden 1536"),
        ("--model llama-2-7b", "--kind gpt2"),
        ("--layers 12 --hidden 768 --heads 12", "--hidden 1536"),
        ("--layers 12 --hidden 768 --heads 12", "--kind llama"),
        ("--layers 12 --hidden 768 --heads 12", "--seq 2048"),
        ("--layers 12 --hidden 768 --heads 12 --seq 2048", "--seq 512"),
        ("--layers 12 --hidden 768 --heads 12 --seq 2048", "--positions 4096"),
        ("--layers 12 --hidden 768 --heads 12 --ffn 1000", "--hidden 1536"),
        ("--params 1B --node dgx-a100", "--node dgx-2"),
        ("--params 1B --gpu a100-40g", "--gpu h100-80g"),
        ("--params 1B", "--no-defragment --fragmentation 0.2"),
    ],
)
def test_layers_of_flags(first: str, second: str) -> None:
    def flags(line: str) -> dict[str, str]:
        words = line.split()
        return {
            w: "" if i + 1 == len(words) or words[i + 1].startswith("--") else words[i + 1]
            for i, w in enumerate(words)
            if w.startswith("--")
        }

    saved, over, once = layered({"--gpus": "16", **flags(first)}, flags(second))
    assert (saved.err, once.status, once.err) == ("", 0, "")
    assert over == once


def test_a_dimension_that_a_preset_states_stays() -> None:
    """Llama 3 8B's MLP is 14,336 wide whatever its hidden size; its heads are as wide as they come
    out.
    """
    job = json.loads(run_line("plan --model llama-3-8b --gpus 8 --hidden 2048 --json").out)["job"][
        "model"
    ]
    assert (job["ffn"], job["head_dim"], job["kv_heads"]) == (14336, 64, 8)
    assert job["title"] == "Llama 3 8B with hidden 2048"
    wide = json.loads(run_line("plan --layers 2 --hidden 512 --heads 8 --gpus 8 --json").out)[
        "job"
    ]["model"]
    assert (
        {"kind", "kv_heads", "head_dim", "ffn", "vocab", "positions", "dropout"}
        <= set(wide["filled"])
        <= set(DIMENSIONS)
    )


def test_what_was_filled_in_is_left_out_with_its_words() -> None:
    given_by_hand = {"layers": 2, "hidden": 512, "heads": 8}
    dumped = zc.Model.model_validate(
        {**given_by_hand, "assumed": ("a word of a file",)}
    ).model_dump(mode="json")
    bare = {key: value for key, value in only_given(dumped).items() if value not in (None, [])}
    assert bare == {**given_by_hand, "assumed": ["a word of a file"]}
    assert zc.Model.model_validate(dumped) == zc.Model.model_validate(bare)


def test_filled_in_positions_follow_the_sequence_in_python_too() -> None:
    job = zc.Job.model_validate(
        {"model": {"layers": 2, "hidden": 64, "heads": 2}, "cluster": {"gpus": 1}}
    )
    dump, longer = job.model_dump(mode="json"), zc.Training.model_validate({"seq": 4096})
    for model in (job.model, dump["model"]):
        again = zc.Job.model_validate({**dump, "model": model, "training": longer}).model
        assert (again.positions, "positions" in again.filled) == (4096, True)
        first = zc.Job.model_validate(
            {**dump, "model": {"layers": 2, "hidden": 64, "heads": 2}, "training": longer}
        ).model
        assert sorted(again.assumed) == sorted(first.assumed)
        assert zc.Job.model_validate({**dump, "model": again}).model.positions == 1024
    stated = {
        **dump["model"],
        "positions": 512,
        "filled": [name for name in dump["model"]["filled"] if name != "positions"],
    }
    with pytest.raises(ValueError, match="more than the model's 512 learned positions"):
        zc.Job.model_validate({**dump, "model": stated, "training": longer})


def test_kinds_have_dropout_and_positions_of_their_own() -> None:
    llama = json.loads(run_line("plan --model gpt2 --kind llama --gpus 8 --json").out)["job"][
        "model"
    ]
    assert (llama["kind"], llama["dropout"], llama["positions"], llama["vocab"]) == (
        "llama",
        0.0,
        None,
        50257,
    )
    assert refused(
        run_line("plan --kind llama --layers 2 --hidden 64 --heads 2 --gpus 1 --positions 4096")
    ).startswith("error: --positions: ")
    assert refused(run_line("plan --model llama-3-8b --gpus 8 --positions 4096")).startswith(
        "error: --positions: "
    )


def test_another_framework_brings_its_own_recipe(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\nlike = "paper"\nsource = "us, for a test"\nrecipe = "megatron"\n'
        'implementation = "megatron"\nunits_in_flight = 1\n'
    )
    saved = run_line("plan --params 1B --gpus 8 --json").out
    changed = json.loads(
        run("plan", "--job", "-", "--framework", str(file), "--json", stdin=saved).out
    )
    assert (
        changed["job"]["recipe"]["name"] == changed["job"]["implementation"]["name"] == "megatron"
    )
    assert changed["job"]["loss"]["name"] == "in-place"
    chosen_recipe = run_line("plan --params 1B --gpus 8 --recipe lion --json").out
    kept = json.loads(
        run("plan", "--job", "-", "--framework", str(file), "--json", stdin=chosen_recipe).out
    )
    assert kept["job"]["recipe"]["name"] == "lion"


def test_other_gpus_over_a_job_with_a_node() -> None:
    saved = run_line("plan --params 1B --gpus 72 --node gb200-nvl72 --json").out

    def cluster(*flags: str) -> Any:
        return json.loads(run("plan", "--job", "-", *flags, "--json", stdin=saved).out)["job"][
            "cluster"
        ]

    assert cluster("--gpu", "gb200", "--gpus-per-node", "72") == json.loads(saved)["job"]["cluster"]
    other = cluster("--gpu", "h200")
    assert (other["node"], other["gpus_per_node"], other["gpu"]["title"][:11]) == (
        None,
        72,
        "NVIDIA H200",
    )
    assert "--gpu: the job's node" in " ".join(
        run("plan", "--job", "-", "--gpu", "h200", stdin=saved).out.split()
    )
    fewer = cluster("--gpus-per-node", "4")
    assert (fewer["node"], fewer["gpus_per_node"], fewer["gpu"]["title"]) == (
        None,
        4,
        json.loads(saved)["job"]["cluster"]["gpu"]["title"],
    )


CONTRADICTIONS = [
    ("plan --params 1B --gpus 8 --node dgx-a100 --gpu h200", "--gpu: NVIDIA H200"),
    ("plan --params 1B --gpus 8 --node dgx-a100 --gpus-per-node 4", "--gpus-per-node: 4"),
    ("plan --params 1B --gpus 8 --gpu h100-80g --gpu-memory 90GiB", "--gpu-memory: 90.00 GiB"),
    ("plan --params 1B --gpus 8 --gpu-memory 80B", "--gpu-memory: '80B' is less than 1 MB"),
    (
        "plan --params 1B --gpus 8 --buffers fused --reduce-bucket-size 1M",
        "--reduce-bucket-size: 1,000,000",
    ),
    (
        "plan --params 1B --gpus 8 --buffers fused --allgather-bucket-size 1M",
        "--allgather-bucket-size: 1,000,000",
    ),
    ("plan --params 1__0 --gpus 8", "--params: '1__0'"),
    ("plan --params 1B --gpus 1__0", "--gpus: '1__0'"),
    ("plan --params 1B --gpus 8_", "--gpus: '8_'"),
]


@pytest.mark.parametrize(
    ("line", "start"), CONTRADICTIONS, ids=[line for line, _ in CONTRADICTIONS]
)
def test_contradictions_are_refused(line: str, start: str) -> None:
    assert refused(run_line(line)).startswith(f"error: {start}")


def test_fragmentation_and_defragment_in_different_layers() -> None:
    on = run_line("plan --params 1B --gpus 8 --json").out
    assert refused(run("plan", "--job", "-", "--fragmentation", "0.2", stdin=on)).startswith(
        "error: --fragmentation: 0.2 contradicts defragment"
    )
    off = run_line("plan --params 1B --gpus 8 --no-defragment --fragmentation 0.2 --json").out
    assert refused(run("plan", "--job", "-", "--defragment", stdin=off)).startswith(
        "error: zero.fragmentation: 0.2 contradicts defragment"
    )


@pytest.mark.parametrize(
    ("cluster", "path"),
    [
        ({"gpu_memory": 80}, "cluster.gpu_memory"),
        ({"gpu_memory": 80.5}, "cluster.gpu_memory"),
        ({"gpu": {"title": "x", "source": "y", "usable_bytes": 47}}, "cluster.gpu.usable_bytes"),
        (
            {"gpu": {"title": "x", "source": "y", "runtime_bytes": 0.47}},
            "cluster.gpu.runtime_bytes",
        ),
        (
            {"gpu": {"title": "x", "source": "y", "pcie_bytes_per_second": 63}},
            "cluster.gpu.pcie_bytes_per_second",
        ),
        (
            {"gpu": {"title": "x", "source": "y", "bf16_dense_flops_per_second": 989}},
            "cluster.gpu.bf16_dense_flops_per_second",
        ),
    ],
)
def test_a_number_that_has_lost_its_unit(cluster: dict[str, Any], path: str) -> None:
    job = json.dumps({"model": {"params": "1B"}, "cluster": {"gpus": 8, **cluster}})
    line = refused(run("plan", "--job", "-", stdin=job))
    assert line.startswith(f"error: {path}: ")
    assert "is less than 1 M" in line
    assert "wanted: " in line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "--params 1B --seq 4096 --recompute full --micro-batch 4",
            "--seq 4096, --micro-batch 4, --recompute full",
        ),
        (
            "--params 1B --tp 2 --sequence-parallel --attention eager",
            "--attention eager, --sequence-parallel",
        ),
        ("--model gpt2 --micro-batch 2", "--micro-batch 2"),
    ],
)
def test_what_has_no_effect_is_noted(line: str, words: str) -> None:
    notes = json.loads(run_line(f"plan --gpus 8 {line} --json").out)["notes"]
    assert f"no effect while activations are unknown: {words}" in notes
    assert not any(
        "without effect" in note
        for note in json.loads(
            run_line("plan --model gpt2 --gpus 8 --seq 512 --micro-batch 2 --json").out
        )["notes"]
    )


def test_a_node_object_says_how_many_gpus_it_has() -> None:
    node = zc.Cluster.model_validate({"gpus": 16, "node": "dgx-2"}).node
    cluster = zc.Cluster.model_validate({"gpus": 16, "node": node})
    assert (cluster.gpus_per_node, cluster.gpu.title if cluster.gpu else "") == (
        16,
        "NVIDIA V100 SXM 32 GB",
    )


@pytest.mark.parametrize("field", ["assumed", "filled"])
@pytest.mark.parametrize("value", [3, "text", {"a": 1}, None, [1]])
def test_kept_words_that_are_none(field: str, value: object) -> None:
    job = {
        "model": {"layers": 2, "hidden": 64, "heads": 2, field: value},
        "cluster": {"gpus": 1},
        "training": {"seq": 4096},
    }
    for flags in ([], ["--layers", "3"]):
        assert refused(run("plan", "--job", "-", *flags, stdin=json.dumps(job))).startswith(
            f"error: model.{field}"
        )
