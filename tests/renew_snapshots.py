"""Write the kept outputs anew: ``python -m tests.renew_snapshots``, then read the difference before
committing it.
"""

from __future__ import annotations

import sys

from tests.kept import FOLDER, SNAPSHOTS


def main() -> None:
    """Write every output, remove those of commands that are kept no longer, and say what
    changed.
    """
    FOLDER.mkdir(exist_ok=True)
    for old in set(FOLDER.glob("*.txt")) - {snapshot.file for snapshot in SNAPSHOTS}:
        old.unlink()
        sys.stdout.write(f"removed {old.name}\n")
    for snapshot in SNAPSHOTS:
        text = snapshot.printed()
        if not snapshot.file.exists() or snapshot.file.read_text("utf-8") != text:
            snapshot.file.write_text(text, "utf-8")
            sys.stdout.write(f"wrote {snapshot.file.name}\n")


if __name__ == "__main__":
    main()
