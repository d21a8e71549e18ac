"""Cold start of `zerocalc plan --json` as a ratio to floor.py, the least that typer and pydantic
allow: python benchmarks/cold_start.py.

Each run is a new process of this interpreter, and the programs take turns; medians are compared. On
a machine that does other things too, trust the processor's time rather than the clock's. The goal
is a ratio of at most `GOAL`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOAL = 1.25
FLOOR = "floor.py"
COMMANDS = (
    "plan --params 10B --gpus 64 --json",
    "plan --model llama-3-8b --gpus 8 --seq 8192 --json",
)
PROGRAMS = {
    FLOOR: [str(Path(__file__).with_name(FLOOR))],
    **{
        command: ["-c", "from zerocalc.__main__ import main; main()", *shlex.split(command)]
        for command in COMMANDS
    },
}

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
"""An installed program has its bytecode; a checkout keeps it from the first run on."""


def run(arguments: list[str]) -> tuple[float, float]:
    """One run from start to end: time by the clock, and of the processor [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT
    )
    clock = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40, help="runs of each program (default 40)")
    runs = parser.parse_args().runs

    for arguments in PROGRAMS.values():  # writes bytecode, fills the disk's cache
        run(arguments)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(runs):
        for name, arguments in PROGRAMS.items():
            taken[name].append(run(arguments))

    medians = {
        name: [statistics.median(column) for column in zip(*times, strict=True)]
        for name, times in taken.items()
    }
    floor = medians[FLOOR]
    print(f"medians of {runs} runs, and their ratios to {FLOOR} (goal: at most {GOAL})")
    print(f"{'clock, ms':>9} {'ratio':>6} {'processor, ms':>14} {'ratio':>6}")
    for name, (clock, processor) in medians.items():
        print(
            f"{clock * 1e3:>9.1f} {clock / floor[0]:>6.2f} {processor * 1e3:>14.1f} "
            f"{processor / floor[1]:>6.2f}  {name}"
        )


if __name__ == "__main__":
    main()
