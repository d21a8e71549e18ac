"""What people see, whole. ``python -m tests.renew_snapshots`` writes the outputs anew; read the
difference.
"""

from __future__ import annotations

import re
import unicodedata

import pytest

from tests.kept import COMMANDS, DATA, FOLDER, SNAPSHOTS, WIDTHS, Snapshot
from tests.running import program

ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def width(line: str) -> int:
    """Columns that a line takes on a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1
        for c in ESCAPE.sub("", line)
    )


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda snapshot: snapshot.file.stem)
def test_output_is_the_kept_one(snapshot: Snapshot) -> None:
    assert snapshot.printed() == snapshot.file.read_text("utf-8"), "python -m tests.renew_snapshots"


@pytest.mark.parametrize(
    "snapshot",
    [s for s in SNAPSHOTS if s.name not in DATA],
    ids=lambda snapshot: snapshot.file.stem,
)
def test_no_line_is_wider_than_the_terminal(snapshot: Snapshot) -> None:
    for line in snapshot.printed().splitlines()[1:]:
        assert width(line) <= snapshot.columns, line
        assert snapshot.colour or line == line.rstrip()


@pytest.mark.parametrize("columns", [20, 40, 60, 79, 81, 200, 1000])
@pytest.mark.parametrize(
    "name", ["plan-bare", "explain-stage-3", "step-stages-1-3", "presets", "params"]
)
def test_any_width_will_do(name: str, columns: int) -> None:
    """Narrow or wide, a command answers; from 79 columns on nothing is cut off, and no line is
    longer than 120.
    """
    printed = Snapshot(name, COMMANDS[name], columns).printed().splitlines()[1:]
    assert max(map(width, printed)) <= min(columns, 120)
    assert columns < 79 or "…" not in "\n".join(printed)


def test_nothing_else_is_kept() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {
        snapshot.file.name for snapshot in SNAPSHOTS
    }


def test_colour_changes_nothing_but_colour() -> None:
    for snapshot in (s for s in SNAPSHOTS if s.colour):
        plain = Snapshot(snapshot.name, snapshot.command, snapshot.columns).printed()
        coloured = ESCAPE.sub("", snapshot.printed())
        assert [line.rstrip() for line in coloured.splitlines()] == plain.splitlines()


def test_the_program_prints_what_is_kept() -> None:
    kept = Snapshot("plan-bare", COMMANDS["plan-bare"], WIDTHS[0])
    ran = program(*kept.command.split(), columns=kept.columns)
    assert f"$ zerocalc {kept.command}\n{ran.out}exit status {ran.status}\n" == kept.file.read_text(
        "utf-8"
    )
