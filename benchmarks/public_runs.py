"""Ours beside public measurements of real runs: rows, summary by source, what is left out and
why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from statistics import median
from typing import Any

from fit_runs import verdicts
from megatron_runs import megatron, simumax
from published_runs import published
from run_rows import Prediction, Row, UnstatedError, rows

SOURCES: dict[str, Callable[[Row], Iterator[Prediction]]] = {
    "megatron_ci": megatron,
    "simumax": simumax,
    "published": published,
}
NAMES = {"megatron_ci": "Megatron-LM CI", "simumax": "SimuMax B200", "published": "published peaks"}

AGAIN = {"published: Megatron-LM 7B", "published: SimuMax"}
"""Sources of published peaks that are other sources' rows once more."""
OTHERS = "published peaks of no source above"

INTRODUCTION = """
## Peaks of real runs

Public measurements (`tests/data/public_runs.json`, with sources) beside what zerocalc says of the job that a row states. No factor was fitted to
them: where a row is far off, a mechanism is missing, and the row stays. `reserved` figures have fragmentation at [ZeRO] §3.2's 0.3 of what comes and
goes within a step; figures of PyTorch's allocator are without the device's runtime. Megatron-LM's readings are of the last rank. What is known to be
missing:

- Blocks and losses that torch.compile fuses keep less: such rows are predicted as eager ones.
- Transformer Engine's flash attention (A100, GB200) copies its output where the micro-batch is above 1; its cuDNN attention (H100) does not.
- Older releases (`lts`) of Megatron-LM's fused cross-entropy hold a further fp32 copy; some GB200 readings were made by a PyTorch whose cuBLAS
  workspaces are Ampere's.
- 8-bit products are predicted as 16-bit ones.
- Experts: every rank is taken to receive as many tokens as it sends; dispatchers other than the all-to-all (`ep8`: all-gather), and all-to-alls that
  run beside another micro-batch's computing (`a2a_ovlp`), are not modelled.
"""


@cache
def all_predictions() -> tuple[tuple[Prediction, ...], tuple[tuple[str, str, str], ...]]:
    """Every figure that can be predicted, and (source, row, reason) of the rows that cannot."""
    found: list[Prediction] = []
    left: list[tuple[str, str, str]] = []
    for source, predict in SOURCES.items():
        for row in rows(source):
            try:
                found += predict(row)
            except UnstatedError as reason:
                left.append(
                    (
                        NAMES[source],
                        str(row.get("test") or row.get("id") or row.get("case")),
                        str(reason),
                    )
                )
    return tuple(found), tuple(left)


def errors() -> dict[tuple[str, str], list[float]]:
    """Absolute errors by source and figure, in rising order; all published peaks also as one
    source.
    """
    out: dict[tuple[str, str], list[float]] = {}
    for each in all_predictions()[0]:
        sources = [each.source]
        if each.source.startswith("published:"):
            sources += (
                [NAMES["published"]] if each.source in AGAIN else [NAMES["published"], OTHERS]
            )
        for source in sources:
            out.setdefault((source, each.figure), []).append(abs(each.error))
    return {key: sorted(found) for key, found in out.items()}


def percentile(rising: list[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    return rising[min(len(rising) - 1, max(0, -int(-share * len(rising) // 1) - 1))]


def summary() -> list[str]:
    """One line of a table for each source."""
    lines = [
        "| source | figure | rows | median error | 90th percentile | largest |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for (source, figure), found in errors().items():
        cells = [
            f"{100 * value:.2f} %" for value in (median(found), percentile(found, 0.9), found[-1])
        ]
        lines.append(f"| {source} | {figure} | {len(found)} | {' | '.join(cells)} |")
    fitting = verdicts()
    lines.append(
        f"| llm-foundry | runs that fitted | {len(fitting)} | "
        f"{sum(fits is not True for _, fits, _ in fitting)} called misfits | | |"
    )
    return lines


def section() -> list[str]:
    """The page's section."""
    found, left = all_predictions()
    lines = [
        INTRODUCTION,
        *summary(),
        "",
        "| source | run | figure | predicted, MiB | measured | error |",
        "|---|---|---|---:|---:|---:|",
    ]
    for p in found:
        lines.append(
            f"| {p.source} | {p.name} | {p.figure} | {p.predicted / 2**20:,.1f} | "
            f"{p.measured / 2**20:,.1f} | {100 * p.error:+.2f} % |"
        )
    lines += ["", "Left out:", "", "| source | rows | why |", "|---|---:|---|"]
    counted = Counter((source, reason) for source, _, reason in left)
    lines += [
        f"| {source} | {count} | {reason} |" for (source, reason), count in counted.most_common()
    ]
    return lines


def unrounded() -> dict[str, Any]:
    """All of it in bytes, for docs/accuracy.json."""
    found, left = all_predictions()
    return {
        "rows": [
            {
                "source": p.source,
                "run": p.name,
                "figure": p.figure,
                "predicted_bytes": p.predicted,
                "measured_bytes": p.measured,
                "error": p.error,
            }
            for p in found
        ],
        "summary": [
            {
                "source": source,
                "figure": figure,
                "rows": len(e),
                "median": median(e),
                "percentile_90": percentile(e, 0.9),
                "largest": e[-1],
            }
            for (source, figure), e in errors().items()
        ],
        "fits": [
            {
                **{k: row[k] for k in ("model", "seq", "gpus", "gpu", "micro_batch")},
                "fits": fits,
                "peak_bytes": p,
            }
            for row, fits, p in verdicts()
        ],
        "left_out": [
            {"source": source, "run": run, "reason": reason} for source, run, reason in left
        ],
    }
