"""Standard output and error of every sort: closed, full, narrow, or in an encoding without
symbols.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.running import ROOT, Ran, run, run_line, shell
from tests.test_formula_text import ALL
from zerocalc.render.plain import PLAIN, plain, plain_for

BARE = "plan --params 10B --gpus 64"
BAD = "plan --params 10Q --gpus 64"
ANSWERS = [
    BARE,
    f"{BARE} --json",
    f"{BARE} --format csv",
    "paper",
    "presets",
    "presets gpus",
    "params gpt2",
    "--help",
    "plan --help",
    "--version",
]
NO_OUTPUT = "error: standard output: closed\n"


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", "2>&- <&-", "2> /dev/null"])
def test_without_standard_error_the_status_still_tells(stream: str) -> None:
    ran = shell(f"zerocalc {BAD} {stream}; echo $?; zerocalc {BARE} --format csv {stream} | wc -l")
    assert [line.strip() for line in ran.out.splitlines()] == ["2", "5"]
    assert ran.err == ""


@pytest.mark.parametrize("line", ANSWERS)
def test_an_answer_that_cannot_be_printed_is_an_error(line: str) -> None:
    closed, full = shell(f"zerocalc {line} >&-"), shell(f"zerocalc {line} >/dev/full")
    assert (closed.status, closed.err) == (2, NO_OUTPUT)
    assert (full.status, full.err) == (2, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("line", [BARE, f"{BARE} --json", "--help"])
def test_an_answer_that_cannot_be_printed_is_one_without_other_streams_too(line: str) -> None:
    assert shell(f"zerocalc {line} >&-") == shell(f"zerocalc {line} >&- <&-")
    for streams in (">&- 2>&-", ">/dev/full 2>/dev/full"):
        assert shell(f"zerocalc {line} {streams}").status == 2


def test_bad_input_is_told_before_a_closed_output() -> None:
    ran = shell(f"zerocalc {BAD} >&-")
    assert ran.status == 2
    assert ran.err.startswith("error: --params: ")
    assert ran.err.count("\n") == 1


@cache
def at_80(line: str) -> Ran:
    return run(*line.split())


@pytest.mark.parametrize(
    "columns", ["0", "1", "-5", "", " ", "²", "eighty", "9" * 5000, "000", "80.5"]
)
@pytest.mark.parametrize("line", [BARE, "paper", "step --params 1B --gpus 4", "presets"])
def test_a_width_that_is_none_is_no_width(columns: str, line: str) -> None:
    ran = run(*line.split(), variables={"COLUMNS": columns, "LINES": columns})
    assert ran == at_80(line)
    assert ran.out


# Symbols that the encoding lacks.


@pytest.mark.parametrize("text", sorted({written.text for written in ALL}))
def test_every_formula_has_a_plain_text(text: str) -> None:
    assert plain(text).isascii()
    assert "?" not in plain(text)
    assert plain_for(text, "utf-8") == text


def test_everything_we_write_has_a_plain_text() -> None:
    files = [*(ROOT / "zerocalc").rglob("*.py"), *(ROOT / "presets").rglob("*.toml")]
    letters = {
        letter for file in files if file.name != "plain.py" for letter in file.read_text("utf-8")
    }
    assert len([letter for letter in letters if not letter.isascii()]) > 10
    assert not [letter for letter in letters if "?" in plain(letter) and letter != "?"]
    assert all(spelled.isascii() for spelled in PLAIN.values())


def test_greek_and_accents() -> None:
    assert plain("ΨσλΔ") == "PsisigmalambdaDelta"
    assert plain("Café 日") == "Cafe ?"
    assert plain_for("é·Ψ⌈", "cp1252") == "é·Psiceil("


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "cp437", "koi8-r"])
@pytest.mark.parametrize(
    "line",
    [
        BARE,
        f"explain {BARE[5:]}",
        "paper zero-table1",
        "paper",
        "step --params 1B --gpus 4",
        f"{BARE} --format markdown",
    ],
)
def test_symbols_are_spelled_where_the_encoding_lacks_them(encoding: str, line: str) -> None:
    ran = run_line(line, encoding=encoding)
    assert ran.err == ""
    text = ran.out
    assert "?" not in text.replace("?\n", "\n")  # questions end lines
    if encoding == "ascii":
        assert text.isascii()
        assert any(word in text for word in ("Psi", " ok", " x1 "))
    assert max(map(len, text.splitlines())) <= 80 or "markdown" in line


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "koi8-r"])
def test_the_program_spells_them_too(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "out"
    assert shell(f"PYTHONIOENCODING={encoding} zerocalc {BARE} > {file}").err == ""
    assert file.read_bytes().decode(encoding) == run_line(BARE, encoding=encoding).out


def test_columns_stay_straight_in_ascii() -> None:
    out = shell("PYTHONIOENCODING=ascii zerocalc plan --params 10B --gpus 64").out
    rows = [
        line
        for line in out.splitlines()
        if re.match(r"weights|gradients|model states|  total|traffic|  of DDP", line)
    ]
    assert len(rows) == 7
    assert len({len(line) for line in rows}) == 1


def test_json_in_ascii_keeps_its_texts() -> None:
    escaped = shell(f"PYTHONIOENCODING=ascii zerocalc {BARE} --json").out
    assert escaped.isascii()
    assert "\\u03a8" in escaped
    assert json.loads(escaped) == json.loads(shell(f"zerocalc {BARE} --json").out)


def test_an_error_in_ascii() -> None:
    ran = shell("PYTHONIOENCODING=ascii zerocalc plan --params １B --gpus 8")
    assert (ran.status, ran.err) == (
        2,
        "error: --params: '?B' is not a count such as 10B, 350M or 7.5e9\n",
    )


NARROW = [
    "plan --model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192",
    "plan --params 10B --gpus 64 --compare-with deepspeed-estimator",
    "step --params 10B --gpus 8",
    "explain --model llama-3-8b --gpus 8 --seq 8192 --stage 1 --term mlp",
    "params deepseek-v2-lite",
    "paper",
]
FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")


@pytest.mark.parametrize("line", NARROW)
@pytest.mark.parametrize("columns", [20, 40])
def test_no_figure_is_broken_however_narrow_the_terminal(line: str, columns: int) -> None:
    narrow, wide = (run(*line.split(), columns=width).out for width in (columns, 120))
    assert set(FIGURE.findall(narrow)) == set(FIGURE.findall(wide))  # headings are said again
