"""Steps of published runs in time beside ours: one efficiency of kernels for each GPU, links at
their nominal bandwidth.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import fit_runs
from run_rows import Prediction, rows

from zerocalc.estimator import estimate
from zerocalc.results import Timing
from zerocalc.spec.job import Job

PUBLISHED = Path(__file__).parents[1] / "tests" / "data" / "published"
A100_TERAFLOPS = 312.0
GPT = {"vocab": 51200, "positions": 2048}
NETWORK = {"a100_40gb": "1600Gbps", "a100_80gb": "1600Gbps", "h100_80gb": "3200Gbps"}
"""Of a node: llm-foundry's A100s as its page says (RoCE); of its H100s nothing is said, and a DGX's
is taken.
"""

INTRODUCTION = """
## Throughput

Steps of published runs beside ours. The kernels of all runs are taken to reach one share of the dense peak (0.55 unless a GPU's preset has its own),
so that these errors say what that assumption is worth: small matrices reach less, large ones on few GPUs more. What no assumption explains: ZeRO-3 in
[Meg]'s table 2 at two sequences and one a GPU waits for some 16 GB/s a node, a twelfth of what its network cards send together.

"""


def _published(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _time(**parts: Any) -> Timing:
    time = estimate(Job.model_validate(parts)).time
    assert time is not None
    return time


def _shape(row: dict[str, str]) -> dict[str, Any]:
    return {"kind": "gpt2", **{key: int(row[key]) for key in ("layers", "hidden", "heads")}, **GPT}


def megatron() -> Iterator[Prediction]:
    """[Meg] table 1: tensor and pipeline parallelism, everything recomputed; the schedule's
    interleaving is not printed, and none is taken.
    """
    for row in _published("megatron_sc21_table1"):
        tp, pp, gpus = int(row["tp"]), int(row["pp"]), int(row["gpus"])
        time = _time(
            model=_shape(row),
            cluster={"gpus": gpus, "node": "dgx-a100"},
            framework="megatron",
            zero={"stage": 0},
            parallel={"tp": tp, "pp": pp},
            training={
                "seq": 2048,
                "accumulation": int(row["gbs"]) * tp * pp // gpus,
                "recompute": "full",
            },
        )
        yield Prediction(
            "[Meg] table 1",
            f"{row['params_B']}B, {gpus} GPUs",
            "TFLOP/s a GPU",
            time.hfu * A100_TERAFLOPS,
            float(row["TF_per_gpu"]),
        )


def zero_3() -> Iterator[Prediction]:
    """[Meg] table 2: ZeRO-3 without model parallelism, one batch spread over more and more GPUs."""
    shapes = {
        "174.6": {"layers": 96, "hidden": 12288, "heads": 96},
        "529.6": {"layers": 105, "hidden": 20480, "heads": 128},
    }
    for row in _published("megatron_sc21_table2"):
        if row["scheme"] == "ZeRO-3":
            gpus, micro_batch = int(row["gpus"]), int(row["mbs"])
            time = _time(
                model={"kind": "gpt2", **shapes[row["params_B"]], **GPT},
                cluster={"gpus": gpus, "node": "dgx-a100"},
                framework="deepspeed",
                zero={"stage": 3},
                training={"seq": 2048, "micro_batch": micro_batch, "recompute": "full"},
            )
            name = f"ZeRO-3 {row['params_B']}B, {gpus} GPUs, {micro_batch} a GPU"
            yield Prediction(
                "[Meg] table 2",
                name,
                "TFLOP/s a GPU",
                time.hfu * A100_TERAFLOPS,
                float(row["TF_per_gpu"]),
            )


def recomputation() -> Iterator[Prediction]:
    """[SP] table 5: full recomputation, and selective with sequence parallelism."""
    shapes = {row["model"]: row for row in _published("megatron_recompute_configs")}
    for row in _published("megatron_recompute_table5"):
        shape = shapes[row["model"]]
        tp, pp, gpus = (int(shape[key]) for key in ("tp", "pp", "gpus"))
        micro_batches = int(shape["gbs"]) // (int(shape["mbs"]) * gpus // (tp * pp))
        for how, figure in (("full", "full_seconds"), ("selective", "present_seconds")):
            time = _time(
                model=_shape(shape),
                cluster={"gpus": gpus, "node": "dgx-a100"},
                framework="megatron",
                zero={"stage": 0},
                parallel={
                    "tp": tp,
                    "pp": pp,
                    "interleave": int(shape["interleave_v"]),
                    "sequence_parallel": how == "selective",
                },
                training={
                    "seq": 2048,
                    "micro_batch": int(shape["mbs"]),
                    "accumulation": micro_batches,
                    "recompute": how,
                },
            )
            yield Prediction(
                "[SP] table 5",
                f"{row['model']}, {how}",
                "seconds a step",
                time.step_seconds,
                float(row[figure]),
            )


def foundry() -> Iterator[Prediction]:
    """llm-foundry's MPT models on FSDP; runs in 8-bit products, whose utilisation is of another
    peak, are left out.
    """
    for row in rows("llmfoundry"):
        if row["precision"] != "amp_fp8":
            job = fit_runs.job(row)
            cluster = job.cluster.model_dump() | {"inter_node": NETWORK[row["gpu"]]}
            time = estimate(Job.model_validate({**job.model_dump(), "cluster": cluster})).time
            assert time is not None
            name = (
                f"{row['model']}, {row['gpus']} {row['gpu']}, s {row['seq']}, b "
                f"{row['micro_batch']}{', recomputed' if row['recompute'] else ''}"
            )
            yield Prediction(
                f"llm-foundry, {row['gpu'].replace('_', ' ')}",
                name,
                "MFU, %",
                100 * time.mfu,
                row["mfu"],
            )


def steps() -> list[Prediction]:
    """All of them."""
    return [*megatron(), *zero_3(), *recomputation(), *foundry()]


def summary() -> list[str]:
    """One line of a table for each source."""
    found, lines = (
        steps(),
        [
            "| source | figure | rows | median error | 90th percentile | largest |",
            "|---|---|---:|---:|---:|---:|",
        ],
    )
    for source in dict.fromkeys(step.source for step in found):
        own = [step for step in found if step.source == source]
        errors = sorted(abs(step.error) for step in own)
        high = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        lines.append(
            f"| {source} | {own[0].figure} | {len(own)} | {100 * median(errors):.1f} % | "
            f"{100 * high:.1f} % | {100 * errors[-1]:.1f} % |"
        )
    return lines


def section() -> list[str]:
    """The page's section."""
    lines = [
        *INTRODUCTION.splitlines(),
        *summary(),
        "",
        "| source | run | figure | predicted | measured | error |",
        "|---|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {s.source} | {s.name} | {s.figure} | {s.predicted:.1f} | {s.measured:.1f} | "
        f"{100 * s.error:+.1f} % |"
        for s in steps()
    ]
    return lines


def unrounded() -> list[dict[str, Any]]:
    """All of it, for docs/accuracy.json."""
    return [{**step._asdict(), "error": step.error} for step in steps()]
