"""Public measurements of real runs: the rows, and what a prediction of one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from zerocalc.estimator import estimate
from zerocalc.spec.job import Job

DATA = Path(__file__).parents[1] / "tests" / "data" / "public_runs.json"
GIB = 1 << 30
Row = dict[str, Any]
UNMEASURED = {"allocated": {"runtime", "fragmentation"}, "reserved": {"runtime"}, "device": set()}
"""Kinds of terms that a meter does not see: PyTorch's allocator hands out or reserves, and
nvidia-smi reads the whole device.
"""


class UnstatedError(ValueError):
    """A row that doesn't state enough, or whose settings zerocalc does not model; the reason is the
    message.
    """


class Prediction(NamedTuple):
    """One figure of a row beside ours, in the same unit."""

    source: str
    name: str
    figure: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Ours over theirs, less one."""
        return self.predicted / self.measured - 1


def rows(source: str) -> list[Row]:
    """The rows of one source."""
    found: list[Row] = json.loads(DATA.read_text("utf-8"))[source]["rows"]
    return found


def peak(job: Job, meter: str = "allocated") -> int:
    """The peak that a meter shows [bytes]."""
    gpu = estimate(job).memory.gpu
    unseen = UNMEASURED[meter]
    total = gpu.peak_bytes if "fragmentation" in unseen else gpu.reserved_bytes
    return total - sum(t.bytes for t in gpu.terms if t.kind == "runtime" and "runtime" in unseen)
