"""Write the outputs in README.md and docs/ anew: ``python -m tests.renew_docs``, then read the difference before committing it."""

from __future__ import annotations

import sys

from tests.docs import documents, rewritten
from tests.running import ROOT


def main() -> None:
    """Rewrite the documents whose outputs changed, and name them."""
    for document in documents():
        text = rewritten(document)
        if text != document.read_text("utf-8"):
            document.write_text(text, "utf-8")
            sys.stdout.write(f"wrote {document.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
