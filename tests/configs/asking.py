"""A job asked for with --config, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.running import refused, run

Table = dict[str, Any]
BASE = ("plan", "--model", "llama-3-8b", "--seq", "2048")
ON_8 = (*BASE, "--gpus", "8")


def written(content: Table | str, name: str = "config.json") -> str:
    Path(name).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return name


def answer(
    content: Table | str, *flags: str, name: str = "config.json", base: tuple[str, ...] = ON_8
) -> Table:
    ran = run(*base, "--config", written(content, name), *flags, "--json")
    assert ran.status == 0, ran.err
    found: Table = json.loads(ran.out)
    return found


def job(
    content: Table | str, *flags: str, name: str = "config.json", base: tuple[str, ...] = ON_8
) -> Table:
    found: Table = answer(content, *flags, name=name, base=base)["job"]
    return found


def value(table: Table, path: str) -> Any:
    for part in path.split("."):
        table = table[part]
    return table


def line(
    content: Table | str, *flags: str, name: str = "config.json", base: tuple[str, ...] = ON_8
) -> str:
    return refused(run(*base, "--config", written(content, name), *flags, "--json"))


def zero(stage: int = 3, **keys: Any) -> Table:
    return {
        "zero_optimization": {"stage": stage, **keys},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
    }
