"""Exports: what is written, read again, gives the same estimate; what a tool cannot express is
refused or told.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run
from tests.strategies import FEW, architectures, bare_models
from zerocalc.answers.document import plain
from zerocalc.cli.jobs import plan_and_notes
from zerocalc.configs import export as targets
from zerocalc.configs.deepspeed_keys import ADDED_UP_IN, KNOBS, options
from zerocalc.estimator import estimate
from zerocalc.spec.job import Job
from zerocalc.spec.offload import NOT_KNOWN_WITH

Table = dict[str, Any]
RECIPES = {
    "deepspeed": (
        "mixed-adam",
        "fp32-adam",
        "lion",
        "muon",
        "sgd",
        "sgd-momentum",
        "mixed-adam-fp32-grad",
        "megatron",
    )[: -2 if ADDED_UP_IN in options() else None],
    "fsdp": ("fsdp-mixed", "fp32-adam"),
    "torchtitan": ("fsdp-mixed", "fp32-adam", "pure-bf16-adam"),
}
KEPT_IN_FP32 = ("mixed-adam-fp32-grad", "megatron")
"""Recipes with 16-bit weights that DeepSpeed needs ZeRO for."""
STAGES = {
    "deepspeed": (0, 1, 2, 3),
    "fsdp1": (0, 2, 3),
    "fsdp2": (2, 3),
    "torchtitan": (2, 3),
    "torch-ddp": (0,),
}


@st.composite
def offloads(draw: st.DrawFn, framework: str, stage: int, zero: Table) -> Table:
    """What a framework can keep in host memory at a stage, half of the time."""
    if draw(st.booleans()) or any(zero.get(name) for name in NOT_KNOWN_WITH):
        return {}
    if framework in ("fsdp1", "fsdp2", "torchtitan") and stage:
        return {"offload_optimizer": "cpu", "offload_params": "cpu"}
    if framework != "deepspeed" or not stage:
        return {}
    return {
        "offload_optimizer": "cpu",
        **({"offload_params": draw(st.sampled_from(["none", "cpu"]))} if stage == 3 else {}),
    }


@st.composite
def written_jobs(draw: st.DrawFn, framework: str, target: str) -> tuple[Table, int]:
    """A job that a target can express, and a stage."""
    model = draw(st.one_of(architectures(frozen=False), bare_models()))
    bare = "params" in model
    stage = draw(st.sampled_from(STAGES[framework]))
    tp = (
        draw(st.sampled_from([1, 2]))
        if target != "accelerate" or framework in ("fsdp2", "deepspeed")
        else 1
    )
    tp = tp if bare or model["heads"] % tp == 0 else 1
    cp = draw(st.sampled_from([1, 2])) if framework not in ("fsdp1", "torch-ddp") else 1
    pp = (
        draw(st.integers(1, min(2, model.get("layers", 2))))
        if target != "accelerate" and (framework != "deepspeed" or stage < 2)
        else 1
    )
    dp = draw(st.integers(1, 12))
    per_node = draw(st.sampled_from([4, 8]))
    training: Table = {
        "micro_batch": draw(st.integers(1, 4)),
        "accumulation": draw(st.sampled_from([1, 2, 5])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "attention": draw(st.sampled_from(["flash", "eager"])),
    }
    if target == "torchtitan" or cp > 1 or draw(st.booleans()):
        training["seq"] = cp * tp * draw(st.integers(8, 512))
    zero: Table = {"stage": [stage]}
    if framework == "deepspeed":
        zero["reduce_dtype"] = draw(st.sampled_from([None, "fp32", "bf16"]))
        zero["overlap_comm"] = draw(st.sampled_from([None, False, True]))
    if framework == "deepspeed" and stage:
        zero |= {"reduce_bucket_size": draw(st.sampled_from([10**4, 10**6, 5 * 10**8]))}
        zero |= {
            "sub_group_size": draw(st.sampled_from([10**5, 10**9])),
            "persistence_threshold": draw(st.sampled_from([0, 10**5])),
        }
        zero |= {
            "max_live_parameters": draw(st.sampled_from([10**5, 10**9])),
            "max_reuse_distance": draw(st.sampled_from([10**5, 10**9])),
        }
        switches = [
            knob
            for knob in KNOBS.values()
            if knob.field in options() and isinstance(knob.default, bool) and stage in knob.stages
        ]
        zero |= {knob.field: knob.ours(draw(st.booleans())) for knob in switches}
        if dp * cp % per_node or tp * pp * cp > 1:
            zero.pop("quantised_gradients", None)  # refused: whole nodes reduce so
        zero |= (
            {"secondary_group": 2}
            if stage == 3 and dp * cp % 2 == 0 and draw(st.booleans())
            else {}
        )
    zero |= draw(offloads(framework, stage, zero))
    recipe = draw(
        st.sampled_from(
            [
                name
                for name in RECIPES.get(framework, RECIPES["fsdp"])
                if stage or name not in KEPT_IN_FP32
            ]
        )
    )
    if framework == "deepspeed" and stage and recipe == "fp32-adam":
        recipe = "fp32-adam-master"  # its optimizer has a copy of its own
    if (
        framework == "deepspeed"
        and stage
        and recipe != "fp32-adam-master"
        and ADDED_UP_IN in options()
    ):
        zero[ADDED_UP_IN] = draw(
            st.sampled_from([None] if "offload_optimizer" in zero else [None, "fp32"])
        )
    if framework == "torch-ddp":
        recipe = draw(st.sampled_from(["autocast", "fp32-adam"]))
    elif target == "accelerate" and framework != "deepspeed":
        zero["reduce_dtype"] = "fp32" if recipe == "fp32-adam" else "bf16"
    elif target == "torchtitan":
        zero["reduce_dtype"] = "fp32"
    if framework in ("fsdp2", "torchtitan") and dp % 4 == 0:
        zero["shard_group"] = draw(st.sampled_from([None, dp * cp // 2]))
    return {
        "model": model,
        "cluster": {"gpus": dp * tp * cp * pp, "gpus_per_node": per_node},
        "framework": framework,
        "recipe": recipe,
        "training": training,
        "parallel": {
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "sequence_parallel": target == "torchtitan" and tp > 1,
        },
        "zero": zero,
    }, stage


def beside(table: Table, target: str) -> Table:
    """What of a job the target's configuration does not hold, and flags say."""
    training = {
        key: table["training"][key] for key in ("seq", "attention") if key in table["training"]
    }
    if target == "accelerate":
        training |= {key: table["training"][key] for key in ("micro_batch", "accumulation")}
    if target == "deepspeed" or table["framework"] in ("deepspeed", "torch-ddp"):
        training["recompute"] = table["training"]["recompute"]
    parallel = {"pp": table["parallel"]["pp"]} if target == "deepspeed" else {}
    return {
        "model": table["model"],
        "cluster": table["cluster"],
        "training": training,
        "parallel": parallel,
    }


