"""Calls of `estimate` per second of one core: python benchmarks/estimate_speed.py.

Every call gets a job of its own that no call has seen before (another sequence length, other GPUs,
another size), so that nothing kept between calls can help. Jobs are made and validated before the
clock starts. Passes over each case and over a fixed loop of plain Python take turns; medians of the
processor's time are shown. The ratio to the loop compares across machines. The goal is `GOAL` calls
per second.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from zerocalc import Job, estimate

GOAL = 10_000
STAGES = (0, 1, 2, 3)
ROUNDS_OF_REFERENCE = 1_000


def bare(number: int) -> dict[str, Any]:
    return {"params": 7_500_000_000 + number}


def gpt2(number: int) -> dict[str, Any]:
    return {"kind": "gpt2", "layers": 12 + number, "hidden": 768, "heads": 12, "positions": 100_000}


def llama(number: int) -> dict[str, Any]:
    return {
        "kind": "llama",
        "layers": 32 + number,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 128256,
    }


MODELS: dict[str, Callable[[int], dict[str, Any]]] = {"bare": bare, "gpt2": gpt2, "llama": llama}


def jobs(
    model: Callable[[int], dict[str, Any]], stage: int, numbers: Iterator[int], count: int
) -> list[Job]:
    """That many jobs, no two alike."""
    return [
        Job.model_validate(
            {
                "model": model(number),
                "cluster": {"gpus": 8 * number},
                "training": {"seq": 1_000 + number, "recompute": "none"},
                "zero": {"stage": stage},
            }
        )
        for number in itertools.islice(numbers, count)
    ]


def reference() -> float:
    """Time of a fixed loop of plain Python [s]."""
    start = time.process_time()
    total = 0
    for number in range(ROUNDS_OF_REFERENCE):
        total += -(-number * 7919 // 64) * 16
    return time.process_time() - start


def one_pass(made: list[Job]) -> float:
    """Time of one call, averaged over a pass [s]."""
    start = time.process_time()
    for job in made:
        estimate(job)
    return (time.process_time() - start) / len(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=9, help="passes over each case (default 9)")
    parser.add_argument("--calls", type=int, default=500, help="calls in a pass (default 500)")
    options = parser.parse_args()

    numbers = itertools.count(1)
    cases = [(name, stage) for name in MODELS for stage in STAGES]
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    loops: list[float] = []
    for _ in range(options.passes):
        for name, stage in cases:
            made = jobs(MODELS[name], stage, numbers, options.calls)
            loops.append(reference())
            taken[name, stage].append(one_pass(made))

    loop = statistics.median(loops)
    print(f"median of {options.passes} passes of {options.calls} calls (goal: {GOAL:,} a second)")
    print(f"{'model':<6} {'stage':>5} {'calls/s':>9} {'us/call':>9} {'loops/call':>11}")
    for (name, stage), times in taken.items():
        each = statistics.median(times)
        print(f"{name:<6} {stage:>5} {1 / each:>9,.0f} {each * 1e6:>9.1f} {each / loop:>11.2f}")
    print(f"loop: {ROUNDS_OF_REFERENCE:,} rounds of plain integer arithmetic, {loop * 1e6:.1f} us")


if __name__ == "__main__":
    main()
