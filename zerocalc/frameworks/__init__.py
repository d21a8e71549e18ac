"""How a step runs under each framework: a short program each, over the ledger and the schedule."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerocalc.frameworks.program import Program

HOMES = {
    "paper": "paper.PROGRAM",
    "deepspeed": "deepspeed.PROGRAM",
    "torch-ddp": "ddp.PROGRAM",
    "fsdp1": "fsdp.FLAT",
    "fsdp2": "fsdp.FULLY_SHARD",
    "torchtitan": "fsdp.TORCHTITAN",
    "megatron": "megatron.PROGRAM",
}
"""Where the program of each framework is; a start loads just the one it needs."""


def program_of(name: str) -> Program:
    """The program of a framework. Raises `LookupError` for one without a line in `HOMES`."""
    if name not in HOMES:
        raise LookupError(f"framework {name} has no program: name its file in frameworks.HOMES")
    file, _, what = HOMES[name].partition(".")
    found: Program = getattr(import_module(f"zerocalc.frameworks.{file}"), what)
    return found
