"""The logits, and what a loss makes of them."""

from __future__ import annotations

from zerocalc.formulas.activations import (
    chunks_by_width,
    head_bytes,
    hidden_bytes,
    logits_bytes,
)
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import Term, term
from zerocalc.model.architecture import Architecture
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES


def loss_terms(job: Job, arch: Architecture, tokens: int) -> list[Term]:
    """The logits, and what the loss makes of them."""
    loss, tp, compute = job.loss, job.parallel.tp, job.recipe.compute
    chunks = (
        chunks_by_width(tokens=tokens, vocab=arch.vocab, hidden=arch.hidden)
        if loss.by_width
        else loss.chunks
    )
    holding = {
        "always",
        "frozen" if arch.frozen else "trained",
        "fp32" if compute == "fp32" else "16-bit",
    }
    terms = []
    for row in loss.rows:
        if row.when not in holding:
            continue
        size = DTYPE_BYTES[compute if row.dtype == "compute" else row.dtype]
        if row.of == "weight":
            entry = term(
                row.name,
                "logits",
                row.moments,
                head_bytes,
                vocab=arch.vocab,
                hidden=arch.hidden,
                tensor_parallel=tp,
                bytes_per_element=size,
            )
        elif row.of == "hidden":
            entry = term(
                row.name,
                "logits",
                row.moments,
                hidden_bytes,
                tokens=tokens,
                hidden=arch.hidden,
                bytes_per_element=size,
            )
        else:
            part = ceil_div(tokens, chunks if row.of == "chunk" else 1)
            entry = term(
                row.name,
                "logits",
                row.moments,
                logits_bytes,
                tokens=part,
                vocab=arch.vocab,
                tensor_parallel=tp,
                bytes_per_element=size,
            )
        terms.append(entry)
    return terms
