"""Commands and their outputs in documents: found, run again, compared, renewed.

A fenced block whose first line starts with ``$ zerocalc`` is a session: each line that starts with
``$ `` is a command for a shell, the lines up to the next one are what it prints, on either stream,
80 columns wide. A line ``…`` stands for any lines. A fenced block whose first line is a comment
with a file's name (``# my-gpu.toml: …``) is that file: it lies in the folder in which all sessions
of its document run, with copies of all of docs/examples.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.running import ROOT, environment

ELLIPSIS = "…"
PROMPT = "$ "
FENCE = re.compile(
    r"^(?P<fence>`{3,})[^\n`]*\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL
)
FILE_NAME = re.compile(r"#\s+(?P<name>[\w.-]+\.(?:toml|json))\b")
EXAMPLES = ROOT / "docs" / "examples"


def documents() -> list[Path]:
    """README.md, CONTRIBUTING.md and every document in docs/."""
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*first, *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True, slots=True)
class Example:
    """One command and the lines that a document prints under it."""

    command: str
    printed: tuple[str, ...]


def is_session(body: str) -> bool:
    """Whether a block's commands are run."""
    return body.startswith(f"{PROMPT}zerocalc")


def examples(body: str) -> list[Example]:
    """The commands of a session's text, each with its output."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith(PROMPT):
            found.append((line.removeprefix(PROMPT), []))
        else:
            found[-1][1].append(line)
    return [Example(command, tuple(_without_gap(lines))) for command, lines in found]


def _without_gap(lines: list[str]) -> list[str]:
    """The lines less the empty ones at the end, which only separate commands."""
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


def sessions(document: Path) -> list[str]:
    """The texts of a document's sessions."""
    return [
        match["body"]
        for match in FENCE.finditer(document.read_text("utf-8"))
        if is_session(match["body"])
    ]


def prepare(document: Path, folder: Path) -> None:
    """Put what a document's commands need into ``folder``."""
    if EXAMPLES.is_dir():
        shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    for match in FENCE.finditer(document.read_text("utf-8")):
        named = FILE_NAME.match(match["body"])
        if named:
            (folder / named["name"]).write_text(match["body"], "utf-8")


def output(command: str, folder: Path) -> tuple[str, ...]:
    """The lines that a command prints, errors too, less empty ones at the end."""
    import subprocess

    done = subprocess.run(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        cwd=folder,
        check=False,
    )
    return tuple(_without_gap([line.rstrip() for line in done.stdout.decode().splitlines()]))


def matches(printed: tuple[str, ...], actual: tuple[str, ...]) -> bool:
    """Whether output is what a document prints, a line ``…`` standing for any lines, or none."""
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == ELLIPSIS else re.escape(line.rstrip()) + "\n"
        for line in printed
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in actual)) is not None


def renewed(printed: tuple[str, ...], actual: tuple[str, ...]) -> tuple[str, ...]:
    """What a document should print: the same text if it still holds; else the output, cut where the
    document cuts it.

    As many lines are kept as there were before the first ``…`` and after the last one. Lines
    between two ``…`` are found again by the word that the first of them begins with.
    """
    if matches(printed, actual):
        return printed
    marks = [index for index, line in enumerate(printed) if line.strip() == ELLIPSIS]
    if not marks:
        return actual
    head, tail = marks[0], len(printed) - marks[-1] - 1
    if head + tail >= len(actual):
        return actual
    kept, rest = [*actual[:head], ELLIPSIS], list(actual[head : len(actual) - tail])
    for before, after in pairwise(marks):
        wanted = printed[before + 1 : after]
        found = next((i for i, line in enumerate(rest) if _first(line) == _first(wanted[0])), None)
        if found is not None:
            kept += [*rest[found : found + len(wanted)], ELLIPSIS]
            rest = rest[found + len(wanted) :]
    return (*kept, *actual[len(actual) - tail :])


def _first(line: str) -> str:
    """The word that a line begins with."""
    return line.partition(" ")[0]


def rewritten(document: Path, run: Callable[[str, Path], tuple[str, ...]] = output) -> str:
    """A document's text with the outputs of its sessions renewed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(document, folder)

        def session(match: re.Match[str]) -> str:
            body = match["body"]
            if not is_session(body):
                return match[0]
            parts = []
            for example in examples(body):
                lines = renewed(example.printed, run(example.command, folder))
                parts.append("".join(f"{line}\n" for line in (PROMPT + example.command, *lines)))
            return match[0].replace(body, "\n".join(parts))

        return FENCE.sub(session, document.read_text("utf-8"))
