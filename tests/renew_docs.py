"""Write what scripts and commands print into README.md and docs/ anew: ``python -m
tests.renew_docs``, then read the difference.

The pages of ``benchmarks/accuracy.py`` and ``benchmarks/frameworks.py``, the overview of the former
in README.md, and every session.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs import documents, rewritten
from tests.running import ROOT

PAGES = {
    "docs/accuracy.md": ("benchmarks/accuracy.py",),
    "docs/accuracy.json": ("benchmarks/accuracy.py", "--json"),
    "docs/frameworks.md": ("benchmarks/frameworks.py",),
}
OVERVIEW = re.compile(r"^\| measured by .*\n(?:\|.*\n)+", re.MULTILINE)


def main() -> None:
    """Rewrite the documents whose outputs changed, and name them."""
    for name, command in PAGES.items():
        _write(
            ROOT / name,
            subprocess.run(
                [sys.executable, *command],
                cwd=ROOT,
                capture_output=True,
                check=True,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            ).stdout,
        )
    (overview,) = OVERVIEW.findall((ROOT / "docs" / "accuracy.md").read_text("utf-8"))
    readme = ROOT / "README.md"
    _write(readme, OVERVIEW.sub(lambda _: overview, readme.read_text("utf-8")))
    for document in documents():
        _write(document, rewritten(document))


def _write(document: Path, text: str) -> None:
    if text != document.read_text("utf-8"):
        document.write_text(text, "utf-8")
        sys.stdout.write(f"wrote {document.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
