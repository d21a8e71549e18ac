"""The page on frameworks is what its script prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from zerocalc import presets

ROOT = Path(__file__).parents[1]


def test_the_page_is_not_stale() -> None:
    spec = importlib.util.spec_from_file_location(
        "frameworks", ROOT / "benchmarks" / "frameworks.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.LEFT_OUT.keys() == set(presets.names("frameworks"))
    assert (ROOT / "docs" / "frameworks.md").read_text("utf-8") == module.page(), (
        "run: python benchmarks/frameworks.py > docs/frameworks.md"
    )
