"""The package's version and the changelog's headings belong together."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

import zerocalc

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
RELEASED = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
UNRELEASED = re.compile(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def wrong(version: str, changes: str) -> str | None:
    """What does not fit, or None.

    With nothing under Unreleased the package is the newest release. With anything there it is what
    comes next: its version is above the newest release's.
    """
    released = RELEASED.findall(changes)
    headings = re.findall(r"^## .*$", changes, re.MULTILINE)
    if len(headings) != len(released) + len(UNRELEASED.findall(changes)):
        return "a heading is neither [Unreleased] nor [X.Y.Z] - YYYY-MM-DD"
    versions = [numbers(number) for number, _ in released]
    days = [date.fromisoformat(day) for _, day in released]
    if versions != sorted(set(versions), reverse=True) or days != sorted(days, reverse=True):
        return "releases are not listed newest first"
    newest = max(versions, default=None)
    waiting = any(section.strip() for section in UNRELEASED.findall(changes))
    if waiting:
        return None if newest is None or numbers(version) > newest else "not above the last release"
    return None if numbers(version) == newest else "not the newest release"


def test_version_is_the_changelogs() -> None:
    assert wrong(zerocalc.__version__, CHANGELOG.read_text("utf-8")) is None


TOP = "# Changelog\n\n"
NOTHING, SOMETHING = "## [Unreleased]\n\n", "## [Unreleased]\n\n### Added\n\n- A thing.\n\n"
FIRST, SECOND = "## [0.2.0] - 2026-12-01\n\n- It.\n\n", "## [0.3.0] - 2026-12-24\n\n- More.\n\n"


@pytest.mark.parametrize(
    ("version", "changes", "problem"),
    [
        ("0.2.0", FIRST, None),
        ("0.2.0", NOTHING + FIRST, None),
        ("0.3.0", SOMETHING + FIRST, None),
        ("0.3.0", SECOND + FIRST, None),
        ("0.1.0", SOMETHING, None),
        ("0.1.0", FIRST, "not the newest release"),
        ("0.3.0", FIRST, "not the newest release"),
        ("0.2.0", SECOND + FIRST, "not the newest release"),
        ("0.1.0", NOTHING, "not the newest release"),
        ("0.2.0", SOMETHING + FIRST, "not above the last release"),
        ("0.3.0", FIRST + SECOND, "releases are not listed newest first"),
        ("0.2.0", FIRST.replace(" - 2026-12-01", ""), "a heading is neither"),
        ("0.2.0", FIRST.replace("[0.2.0]", "0.2.0"), "a heading is neither"),
    ],
)
def test_a_version_that_does_not_fit_is_told(
    version: str, changes: str, problem: str | None
) -> None:
    found = wrong(version, TOP + changes)
    assert (found is None) if problem is None else (found or "").startswith(problem)
