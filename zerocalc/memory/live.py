"""Where windows decide what is gathered: what is live at the instants of a step, and what more
there is between them, while layers run.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from zerocalc.formulas.activations import logits_bytes
from zerocalc.formulas.buffers import within_bytes
from zerocalc.frameworks.zero3_prefetch import Gathers
from zerocalc.ledger import ACTIVATION_KINDS, Block, Moment, Term, span, term
from zerocalc.model.architecture import Architecture
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework_rows import Holding
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

UNTIL_BACKWARD = span("forward", "backward_start")
PASSES: dict[Moment, str] = {"forward": "forward", "backward_start": "backward"}
"""The pass within which there may be more than at a moment."""


def live(known: Gathers, moment: Moment) -> int:
    """Elements gathered at an instant: at forward's end and at the loss, while the last layer is in
    backward, or the first module.
    """
    return {
        "forward": known.between,
        "loss": known.between,
        "backward_start": known.last_layer,
    }.get(moment, known.last)


def more_within(
    job: Job, rank: Rank, row: Holding, known: Gathers, activations: Block
) -> list[Term]:
    """What a pass has, at most, beyond what its instant holds of gathered parameters and
    activations.

    While a layer runs more may be gathered than at the instants, when not all activations exist
    yet, or some are gone.
    """
    if row.first not in PASSES or rank.arch is None:
        return []
    kept = _Kept(job, rank, rank.arch, activations)
    forward = row.first == "forward"
    beside, instant = (
        (kept.in_forward(), kept.at_forward) if forward else (kept.in_backward(), kept.at_backward)
    )
    size = DTYPE_BYTES[job.dtype_of(row.dtype)]
    gathered, most = max(
        zip([elements * size for elements in known.most[not forward]], beside, strict=True), key=sum
    )
    entry = term(
        f"{row.name}, more within {PASSES[row.first]}",
        row.kind,
        (row.first,),
        within_bytes,
        gathered_bytes=gathered,
        kept_bytes=most,
        instant_bytes=live(known, row.first) * size + instant,
    )
    return [entry] if entry.bytes else []


class _Kept:
    """Bytes of activations that come and go, place by place as `Gathers` has them: before the
    layers, each layer, the norms, the head.
    """

    def __init__(self, job: Job, rank: Rank, arch: Architecture, activations: Block) -> None:
        terms = [t for t in activations.terms if t.tier == "gpu" and t.kind in ACTIVATION_KINDS]
        ends = [t for t in terms if t.moments[-1] in ("forward", "loss")]
        logits = [t for t in ends if t.kind == "logits"]
        self.layers = _until_each(arch, _sum(t for t in terms if t.moments == UNTIL_BACKWARD))
        self.working = _sum(t for t in terms if t.moments[0] == "backward_start")
        self.inputs = _sum(t for t in ends if t.kind != "logits")
        compute = job.recipe.compute
        one = logits_bytes.function(
            tokens=rank.tokens,
            vocab=arch.vocab,
            tensor_parallel=job.parallel.tp,
            bytes_per_element=DTYPE_BYTES[compute],
        )
        held = sum(
            [
                row.of == "logits" and row.dtype == "compute" and len(row.moments) > 1
                for row in job.loss.rows
            ]
        )
        # The head has made its logits, or has got their gradient, beside those that the caller
        # holds; all else is the loss's own.
        self.made = min(one, _sum(t for t in logits if "forward" in t.moments))
        self.returned = min((1 + held) * one, _sum(t for t in logits if "loss" in t.moments))
        self.at_forward = self.layers[-1] + _sum(t for t in ends if "forward" in t.moments)
        self.at_backward = self.layers[-1] + self.working

    def in_forward(self) -> list[int]:
        ends = self.layers[-1] + self.inputs
        return [*self.layers, ends, ends + self.made]

    def in_backward(self) -> list[int]:
        ends = self.layers[-1] + self.inputs
        return [
            0,
            *[amount + self.working for amount in self.layers[1:]],
            ends,
            ends + self.returned,
        ]


def _sum(terms: Iterable[Term]) -> int:
    return sum([t.bytes for t in terms])


def _until_each(arch: Architecture, whole: int) -> list[int]:
    """Of what all layers keep together, what none, the first, the first two … keep."""
    sizes = [
        sum([module.kept_bytes for module in modules]) if whole else 0
        for count, modules in arch.groups
        for _ in range(count)
    ]
    total = sum(sizes)
    return [whole * amount // total if total else 0 for amount in accumulate(sizes, initial=0)]
