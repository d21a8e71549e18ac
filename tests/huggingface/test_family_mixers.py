"""What layers with latent attention, state spaces, delta rules and convolutions keep for backward,
beside what the models' classes really kept.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from zerocalc import estimate
from zerocalc.huggingface.config import model_from_config
from zerocalc.model.build import architecture
from zerocalc.model.module import layout
from zerocalc.spec.job import Job

DATA = Path(__file__).parents[1] / "data"
DEFAULTS: dict[str, Any] = json.loads((DATA / "family_defaults.json").read_text("utf-8"))[
    "families"
]
ROWS: list[dict[str, Any]] = json.loads((DATA / "family_mixers.json").read_text("utf-8"))["rows"]
TOLERANCE = 0.0005
"""Not counted: counters that do not grow with the tokens, such as how many of them go to each
expert.
"""


def _name(row: dict[str, Any]) -> str:
    return "-".join(
        [
            row["family"],
            row["kernel"],
            f"{row['seq']}x{row['batch']}",
            *(f"{key}={value}" for key, value in row["changes"].items()),
        ]
    )


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_layers_keep_what_the_class_keeps(row: dict[str, Any]) -> None:
    known = row if "config" in row else DEFAULTS[row["family"]]
    config = {**known["config"], **row["changes"], "architectures": [known["architecture"]]}
    job = Job.model_validate(
        {
            "model": model_from_config(config, row["family"]),
            "cluster": {"gpus": 1},
            "recipe": "pure-bf16-adam",
            "implementation": "huggingface",
            "training": {
                "seq": row["seq"],
                "micro_batch": row["batch"],
                "attention": row["kernel"],
            },
        }
    )
    arch = architecture(job.model, layout(job, row["seq"]), job.implementation)
    assert arch is not None
    assert arch.saves
    ours = Counter[int]()
    for count, modules in arch.groups:
        ours[sum(module.kept_bytes for module in modules)] += count
    each = [size for size in sorted(ours) for _ in range(ours[size])]
    assert each == pytest.approx(
        [size for size, count in row["layers"] for _ in range(count)], rel=TOLERANCE
    )
    assert sum(module.kept_bytes for module in (*arch.before, *arch.after)) == pytest.approx(
        row["outside"], rel=TOLERANCE
    )


@pytest.mark.parametrize("implementation", ["paper", "huggingface", "megatron", "torchtitan"])
@pytest.mark.parametrize(
    "family",
    [
        "mamba",
        "deepseek_v3",
        "qwen3_next",
        "kimi_linear",
        "jamba",
        "gemma4_text",
        "recurrent_gemma",
        "lfm2",
        "gemma3n_text",
        "minimax",
    ],
)
def test_any_implementation_recomputation_and_split_of_a_family_is_answered(
    family: str, implementation: str
) -> None:
    model = model_from_config(DEFAULTS[family]["config"], family)
    for recompute, tp, kernel, recipe in (
        ("none", 1, "flash", "autocast"),
        ("full", 2, "eager", "pure-bf16-adam"),
        ("selective", 2, "math", "autocast"),
    ):
        job = Job.model_validate(
            {
                "model": model,
                "cluster": {"gpus": 4},
                "recipe": recipe,
                "implementation": implementation,
                "zero": {"stage": 1},
                "parallel": {"tp": tp, "sequence_parallel": tp > 1},
                "training": {"seq": 64, "attention": kernel, "recompute": recompute},
            }
        )
        assert estimate(job).memory.gpu.at_peak.activations_bytes > 0
