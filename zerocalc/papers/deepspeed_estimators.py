"""DeepSpeed's memory estimators, by their own formulas."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from zerocalc.formulas import estimators
from zerocalc.papers.jobs import Ours


def estimator(
    *,
    tier: Literal["gpu", "host"],
    stage: int,
    offload: str,
    zero_init: bool,
    older: bool = False,
    parameters: int,
    largest_layer: int,
    gpus_per_node: int,
    nodes: int,
) -> Ours:
    """Bytes by one of the estimators' formulas, per GPU or per node."""
    if older and (tier, stage, offload) == ("gpu", 2, "none"):
        formula = estimators.stage2_gpu_older
    else:
        formula = getattr(estimators.ESTIMATORS[stage, offload, zero_init], tier)
    value = estimators.evaluate(
        formula,
        parameters=parameters,
        largest_layer=largest_layer,
        gpus_per_node=gpus_per_node,
        nodes=nodes,
    )
    return Ours(Fraction(value), formula.text)


QUANTITIES = (estimator,)
"""What a table's file can name."""