PAIRS = [
    (target, framework)
    for target in ("deepspeed", "accelerate", "torchtitan")
    for framework in targets.frameworks(target)
]


@pytest.mark.parametrize(("target", "framework"), PAIRS)
@FEW
@given(data=st.data())
def test_what_is_written_and_read_gives_the_same_estimate(
    tmp_path_factory: pytest.TempPathFactory, target: str, framework: str, data: st.DataObject
) -> None:
    table, stage = data.draw(written_jobs(framework, target))
    job = Job.model_validate(table)
    folder = tmp_path_factory.getbasetemp()
    text = targets.write(target, job, stage).text
    (folder / "config").write_text(text)
    (folder / "job.json").write_text(json.dumps(beside(table, target)))
    if "deepspeed_config_file" in text:
        (folder / "deepspeed.json").write_text(targets.write("deepspeed", job, stage).text)
    answer, _ = plan_and_notes({"config": str(folder / "config")}, str(folder / "job.json"))
    assert [candidate.stage for candidate in answer.candidates] == [stage]
    assert plain(answer.candidates[0]) == plain(estimate(job, stage))


def test_deepspeeds_own_class_takes_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    config = pytest.importorskip("deepspeed.runtime.config")
    flags = (
        "--params",
        "1B",
        "--gpus",
        "1",
        "--accumulation",
        "3",
        "--reduce-bucket-size",
        "1M",
        "--sub-group-size",
        "2M",
    )
    for stage in range(4):
        text = run("export", "--to", "deepspeed", *flags, "--stage", str(stage)).out
        read = config.DeepSpeedConfig(json.loads(text))
        assert read.zero_config.stage == stage
        assert read.zero_config.reduce_bucket_size == (10**6 if stage else 5 * 10**8)
        assert read.gradient_accumulation_steps == 3
        assert read.bfloat16_config.enabled
    for more in (
        "--offload-optimizer cpu",
        "--offload-optimizer nvme --offload-params nvme --nvme-capacity 1TB",
        "--recompute full",
    ):
        text = run("export", "--to", "deepspeed", *flags, "--stage", "3", *more.split()).out
        assert config.DeepSpeedConfig(json.loads(text)).zero_config.stage == 3


