"""One way to run the command line: in this process or as a program, at a known width, with or
without colour.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import typer

ROOT = Path(__file__).parents[1]
DEFAULT_COLUMNS = 80

DECIDES_LOOKS = (
    "COLUMNS",
    "LINES",
    "TERM",
    "COLORTERM",
    "FORCE_COLOR",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "PYTHONWARNINGS",
)
"""Variables by which a terminal, or whoever runs the tests, changes what is printed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command line gave."""

    status: int
    out: str
    err: str


def environment(columns: int = DEFAULT_COLUMNS, colour: bool = False) -> dict[str, str]:
    """This process's variables, but for those that decide about width and colour."""
    kept = {name: value for name, value in os.environ.items() if name not in DECIDES_LOOKS}
    kept |= {
        "COLUMNS": str(columns),
        "LINES": "25",
        "TERM": "xterm-256color" if colour else "dumb",
        "PYTHONIOENCODING": "utf-8",
    }
    programs = str(Path(sys.executable).parent)
    kept["PATH"] = programs + os.pathsep + kept.get("PATH", os.defpath)
    return kept | ({"FORCE_COLOR": "1"} if colour else {})


@contextlib.contextmanager
def _standard_input(data: bytes) -> Iterator[None]:
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8")):
        yield


@functools.cache
def _command(app: typer.Typer) -> Any:
    """An application's command, built once for all command lines: it is most of a short one's time,
    and holds nothing of the one before.
    """
    return _build(app)


_build = typer.main.get_command


def run(
    *arguments: str,
    stdin: bytes | str = b"",
    columns: int = DEFAULT_COLUMNS,
    colour: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
    encoding: str = "utf-8",
) -> Ran:
    """Run one command line in this process: fast, and with the same results as the program's.

    ``encoding``: of both streams.
    """
    from zerocalc import cli
    from zerocalc.cli import streams

    data = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, newline="") for _ in range(2))
    looks = {**environment(columns, colour), **variables}
    with (
        mock.patch.dict(os.environ, looks, clear=True),
        mock.patch.object(typer.main, "get_command", _command),
        _standard_input(data),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        streams.prepare()
        status = cli.run(list(arguments))
    return Ran(status, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode(stream.encoding)


def run_line(line: str, encoding: str = "utf-8") -> Ran:
    """Run a command line written as in a shell, without the program's name, in this process."""
    return run(*shlex.split(line), encoding=encoding)


def program(
    *arguments: str,
    stdin: bytes = b"",
    columns: int = DEFAULT_COLUMNS,
    colour: bool = False,
    cwd: Path | None = None,
) -> Ran:
    """Run zerocalc as a program of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from zerocalc.cli import main; main()", *arguments],
        input=stdin,
        capture_output=True,
        env=environment(columns, colour),
        cwd=cwd,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(line: str, columns: int = DEFAULT_COLUMNS, cwd: Path | None = None) -> Ran:
    """Run a line of shell, in which ``zerocalc`` is the program of this environment."""
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(columns),
        cwd=cwd,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def refused(ran: Ran) -> str:
    """The error's line, once it has been found to be one line and nothing else."""
    assert ran.status == 2, ran
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.startswith("error: ")
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1
    line = ran.err.removesuffix("\n")
    assert line.isprintable()
    assert len(line) <= 400
    return line
