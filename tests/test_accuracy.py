"""The accuracy page is what its script prints, and what layers and losses keep is what was
measured.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

LAYER = 0.0003
"""PyTorch's CPU build keeps LayerNorm's statistics in 16 bits, a GPU (and we) in fp32: 4 of some
17·h bytes a token at h = 1024.
"""
ADAPTERS_UNDER_AUTOCAST = 0.005
"""The measurement counts 16-bit copies of the adapters' weights, which are a state."""
OUTSIDE = 0.0009
"""Token ids and masks, 17 bytes a token."""
CHUNKED, FEW_TOKENS = 0.034, 0.011
"""Known gaps, on the page: a chunked loss on a trained head, and a head's gradient larger than what
few tokens' logits leave.
"""


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    sys.path.insert(0, str(ROOT / "benchmarks"))  # its neighbours
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ACCURACY = _script()
RUNS = list(ACCURACY.runs())
LOSSES = list(ACCURACY.losses())
STEPS = list(ACCURACY.throughput.steps())


def test_the_page_is_not_stale() -> None:
    assert (ROOT / "docs" / "accuracy.md").read_text("utf-8") == ACCURACY.page(), (
        "run: python benchmarks/accuracy.py > docs/accuracy.md"
    )


def test_the_unrounded_figures_are_not_stale() -> None:
    assert (ROOT / "docs" / "accuracy.json").read_text("utf-8") == ACCURACY.unrounded(), (
        "run: python benchmarks/accuracy.py --json > docs/accuracy.json"
    )


def test_the_readme_has_the_overview() -> None:
    assert "\n".join(ACCURACY.overview.table()) in (ROOT / "README.md").read_text("utf-8")


GOALS = {
    ("Megatron-LM CI", "steady"): 0.02,
    ("Megatron-LM CI", "peak"): 0.05,
    ("published peaks", "peak"): 0.07,
}


@pytest.mark.parametrize(("source", "most"), GOALS.items(), ids=["-".join(goal) for goal in GOALS])
def test_real_runs_are_met_at_the_median(source: tuple[str, str], most: float) -> None:
    assert median(ACCURACY.public_runs.errors()[source]) <= most


def test_nine_of_ten_peaks_of_megatron_are_met() -> None:
    errors = ACCURACY.public_runs.errors()["Megatron-LM CI", "peak"]
    assert ACCURACY.public_runs.percentile(errors, 0.9) <= 0.12


def test_each_of_simumax_runs_is_met() -> None:
    assert max(ACCURACY.public_runs.errors()["SimuMax B200", "peak"]) <= 0.03