def test_accelerates_own_class_takes_what_is_written(tmp_path: Path) -> None:
    classes = pytest.importorskip("accelerate.commands.config.config_args")
    for flags in (
        "--stage 3",
        "--stage 2 --framework fsdp1 --reduce-dtype bf16",
        "--stage 1 --framework deepspeed",
        "--stage 0 --framework torch-ddp",
    ):
        written = tmp_path / "accelerate.yaml"
        written.write_text(
            run(
                "export", "--to", "accelerate", "--params", "1B", "--gpus", "16", *flags.split()
            ).out
        )
        read = classes.ClusterConfig.from_yaml_file(str(written))
        assert (read.num_processes, read.num_machines) == (16, 2)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--recompute full",
        "--recipe fp32-adam",
        "--recipe pure-bf16-adam",
        "--tp 2 --shard-group 2",
        "--defer-grad-sync",
    ],
)
def test_python_is_python(flags: str) -> None:
    ran = run(
        "export", "--to", "fsdp2", "--model", "gpt2", "--gpus", "8", "--stage", "3", *flags.split()
    )
    assert ran.status == 0, ran.err
    ast.parse(ran.out)


ON_8 = ("--model", "llama-3-8b", "--gpus", "8")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "--to fsdp",
            "--to: 'fsdp' is not one of deepspeed, accelerate, fsdp2, torchtitan, "
            "megatron; nearest: fsdp2",
        ),
        (
            "--to deepspeed",
            "--stage: pass one of 0, 1, 2, 3; none is recommended: cannot judge the fit: pass "
            "--gpu or --gpu-memory",
        ),
        (
            "--to deepspeed --gpu-memory 1GiB",
            "--stage: pass one of 0, 1, 2, 3; none is recommended: nothing fits",
        ),
        (
            "--to deepspeed --framework paper --stage 1",
            "--framework: paper is not what deepspeed runs; --framework deepspeed counts "
            "as it does",
        ),
        (
            "--to deepspeed --stage 3 --pp 2",
            "--pp: 2: DeepSpeed's pipelines run at ZeRO stages 0 and 1 only",
        ),
        ("--to deepspeed --stage 1 --tp 2 --sequence-parallel", "--sequence-parallel: "),
        (
            "--to deepspeed --stage 1 --recipe autocast",
            "--recipe: autocast is none that DeepSpeed's configuration stands for",
        ),
        (
            "--to deepspeed --stage 0 --recipe megatron",
            "--recipe: megatron keeps gradients in fp32",
        ),
        (
            "--to accelerate --stage 3 --reduce-dtype fp32",
            "--reduce-dtype: fp32: accelerate sends gradients in mixed_precision's dtype",
        ),
        ("--to accelerate --stage 3 --defer-grad-sync", "--defer-grad-sync: "),
        (
            "--to accelerate --stage 3 --recipe mixed-adam",
            "--recipe: mixed-adam is none that mixed_precision stands for",
        ),
        (
            "--to accelerate --framework fsdp1 --stage 3 --reduce-dtype bf16 --tp 2",
            "--tp: needs FSDP2 under accelerate",
        ),
        (
            "--to accelerate --framework fsdp1 --stage 3 --reduce-dtype bf16 --shard-group 2",
            "--shard-group: 2: FSDP1 under accelerate",
        ),
        ("--to accelerate --stage 3 --tp 2 --sequence-parallel", "--sequence-parallel: "),
        ("--to torchtitan --stage 3", "--seq: is missing"),
        (
            "--to torchtitan --stage 3 --seq 64 --tp 2",
            "--tp: 2: torchtitan's tensor parallelism splits sequences too",
        ),
        (
            "--to torchtitan --stage 3 --seq 64 --recipe pure-bf16-adam",
            "--reduce-dtype: bf16: torchtitan sends gradients in fp32",
        ),
        (
            "--to torchtitan --stage 3 --seq 64 --shard-group 1",
            "--shard-group: 1: copies without shards",
        ),
        ("--to torchtitan --stage 3 --seq 64 --recompute selective", "--recompute: selective: "),
        (
            "--to torchtitan --stage 3 --seq 64 --recipe mixed-adam --reduce-dtype fp32",
            "--recipe: mixed-adam is none",
        ),
        ("--to megatron --stage 1 --recompute operators", "--recompute: operators: "),
        (
            "--to megatron --stage 1 --reduce-dtype bf16",
            "--reduce-dtype: bf16: Megatron-LM sends gradients as it keeps them, in fp32",
        ),
        ("--to megatron --stage 1 --attention math", "--attention: math: "),
        ("--to fsdp2 --stage 3 --recipe lion", "--recipe: lion is none"),
    ],
)
def test_what_a_tool_cannot_express_is_refused(line: str, wanted: str) -> None:
    assert refused(run("export", *ON_8, *line.split())).startswith(f"error: {wanted}")


