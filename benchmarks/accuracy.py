"""Ours beside published tables and measured activations, as Markdown: what docs/accuracy.md holds.

python benchmarks/accuracy.py > docs/accuracy.md
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from zerocalc.modules.base import layout
from zerocalc.modules.layers import architecture
from zerocalc.papers import all_tables, summary
from zerocalc.spec.job import Job

MEASURED = Path(__file__).parents[1] / "tests" / "data" / "measured_activations.csv"

INTRODUCTION = """# Accuracy

Printed by `python benchmarks/accuracy.py`; a test refuses this page when it is stale. Nothing here is fitted: where a measurement differs, the
mechanism that makes the difference is named, or the difference stays.

## Published tables

`zerocalc paper TABLE` shows every cell. A cell without a verdict is one that the source does not print exactly.

| table | |
|---|---|"""

ACTIVATIONS = """
## Activations that one layer saves

Bytes that PyTorch keeps for backward, by run, beside the sum of the tensors that zerocalc lists for the layer. The runs were made without a GPU, on
fake tensors; their sources are in `tests/data/measured_activations.csv`. The list describes fused norms and activations, without their statistics:

- torchtitan and megatron-core also keep each norm's statistics (4 bytes a token and RMSNorm, 8 a LayerNorm): under 0.1 %.
- megatron-core's own dropout and softmax are those of *Reducing Activation Recomputation*, which the list follows to the byte.
- Hugging Face's GPT-2 with exact GELU agrees as well; its default `gelu_new` is not fused and keeps 24·s·b·h more, which is not counted yet.
- Hugging Face's Llama keeps 8·s·b·h more a layer (norms computed in fp32, step by step), which is not counted yet.

| implementation | h | heads | s | b | tp | dropout | attention | recompute | measured, bytes | ours, bytes | error |
|---|---:|---:|---:|---:|---:|---:|---|---|---:|---:|---:|"""


def rows() -> Iterator[tuple[dict[str, str], int]]:
    """Each measured run and our bytes for one layer."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        for run in csv.DictReader(file):
            yield run, predicted(run)


def predicted(run: dict[str, str]) -> int:
    """Bytes that one layer keeps, from the modules' list of tensors; under full recomputation, its input."""
    tp = int(run["tp"])
    model = {name: run[name] for name in ("kind", "hidden", "heads", "kv_heads", "ffn")} | {
        "layers": 1,
        "dropout": run["dropout"],
        "positions": run["seq"],
    }
    job = Job.model_validate(
        {
            "model": model,
            "cluster": {"gpus": tp},
            "training": {name: run[name] for name in ("seq", "micro_batch", "attention", "recompute")},
            "parallel": {"tp": tp, "sequence_parallel": run["sequence_parallel"] == "true"},
        }
    )
    arch = architecture(job.model, layout(job, int(run["seq"])))
    assert arch is not None
    if run["recompute"] == "full":
        return arch.layer[0].saved[0].bytes
    return sum(tensor.bytes for module in arch.layer for tensor in module.saved)


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    lines += [f"| {table.name} | {summary(table)} |" for table in all_tables()]
    lines.append(ACTIVATIONS)
    errors: dict[str, list[float]] = {}
    for run, ours in rows():
        measured = int(run["measured_bytes_per_layer"])
        error = 100 * (ours - measured) / measured
        name = run["source"].split(",")[0]
        errors.setdefault(name, []).append(abs(error))
        parallel = run["tp"] + (" + SP" if run["sequence_parallel"] == "true" else "")
        cells = [name, run["hidden"], run["heads"], run["seq"], run["micro_batch"], parallel, run["dropout"], run["attention"], run["recompute"]]
        lines.append(f"| {' | '.join(cells)} | {measured:,} | {ours:,} | {error:+.3f} % |")
    lines += ["", "| implementation | runs | median error | largest error |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {len(found)} | {median(found):.3f} % | {max(found):.3f} % |" for name, found in errors.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
