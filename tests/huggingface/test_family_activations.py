"""What a model's own class keeps for backward, measured, beside what its family's file gives: layer
by layer.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from zerocalc import estimate
from zerocalc.answers.planner import plan
from zerocalc.huggingface.config import model_from_config
from zerocalc.model.build import architecture
from zerocalc.model.module import Module, layout
from zerocalc.spec.base import explain
from zerocalc.spec.job import Job

DATA = Path(__file__).parents[1] / "data"
FILES: list[dict[str, Any]] = [
    json.loads(file.read_text("utf-8")) for file in sorted(DATA.glob("family_activations*.json"))
]
CONFIGS: dict[str, Any] = {
    **json.loads((DATA / "family_defaults.json").read_text("utf-8"))["families"]
}
for data in FILES:
    CONFIGS.update(data.get("configs", {}))
RUNS = [
    {"seq": data["seq"], "micro_batch": data["micro_batch"]} | run
    for data in FILES
    for run in data["runs"]
]
TOLERANCE = 0.005
"""Of a layer's bytes, where a run does not say exactly what is not counted: routers' small
by-products, scaled norms' weights in fp32.
"""
OUTSIDE = 0.005
IDS_AND_STATISTICS = 64
"""Bytes a token outside the layers that are not counted: integers, and weights of norms in fp32;
all layers' sines and cosines are not measured.
"""


@cache
def _read(family: str, config: str) -> str:
    return model_from_config(json.loads(config), family).model_dump_json()


def written_out(family: str, config: str) -> dict[str, Any]:
    """A config's model as JSON, read once for all kernels, recipes and sizes."""
    model: dict[str, Any] = json.loads(_read(family, config))
    return model


def job_of(run: dict[str, Any]) -> Job:
    known = CONFIGS[run["family"]]
    config = known["config"] | run.get("set", {}) | {"architectures": [known["architecture"]]}
    for part, changes in run.get("within", {}).items():
        config[part] = config[part] | changes
    model = written_out(run["family"], json.dumps(config))
    if model["stack"]:
        model["stack"]["positions"] = (
            None  # fake tensors do not look tokens up in a table that is too short
        )
    return Job.model_validate(
        {
            "model": model,
            "cluster": {"gpus": 1},
            "recipe": run.get("recipe", "pure-bf16-adam"),
            "implementation": "huggingface",
            "training": {
                "seq": run["seq"],
                "micro_batch": run["micro_batch"],
                "attention": run["kernel"],
            },
        }
    )


def kept(modules: tuple[Module, ...]) -> int:
    return sum(module.kept_bytes for module in modules)


def _name(run: dict[str, Any]) -> str:
    return "-".join(
        [
            run["family"],
            run["kernel"],
            *map(str, run.get("set", {})),
            *(str(key) for part in run.get("within", {}).values() for key in part),
            run.get("recipe", ""),
            f"{run['seq']}x{run['micro_batch']}",
        ]
    )


FAMILIES = Path(__file__).parents[2] / "presets" / "families"
MIXERS = json.loads((DATA / "family_mixers.json").read_text("utf-8"))["rows"]
UNMEASURED: set[str] = set()
"""Families that claim to know what their layers keep, and have no measured row: add none."""


def test_a_family_that_claims_activations_was_measured() -> None:
    claimed = {
        file.stem
        for file in FAMILIES.glob("*.toml")
        if tomllib.loads(file.read_text("utf-8")).get("activations")
    }
    assert claimed - {run["family"] for run in (*RUNS, *MIXERS)} == UNMEASURED


@pytest.mark.parametrize("run", RUNS, ids=_name)
def test_what_every_layer_keeps(run: dict[str, Any]) -> None:
    job = job_of(run)
    arch = architecture(job.model, layout(job, run["seq"]), job.implementation)
    assert arch is not None
    assert arch.saves
    ours = sorted(kept(modules) for count, modules in arch.groups for _ in range(count))
    theirs = sorted((size, rest) for count, size, *rest in run["layers"] for _ in range(count))
    assert len(ours) == len(theirs)
    for mine, (measured, uncounted) in zip(ours, theirs, strict=True):
        if uncounted:
            assert mine + uncounted[0] == measured
        else:
            assert mine == pytest.approx(measured, rel=TOLERANCE)
    tokens = run["seq"] * run["micro_batch"]
    shared = sum(
        saved.bytes
        for module in arch.before
        for saved in module.saved
        if saved.name == "sines and cosines"
    )
    assert kept(arch.before) + kept(arch.after) - shared == pytest.approx(
        run["outside"], rel=OUTSIDE, abs=IDS_AND_STATISTICS * tokens
    )


