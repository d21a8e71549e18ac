"""What the documents print is what the program prints. ``python -m tests.renew_docs`` writes the
outputs anew.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import (
    FENCE,
    documents,
    examples,
    is_session,
    matches,
    output,
    prepare,
    renewed,
    rewritten,
    sessions,
)
from tests.running import ROOT, environment
from zerocalc.cli.flags import FLAGS
from zerocalc.sources import PAPERS

SESSIONS = [
    (document, number, body)
    for document in documents()
    for number, body in enumerate(sessions(document), start=1)
]


@pytest.mark.parametrize(
    ("document", "number", "body"),
    SESSIONS,
    ids=[f"{document.relative_to(ROOT)}-{number}" for document, number, _ in SESSIONS],
)
def test_a_session_prints_what_the_document_says(
    document: Path, number: int, body: str, tmp_path: Path
) -> None:
    prepare(document, tmp_path)
    for example in examples(body):
        actual = output(example.command, tmp_path)
        assert matches(example.printed, actual), "\n".join(
            ("python -m tests.renew_docs", f"$ {example.command}", *actual)
        )


PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "document",
    [document for document in documents() if PYTHON.search(document.read_text("utf-8"))],
    ids=lambda document: document.name,
)
def test_python_in_a_document_runs(document: Path, tmp_path: Path) -> None:
    """Blocks of Python run in order in one program; a config.json that they name is there."""
    blocks = PYTHON.findall(document.read_text("utf-8"))
    config = (
        '{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": '
        '50257, "n_positions": 1024}'
    )
    (tmp_path / "config.json").write_text(config)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        capture_output=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


MOST_LINES = 250
"""Of the README: what is longer is a guide in docs/."""


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= MOST_LINES


def test_each_document_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for document in documents()[1:]:
        name = document.relative_to(ROOT)
        assert f"]({name})" in readme or f"]({name.parent})" in readme, name


def test_each_flag_has_its_help_in_one_place() -> None:
    """docs/commands.md has the help of every flag, once."""
    helped = re.findall(r"^  (--[\w-]+)", (ROOT / "docs" / "commands.md").read_text("utf-8"), re.M)
    assert sorted(helped) == sorted(set(helped))
    assert {flag.name for flag in FLAGS} <= set(helped)


QUOTED = re.compile(r"^```py\n# (zerocalc/\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_quoted_code_is_in_its_file() -> None:
    quotes = [
        quote for document in documents() for quote in QUOTED.findall(document.read_text("utf-8"))
    ]
    assert quotes
    for file, code in quotes:
        assert code in (ROOT / file).read_text("utf-8"), file


def test_every_fence_is_closed() -> None:
    for document in documents():
        text = document.read_text("utf-8")
        assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text)), (
            document
        )


def test_links_lead_somewhere() -> None:
    for document in documents():
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text("utf-8")):
            assert "://" in target or (document.parent / target).exists(), (
                f"{document.name}: {target}"
            )


# The machinery itself.

SESSION = "$ zerocalc a\none\n\n$ zerocalc b --x\ntwo\nthree\n"


def test_sessions_are_read() -> None:
    assert [(e.command, e.printed) for e in examples(SESSION)] == [
        ("zerocalc a", ("one",)),
        ("zerocalc b --x", ("two", "three")),
    ]
    assert is_session(SESSION)
    assert not is_session("zerocalc a\n")


@pytest.mark.parametrize(
    ("printed", "actual", "same"),
    [
        ("a|b", "a|b", True),
        ("a|b", "a|c", False),
        ("a|…", "a|b|c", True),
        ("a|…", "a", True),
        ("…|c", "a|b|c", True),
        ("a|…|d", "a|b|c|d", True),
        ("a|…|d", "a|b|c", False),
        ("a|…|c|…|e", "a|b|c|d|e", True),
        ("…", "a|b", True),
        ("", "a", False),
        ("…|c", "a|b", False),
        ("a.c", "abc", False),
        ("a|  …", "a|b", True),
        ("a … b", "a x b", False),
    ],
)
def test_an_ellipsis_stands_for_any_lines(printed: str, actual: str, same: bool) -> None:
    assert matches(tuple(printed.split("|")) if printed else (), tuple(actual.split("|"))) is same


@pytest.mark.parametrize(
    ("printed", "actual", "new"),
    [
        ("", "a|b", "a|b"),
        ("x|y", "a|b", "a|b"),
        ("x|…", "a|b|c", "a|…"),
        ("x|…|z", "a|b|c|d", "a|…|d"),
        ("a|…|d", "a|b|c|d", "a|…|d"),
        ("…|z", "a|b", "…|b"),
        ("1|2|…|3|4", "a|b|c", "a|b|c"),
        ("1|…|2|…|3", "a|b|c|d", "a|…|d"),
        ("1|…|b 2|…|3", "a|b 4|c|d", "a|…|b 4|…|d"),
        ("…|b 2|y|…|b 3|…", "a|b 4|c|b|d", "…|b 4|c|…|b|…"),
    ],
)
def test_renewing_cuts_where_the_document_cut(printed: str, actual: str, new: str) -> None:
    assert (
        "|".join(renewed(tuple(printed.split("|")) if printed else (), tuple(actual.split("|"))))
        == new
    )


def test_renewed_documents_are_left_alone(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "text\n\n```\n$ zerocalc --version\n```\n\n```toml\n# g.toml: mine\nx = "
        "1\n```\n\n````sh\n$ zerocalc x\n…\n````\n"
    )

    def run(command: str, folder: Path) -> tuple[str, ...]:
        assert (folder / "g.toml").is_file()
        return (f"ran {command}", "done")

    once = rewritten(document, run)
    assert "$ zerocalc --version\nran zerocalc --version\ndone\n```\n" in once
    assert "$ zerocalc x\n…\n````" in once
    document.write_text(once)
    assert rewritten(document, run) == once


CITED = re.compile(
    r"\[(ZeRO(?:\+\+)?|Meg|SP|Off|Inf|\+\+|MiCS|FSDP|PaLM|Adafactor|[A-Z]{2,6})\] "
    r"(?:§|Table|appendix|figure|[Ff]ig)"
)


def test_every_paper_that_is_cited_is_named() -> None:
    texts = [
        path.read_text("utf-8")
        for folder, kind in (("zerocalc", "*.py"), ("presets", "*.toml"))
        for path in (ROOT / folder).rglob(kind)
    ]
    assert {tag for text in texts for tag in CITED.findall(text)} <= PAPERS.keys()
    sources = (ROOT / "docs" / "sources.md").read_text("utf-8")
    assert all(f"- [{tag}] {paper}" in sources for tag, paper in PAPERS.items())
