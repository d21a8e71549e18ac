"""Standard output and standard error: whatever they are, an answer is written whole or its failure
is one line and a status.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import typer

from zerocalc import answers, render

REFUSED = 2
PLAINLY = "zerocalc-plainly"
"""The error handler that spells what an encoding lacks."""


def prepare() -> bool:
    """Make both streams fit for symbols; whether standard output is open.

    One that whoever started us has closed is replaced: a file that is opened later must not take
    its number.
    """
    is_open = sys.stdout is not None
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    codecs.register_error(PLAINLY, _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=PLAINLY)
    return is_open


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return render.plain.plain(error.object[error.start : error.end]), error.end


def print_json(value: Any) -> None:
    """Print a result as JSON; where the stream's encoding lacks a symbol, all are escaped, so that
    no text changes.
    """
    text = answers.document.to_json(value)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        import json  # noqa: PLC0415 - hardly any start needs it

        text = json.dumps(json.loads(text), indent=1)
    typer.echo(text)


def refuse(text: str) -> int:
    """Say in one line of standard error what is wrong, and give the exit status for it."""
    line = " ".join(text.split())
    # A path or a name can hold what the terminal cannot spell, or would obey.
    safe = "".join(character if character.isprintable() else "?" for character in line)
    with _forgiven(sys.stderr):
        sys.stderr.write(f"error: {safe}\n")
        sys.stderr.flush()
    return REFUSED


def tell(text: str) -> None:
    """Print a line on standard error."""
    with _forgiven(sys.stderr):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def flush(status: int) -> int:
    """Write out what is still in standard output's buffer; the exit status, which is another where
    that fails.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        return unwritable(error)
    return status


def unwritable(error: OSError) -> int:
    """Output cannot be written: no error where its reader has gone, one line where a disk is
    full.
    """
    _divert(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return 0
    return refuse(f"standard output: {error.strerror or error}")


@contextlib.contextmanager
def _forgiven(stream: TextIO) -> Any:
    """Let a stream that cannot be written to cost nothing but its text."""
    try:
        yield
    except (OSError, ValueError):
        _divert(stream)


def _divert(stream: TextIO) -> None:
    """Send what is left in a stream's buffer nowhere, so that nothing complains of it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
