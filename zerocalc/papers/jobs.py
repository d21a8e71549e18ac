"""Jobs as papers describe them, and what a recomputed value comes with."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

from zerocalc.formulas.formula import Written
from zerocalc.ledger import Term, record
from zerocalc.spec.cluster import Cluster
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

MEGATRON_VOCAB = 51200
"""[Meg] §5.1 and [SP] §6: the vocabulary of all their models."""


Recompute = Literal["none", "selective", "full"]


@record
class Ours:
    """A recomputed value, the formula it stands for, and what that formula gives where the value
    was counted instead.
    """

    value: Fraction
    formula: str | None
    closed: Fraction | None = None


def by(formula: Written[..., Any], **inputs: float) -> Ours:
    """A quantity by a paper's own formula."""
    return Ours(Fraction(formula(**inputs)), formula.text)


def bare(parameters: int, gpus: int, **parts: Any) -> Job:
    """A job of so many parameters without an architecture."""
    return Job.model_validate(
        {"model": {"params": parameters}, **{"cluster": {"gpus": gpus}, **parts}}
    )


def layered(
    shape: dict[str, int],
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
    **zero: bool,
) -> Job:
    """A job of one model replica, its attention keeping its scores as in [SP].

    ``shape``: ``layers``, ``hidden``, ``heads``, ``seq``, ``micro_batch``, ``tp``.
    """
    return Job.model_validate(
        {
            "model": gpt(shape["layers"], shape["hidden"], shape["heads"], shape["seq"]),
            "cluster": Cluster(gpus=shape["tp"]),
            "training": {
                "seq": shape["seq"],
                "micro_batch": shape["micro_batch"],
                "recompute": recompute,
                "attention": "eager",
            },
            "parallel": {"tp": shape["tp"], "sequence_parallel": sequence_parallel},
            "zero": zero,
        }
    )


def gpt(layers: int, hidden: int, heads: int, seq: int) -> Model:
    """A GPT with the vocabulary of [Meg] and [SP]."""
    return Model.model_validate(
        {
            "kind": "gpt2",
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "vocab": MEGATRON_VOCAB,
            "positions": seq,
        }
    )


def bytes_of(terms: tuple[Term, ...], kind: str) -> int:
    """Bytes of all terms of a kind."""
    return sum(term.bytes for term in terms if term.kind == kind)
