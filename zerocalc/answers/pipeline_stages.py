"""A pipeline stage by stage: what each one holds, stages that are alike together."""

from __future__ import annotations

from zerocalc.estimator import estimate_with_assumptions
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import Moment, record, replaced
from zerocalc.memory.activations import in_flight
from zerocalc.sharding.rank import on_stage, rank
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job


@record
class StageRow:
    """Stages ``first`` to ``last`` of a pipeline at one ZeRO stage, each alike [elements and bytes
    per GPU].

    ``in_flight``: micro-batches held at once, or chunks of layers, each of one micro-batch, under
    interleaving. ``activations_bytes`` are those at the peak. ``copied_parameters``: of
    ``parameters``, those of a tied head's own copy of the embedding.
    """

    name: str
    stage: int
    first: int
    last: int
    layers: int
    parameters: int
    copied_parameters: int
    in_flight: int
    states_bytes: int
    activations_bytes: int | None
    peak_bytes: int
    peak_moment: Moment
    fits: bool | None


def stages_table(job: Job) -> tuple[StageRow, ...]:
    """The rows of a job's pipeline, for each ZeRO stage asked for. Raises `FieldError` where only
    an even share is known.
    """
    if job.even_share or job.model.is_bare:
        raise FieldError(
            "parallel.pp",
            "only an even share is known of a bare count, of adapters and of what is "
            "partly frozen: no stage by itself",
        )
    rows: list[StageRow] = []
    own = [
        (seen, rank(seen))
        for seen in [on_stage(job, number) for number in range(1, job.parallel.pp + 1)]
    ]
    for stage in job.stages:
        for number, share in enumerate(own, 1):
            answer, _ = estimate_with_assumptions(share[0], stage, [share])
            gpu, arch, whole = answer.memory.gpu, share[1].arch, share[1].whole
            copied = (
                ceil_div(whole.vocab * whole.hidden, job.parallel.tp)
                if whole and whole.tied and number == job.parallel.pp > 1
                else 0
            )
            row = StageRow(
                answer.name,
                stage,
                number,
                number,
                arch.layers if arch else job.model.layer_count or 0,
                share[1].parameters,
                copied,
                in_flight(share[0]),
                gpu.states_bytes,
                gpu.at_peak.activations_bytes if gpu.activations_known else None,
                gpu.peak_bytes,
                gpu.peak_moment,
                answer.fits,
            )
            if rows and replaced(row, first=rows[-1].first) == replaced(rows[-1], last=number):
                rows[-1] = replaced(rows[-1], last=number)
            else:
                rows.append(row)
    return tuple(rows)
