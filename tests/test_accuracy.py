"""The accuracy page is what its script prints, and what a layer saves is what was measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]

STATISTICS_OF_NORMS = 0.001
"""The list leaves out norms' statistics: 8 bytes a token and LayerNorm beside some 34·h bytes a token and layer, so under 0.1 % from h = 256 on."""


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ACCURACY = _script()
RUNS = list(ACCURACY.rows())


def test_the_page_is_not_stale() -> None:
    assert (ROOT / "docs" / "accuracy.md").read_text("utf-8") == ACCURACY.page(), "run: python benchmarks/accuracy.py > docs/accuracy.md"


@pytest.mark.parametrize(("run", "ours"), RUNS, ids=[f"{i}-{run['source'].split(',')[0].replace(' ', '-')}" for i, (run, _) in enumerate(RUNS)])
def test_what_a_layer_saves_is_what_was_measured(run: dict[str, str], ours: int) -> None:
    measured = int(run["measured_bytes_per_layer"])
    assert ours <= measured
    assert (measured - ours) / measured <= STATISTICS_OF_NORMS
    if run["recompute"] == "full":
        assert ours == measured