BETWEEN = {
    "[Meg] table 1": (-0.20, 0.25),
    "[SP] table 5": (-0.10, 0.30),
    "llm-foundry": (-0.32, 0.30),
}
"""How far steps may be off, by source: one efficiency of kernels is taken for all sizes of model.

[Meg] table 1, throughput: its smallest model reaches 0.44 of the peak over whole steps, 0.55 is
taken (0.55 / 0.44 = 1.25). Low: what interleaving saves is not printed, and none is taken.

[SP] table 5, seconds: 0.55 is what its largest models reach over whole steps, to which the bubble
and exposed traffic, up to a quarter of a step, are added again.

llm-foundry, MFU: low: wherever its page says that checkpointing is on, all layers are taken to be
recomputed in full, 4/3 of the FLOPs, and kernels of large matrices reach 0.6 of the peak
(3/4 · 0.55 / 0.6 = 0.69). High: matrices of models of 1B and less reach 0.42 (0.55 / 0.42 = 1.3).
"""
LONG = "attention: FlashAttention-2 reaches 35 % of an H100's peak (arXiv 2407.08608)"
SMALL = "matrices of hidden size 768 and 1,536"
SLOW = "ZeRO-3 waits for 16 GB/s a node, a twelfth of what its cards send: not explained"
FAR = {
    ("[Meg] table 2", "ZeRO-3 174.6B, 384 GPUs, 4 a GPU"): (0.168, SLOW),
    ("[Meg] table 2", "ZeRO-3 174.6B, 768 GPUs, 2 a GPU"): (0.802, SLOW),
    ("[Meg] table 2", "ZeRO-3 174.6B, 1536 GPUs, 1 a GPU"): (1.904, SLOW),
    ("[Meg] table 2", "ZeRO-3 529.6B, 640 GPUs, 4 a GPU"): (0.228, SLOW),
    ("[Meg] table 2", "ZeRO-3 529.6B, 1120 GPUs, 2 a GPU"): (0.678, SLOW),
    ("[Meg] table 2", "ZeRO-3 529.6B, 2240 GPUs, 1 a GPU"): (2.045, SLOW),
    ("llm-foundry, h100 80gb", "3b, 8 h100_80gb, s 65536, b 1, recomputed"): (0.318, LONG),
    ("llm-foundry, h100 80gb", "1b, 8 h100_80gb, s 65536, b 1, recomputed"): (0.342, LONG),
    ("llm-foundry, h100 80gb", "1b, 8 h100_80gb, s 32768, b 1"): (0.400, LONG),
    ("llm-foundry, h100 80gb", "1b, 8 h100_80gb, s 16384, b 2"): (0.333, LONG),
    ("llm-foundry, h100 80gb", "760m, 8 h100_80gb, s 32768, b 1"): (0.474, LONG),
    ("llm-foundry, h100 80gb", "760m, 8 h100_80gb, s 16384, b 3"): (0.399, LONG),
    ("llm-foundry, h100 80gb", "760m, 8 h100_80gb, s 8192, b 6"): (0.347, LONG),
    ("llm-foundry, h100 80gb", "760m, 8 h100_80gb, s 4096, b 12"): (0.310, SMALL),
    ("llm-foundry, h100 80gb", "760m, 8 h100_80gb, s 2048, b 24"): (0.344, SMALL),
    ("llm-foundry, a100 40gb", "125m, 128 a100_40gb, s 2048, b 26"): (0.404, SMALL),
    ("llm-foundry, a100 40gb", "125m, 32 a100_40gb, s 2048, b 26"): (0.373, SMALL),
}
"""Steps that are further off, all of [Meg] table 2 among them: today's error, and what is known."""


@pytest.mark.parametrize("source", sorted({step.source for step in STEPS}))
def test_steps_take_about_so_long(source: str) -> None:
    """All but the named ones are within bounds that have a reason; those are as far off as said."""
    low, high = BETWEEN.get(source.partition(",")[0], (0.0, 0.0))
    steps = [step for step in STEPS if step.source == source]
    off = {(source, step.name): step.error for step in steps if not low <= step.error <= high}
    known = {row: error for row, (error, _) in FAR.items() if row[0] == source}
    assert off == pytest.approx(known, abs=0.0006)


def test_what_fitted_fits() -> None:
    assert [row for row, fits, _ in ACCURACY.public_runs.verdicts() if fits is not True] == []


@pytest.mark.parametrize(
    "run",
    RUNS,
    ids=["-".join(word.replace(" ", "-") for word in ACCURACY.words(run) if word) for run in RUNS],
)
def test_what_is_kept_is_what_was_measured(run: Any) -> None:
    layer, outside = ACCURACY.predicted(run)
    under_autocast = run.job.recipe.autocast and run.job.model.lora is not None
    assert layer == pytest.approx(
        run.layer_bytes, rel=ADAPTERS_UNDER_AUTOCAST if under_autocast else LAYER
    )
    if run.job.training.recompute == "full" and run.job.training.recompute_every == 1:
        assert layer == run.layer_bytes
    if run.outside_bytes is not None:
        assert outside == pytest.approx(run.outside_bytes, rel=OUTSIDE)


@pytest.mark.parametrize(
    ("run", "ours"), LOSSES, ids=[f"{i}-{run['loss']}" for i, (run, _) in enumerate(LOSSES)]
)
def test_peaks_around_the_loss_are_what_was_measured(
    run: dict[str, Any], ours: tuple[int, int]
) -> None:
    forward, backward = ours
    token_sized = 32_800  # a label, a loss and a count for each token
    assert run["peak_forward_bytes"] - token_sized <= forward <= run["peak_forward_bytes"]
    trained = not run["frozen_head"]
    gap = (
        CHUNKED
        if run["loss"] == "chunked" and trained
        else FEW_TOKENS
        if run["loss"] == "compute-dtype" and trained
        else 0
    )
    assert (
        run["peak_backward_bytes"] * (1 - gap) - token_sized
        <= backward
        <= run["peak_backward_bytes"]
    )