def test_the_recommended_stage_is_written() -> None:
    ran = run("export", "--to", "deepspeed", *ON_8, "--gpu", "h100-80g", "--seq", "2048")
    best = json.loads(
        run(
            "plan",
            *ON_8,
            "--gpu",
            "h100-80g",
            "--seq",
            "2048",
            "--framework",
            "deepspeed",
            "--json",
        ).out
    )["recommended"]["name"]
    assert json.loads(ran.out)["zero_optimization"]["stage"] == int(best[-1])
    assert "note: counted with --framework deepspeed\n" in ran.err


def test_what_is_not_in_it_is_told() -> None:
    ran = run(
        "export",
        "--to",
        "deepspeed",
        *ON_8,
        "--stage",
        "2",
        "--recompute",
        "full",
        "--lora-rank",
        "8",
        "--json",
    )
    answer = json.loads(ran.out)
    assert (answer["to"], answer["name"], ran.err) == ("deepspeed", "zero-2", "")
    assert json.loads(answer["text"])["zero_optimization"]["stage"] == 2
    assert answer["not_in_it"] == [
        "the model is the script's: Llama 3 8B",
        "recomputation is the model's to switch on: full",
        "adapters are the model's (PEFT): rank 8",
    ]


def test_one_tools_configuration_becomes_anothers(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text(
        json.dumps(
            {
                "zero_optimization": {"stage": 3},
                "bf16": {"enabled": True},
                "train_micro_batch_size_per_gpu": 4,
            }
        )
    )
    flags = ("--framework", "torchtitan", "--recipe", "fsdp-mixed")
    ran = run("export", "--to", "torchtitan", *ON_8, "--seq", "64", "--config", str(config), *flags)
    assert ran.status == 0, ran.err
    assert 'fsdp_reshard_after_forward = "default"' in ran.out
    assert "local_batch_size = 4" in ran.out


@pytest.mark.parametrize(
    ("target", "stage", "flags"),
    [
        ("deepspeed", 1, ()),
        ("deepspeed", 2, ()),
        ("torchtitan", 3, ()),
        ("torchtitan", 2, ("--tp", "2", "--sequence-parallel")),
    ],
)
@pytest.mark.parametrize("etp", ["1", "2"])
def test_experts_on_ranks_of_their_own_are_written_and_read(
    tmp_path: Path, target: str, stage: int, flags: tuple[str, ...], etp: str
) -> None:
    base = ("--model", "mixtral-8x7b", "--gpus", "32", "--seq", "2048")
    split = ("--ep", "4", "--etp", etp if flags else "1")
    exported = run("export", "--to", target, *base, "--stage", str(stage), *flags, *split)
    assert exported.status == 0, exported.err
    (tmp_path / "configuration").write_text(exported.out, "utf-8")
    asked = json.loads(
        run(
            "plan", *base, "--framework", target, "--stage", str(stage), *flags, *split, "--json"
        ).out
    )["candidates"][0]
    read = json.loads(
        run("plan", "--config", str(tmp_path / "configuration"), *base, "--json").out
    )["candidates"][0]
    assert (read["memory"], read["communication"]) == (asked["memory"], asked["communication"])
