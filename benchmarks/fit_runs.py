"""Runs of MPT models that are known to have fitted, as jobs: a verdict that they don't is wrong."""

from __future__ import annotations

from run_rows import Row, rows

from zerocalc.estimator import estimate
from zerocalc.spec.job import Job

DIMENSIONS = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
"""Hidden size, layers and heads: llm-foundry, scripts/train/yamls/pretrain/mpt-*.yaml; the rows'
parameter counts agree.
"""
VOCAB = 50368
GPUS = {"h100_80gb": "h100-80g", "a100_40gb": "a100-40g", "a100_80gb": "a100-80g"}


def job(row: Row) -> Job:
    """FSDP1 with fp32 shards and bf16 compute; 8-bit products keep what 16-bit ones do."""
    hidden, layers, heads = DIMENSIONS[row["model"]]
    model = {
        "kind": "gpt2",
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocab": VOCAB,
        "positions": row["seq"],
        "activation": "gelu",
        "dropout": 0,
    }
    training = {
        "seq": row["seq"],
        "micro_batch": row["micro_batch"],
        "accumulation": row["accumulation"],
        "recompute": "full" if row["recompute"] else "none",
    }
    given = {
        "model": model,
        "cluster": {"gpus": row["gpus"], "gpu": GPUS[row["gpu"]]},
        "framework": "fsdp1",
        "loss": "compute-dtype",
        "zero": {"stage": 3 if row["sharding"] == "FULL_SHARD" else 2},
        "training": training,
    }
    return Job.model_validate(given)


def verdicts() -> list[tuple[Row, bool | None, int]]:
    """Every row, whether it fits, and our peak [bytes]."""
    out = []
    for row in rows("llmfoundry"):
        answer = estimate(job(row))
        out.append((row, answer.fits, answer.memory.gpu.reserved_bytes))
    return out
