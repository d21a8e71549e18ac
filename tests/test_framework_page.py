"""The page on frameworks is what its script prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from zerocalc import presets
from zerocalc.frameworks import HOMES, program_of

ROOT = Path(__file__).parents[1]


def test_every_framework_has_a_program() -> None:
    assert HOMES.keys() == set(presets.names("frameworks"))


@pytest.mark.parametrize("name", presets.names("frameworks"))
def test_every_program_says_its_limits(name: str) -> None:
    limits = program_of(name).limits
    assert limits
    assert all(limit.endswith(".") for limit in limits)
    assert len(set(limits)) == len(limits)


def test_the_page_is_not_stale() -> None:
    spec = importlib.util.spec_from_file_location(
        "frameworks", ROOT / "benchmarks" / "frameworks.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "frameworks.md").read_text("utf-8") == module.page(), (
        "run: python benchmarks/frameworks.py > docs/frameworks.md"
    )