ROTARY: dict[str, Any] = json.loads((DATA / "rotary_tables.json").read_text("utf-8"))


@pytest.mark.parametrize(
    "run",
    ROTARY["runs"],
    ids=lambda run: "-".join([run["family"], *map(str, run.get("set", {})), run.get("recipe", "")]),
)
def test_what_all_layers_share_of_rotary_positions(run: dict[str, Any]) -> None:
    job = job_of(
        {**run, "seq": ROTARY["seq"], "micro_batch": ROTARY["micro_batch"], "kernel": "eager"}
    )
    arch = architecture(job.model, layout(job, ROTARY["seq"]), job.implementation)
    assert arch is not None
    assert (
        sum(
            saved.bytes
            for module in arch.before
            for saved in module.saved
            if saved.name == "sines and cosines"
        )
        == run["bytes"]
    )


@pytest.mark.parametrize(
    "file",
    sorted(FAMILIES.glob("*.toml")),
    ids=lambda file: file.stem,
)
def test_a_family_with_rotary_attention_says_how_much_is_turned(file: Path) -> None:
    family = tomllib.loads(file.read_text("utf-8"))
    modules = [module for part in family.get("layers", []) for module in part["modules"]]
    if family.get("activations", False) and any(
        module["type"] == "attention" and module.get("rotary", True) and not module.get("idle")
        for module in modules
    ):
        embeddings = [module for module in family["before"] if module["type"] == "embedding"]
        assert any("rotary_dim" in module for module in embeddings)


@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_a_class_without_fused_attention_is_told_apart(family: str) -> None:
    with pytest.raises(ValidationError) as raised:
        job_of({"family": family, "kernel": "flash", "seq": 64, "micro_batch": 1})
    path, text = explain(raised.value)
    assert path == "training.attention"
    assert (
        text == f"flash is not known for {family}, only unfused attention: choose "
        "training.attention eager"
    )


@pytest.mark.parametrize(
    ("whole", "text_type"), [("gemma-3-4b-it", "gemma3_text"), ("llama-4-scout", "llama4_text")]
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_class_with_towers_keeps_what_its_text_model_keeps(
    whole: str, text_type: str, recompute: str
) -> None:
    config = json.loads((DATA / "configs" / f"{whole}.json").read_text("utf-8"))
    text = (
        CONFIGS[text_type]["config"]
        | config["text_config"]
        | {"model_type": text_type, "layer_types": None}
    )
    if text_type == "gemma3_text":
        text["vocab_size"] = 262208  # Gemma3Config's own default
    totals = []
    for table in (config, text):
        model = model_from_config(table, whole).model_dump(mode="json")
        training = {"seq": 256, "attention": "flash", "recompute": recompute}
        job = Job.model_validate(
            {
                "model": model,
                "cluster": {"gpus": 1},
                "implementation": "huggingface",
                "training": training,
            }
        )
        kinds = {"activations", "checkpoints", "logits"}
        totals.append(
            sum(t.bytes for t in plan(job).candidates[0].memory.gpu.terms if t.kind in kinds)
        )
    assert totals[0] == totals[1] > 0


def test_every_residual_stream_is_checkpointed_and_crosses_pipeline_stages() -> None:
    config = CONFIGS["gemma3n_text"]["config"] | {
        "num_hidden_layers": 8,
        "activation_sparsity_pattern": None,
        "layer_types": None,
    }
    config |= {
        "intermediate_size": 1024,
        "num_kv_shared_layers": 0,
        "architectures": ["Gemma3nForCausalLM"],
    }
    job = Job.model_validate(
        {
            "model": model_from_config(config, "gemma3n"),
            "cluster": {"gpus": 2},
            "recipe": "pure-bf16-adam",
            "implementation": "huggingface",
            "parallel": {"pp": 2},
            "training": {"seq": 128, "recompute": "full"},
        }
    )
    streams = 128 * config["altup_num_inputs"] * config["hidden_size"] * 2
    arch = architecture(job.model, layout(job, 128), job.implementation)
    assert arch is not None
    assert {kept(modules) for _, modules in arch.groups} == {streams}
    sent = [
        c
        for c in estimate(job, stage=0).communication.collectives
        if c.group == "pp" and "activation" in c.what
    ]
    assert {c.tensor_bytes for c in sent} == {streams}
