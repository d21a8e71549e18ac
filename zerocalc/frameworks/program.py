"""What a framework's file exports: its program, and the few facts that are read before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zerocalc.ledger import record
from zerocalc.sharding.padding import Rule
from zerocalc.spec.job import Job

if TYPE_CHECKING:
    from zerocalc.frameworks.step import Step


def _own_stage(job: Job, stage: int) -> int:
    return stage


@record
class Program:
    """``run`` writes one optimizer step. ``padding``: how a stage rounds its shards up, where it
    does. ``limits``: what it does not model, a sentence or two each. ``sharded_as``: the ZeRO stage
    as which the recipe's rows are sharded.
    """

    run: Callable[[Step], None]
    padding: Mapping[int, Rule]
    limits: tuple[str, ...]
    sharded_as: Callable[[Job, int], int] = _own_stage

    def pads(self, stage: int) -> Rule:
        """How a stage rounds its shards up."""
        return self.padding.get(stage, "none")
