"""A plan's entries with their formulas written out: symbols, numbers, result, source, assumption."""

from __future__ import annotations

from typing import Any

from zerocalc.document import plain
from zerocalc.ledger import Term, record
from zerocalc.memory.activations import COMPONENT_SUFFIX
from zerocalc.modules.rank import rank
from zerocalc.results import Estimate, Plan
from zerocalc.schedule import Collective


@record
class TensorShare:
    """One tensor that a layer saves: its bytes on one rank, and their share of all that the layer saves."""

    module: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    divisor: int
    bytes: int
    share: float
    rebuilt: bool


@record
class Explanation:
    """One candidate's entries that were asked for."""

    name: str
    stage: int
    terms: tuple[Term, ...]
    collectives: tuple[Collective, ...]
    candidate: Estimate


def explain(plan: Plan, term: str | None = None) -> list[Explanation]:
    """The entries of each candidate; with ``term``, those whose name, kind or operation holds that text."""
    out = []
    for candidate in plan.candidates:
        host = candidate.memory.cpu.terms if candidate.memory.cpu else ()
        terms = (*candidate.memory.gpu.terms, *host)
        collectives = candidate.communication.collectives
        if term is not None:
            wanted = term.lower()
            terms = tuple(t for t in terms if wanted in t.name.lower() or wanted == t.kind)
            collectives = tuple(c for c in collectives if wanted in c.what.lower() or wanted in c.op or wanted == c.group)
        out.append(Explanation(candidate.name, candidate.stage, terms, collectives, candidate))
    return out


def saved_tensors(plan: Plan, terms: tuple[Term, ...]) -> list[TensorShare]:
    """The tensors behind activation terms, one layer's, in the order in which they are saved."""
    arch = rank(plan.job).arch
    wanted = [t for t in terms if t.kind == "activations"]
    if arch is None or not arch.saves or not wanted:
        return []
    recompute = plan.job.training.recompute
    components = {t.name.removesuffix(COMPONENT_SUFFIX) for t in wanted}
    chosen = [(m, t) for m in arch.layer for t in m.saved if recompute == "full" or m.component in components]
    total = sum(t.bytes for m in arch.layer for t in m.saved)
    return [
        TensorShare(
            m.name, t.name, t.shape, t.dtype, t.divisor, t.bytes, t.bytes / total, recompute == "full" or (recompute == "selective" and t.rebuilt)
        )
        for m, t in chosen
    ]


def document(plan: Plan, explanations: list[Explanation]) -> dict[str, Any]:
    """The JSON of an explanation: each entry with its formula's text, and that text with the numbers put in."""

    def written(entry: Term | Collective) -> dict[str, Any]:
        return {**plain(entry), "symbols": entry.formula.symbols, "numbers": entry.formula.substituted(entry.inputs)}

    return {
        "schema_version": plan.schema_version,
        "job": plain(plan.job),
        "stages": [
            {
                "name": e.name,
                "stage": e.stage,
                "terms": [written(t) for t in e.terms],
                "collectives": [written(c) for c in e.collectives],
                "states_bytes": e.candidate.memory.gpu.states_bytes,
                "peak_moment": e.candidate.memory.gpu.peak_moment,
                "peak_bytes": e.candidate.memory.gpu.peak_bytes,
                "sent_bytes_per_gpu": e.candidate.communication.sent_bytes_per_gpu,
                "unknown_traffic": list(e.candidate.communication.unknown),
                "tensors": [plain(t) for t in saved_tensors(plan, e.terms)],
            }
            for e in explanations
        ],
        "assumptions": list(plan.assumptions),
        "notes": list(plan.notes),
    }
