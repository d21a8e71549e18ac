"""The checks that cross a pipeline's stages with a job's layers, its micro-batches and its
framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocalc.spec.base import FieldError

if TYPE_CHECKING:
    from zerocalc.spec.job import Job


def check_pipeline(job: Job) -> None:
    """Raise `FieldError` if layers cannot be assigned to stages, or micro-batches to interleaved
    ones.
    """
    p, layers = job.parallel, job.model.layer_count
    if p.interleave > 1:
        _check_interleaving(job)
    if layers and p.first_stage_layers is None and p.last_stage_layers is None:
        _check_even(job, layers)
    elif layers:
        _check_given(job, layers)


def _check_even(job: Job, layers: int) -> None:
    p, framework = job.parallel, job.framework
    chunks = p.pp * p.interleave
    if layers % chunks and not framework.uneven_stages:
        of = f"stages of {p.interleave} chunks" if p.interleave > 1 else "stages"
        raise FieldError(
            "parallel.pp",
            f"{p.pp} {of} do not divide the {layers} layers, and {framework.name} "
            "assigns layers evenly only; give first_stage_layers or last_stage_layers",
        )
    if (
        framework.ends_as_layers
        and (layers + 2 * framework.ends_as_layers) // chunks <= framework.ends_as_layers
    ):
        raise FieldError(
            "parallel.pp",
            f"{framework.name} counts embedding and head as layers: of {chunks} "
            f"stages, one gets none of the {layers} layers",
        )


def _check_given(job: Job, layers: int) -> None:
    """Check that the layers given for the first and last stage leave enough for the others."""
    p, framework = job.parallel, job.framework
    given = {
        "parallel.first_stage_layers": p.first_stage_layers,
        "parallel.last_stage_layers": p.last_stage_layers,
    }
    name, counts = (
        next(name for name, count in given.items() if count is not None),
        [count for count in given.values() if count is not None],
    )
    left, between = layers - sum(counts), p.pp - len(counts)
    if left < between or (left and not between):
        raise FieldError(name, f"leaves {max(left, 0)} of {layers} layers for {between} stages")
    uneven = bool(between and left % between)
    if uneven and not framework.uneven_stages:
        raise FieldError(
            name,
            f"{between} stages do not divide the {left} remaining layers, and "
            f"{framework.name} assigns layers evenly only",
        )
    each = [*counts, left // between] if between else counts
    if p.interleave > 1 and (uneven or any(count % p.interleave for count in each)):
        raise FieldError(name, f"{p.interleave} chunks do not divide the layers of each stage")


def _check_interleaving(job: Job) -> None:
    p, micro_batches, layers = job.parallel, job.training.accumulation, job.model.layer_count
    if p.pp == 1:
        raise FieldError(
            "parallel.interleave",
            "needs pp above 1: it divides each pipeline stage into chunks of layers",
        )
    if layers and p.pp * p.interleave > layers:
        raise FieldError(
            "parallel.interleave",
            f"{p.pp} stages of {p.interleave} chunks are more than the {layers} layers",
        )
    if micro_batches % p.pp:
        raise FieldError(
            "parallel.interleave",
            f"needs micro-batches in groups of pp: {p.pp} does not divide the {micro_batches} per "
            "step (training.accumulation)",
        )
