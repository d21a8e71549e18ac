"""What the installed command runs, and ``python -m zerocalc``."""

from __future__ import annotations

import gc
import os


def main() -> None:
    """Run the program, set up for a short life."""
    # A start makes very many objects and hardly a cycle: looking for cycles again and again takes 7
    # % of the time.
    gc.set_threshold(1_000_000)
    # No plugin of pydantic that happens to be installed has a say here, and none is looked for.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from zerocalc.cli import main as run  # noqa: PLC0415 - after what it is to find set

    run()


if __name__ == "__main__":
    main()
