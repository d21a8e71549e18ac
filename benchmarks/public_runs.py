"""Ours beside public measurements of real runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megatron_runs import megatron, simumax
from published_runs import published
from run_rows import Prediction, Row, Unstated, rows

SOURCES: dict[str, Callable[[Row], Iterator[Prediction]]] = {"megatron_ci": megatron, "simumax": simumax, "published": published}


def all_predictions() -> tuple[list[Prediction], list[tuple[str, str, str]]]:
    """Every figure that can be predicted, and (source, row, reason) of the rows that cannot."""
    found: list[Prediction] = []
    left: list[tuple[str, str, str]] = []
    for source, predict in SOURCES.items():
        for row in rows(source):
            try:
                found += predict(row)
            except Unstated as reason:
                left.append((source, str(row.get("test") or row.get("id") or row.get("case")), str(reason)))
    return found, left
