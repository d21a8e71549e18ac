"""A plan for spreadsheets and documents: CSV and Markdown."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable

from zerocalc.render.heading import header, verdict
from zerocalc.render.plans import remarks
from zerocalc.render.rows import memory_rows, traffic_rows, unit_of, unknown_sent
from zerocalc.results import CPU_TRAFFIC, Estimate, Plan, display_name

CSV_COLUMNS: dict[str, Callable[[Estimate], object]] = {
    "name": lambda c: c.name,
    "stage": lambda c: c.stage,
    "weights_bytes": lambda c: c.memory.gpu.bytes_of({"weights"}),
    "gradients_bytes": lambda c: c.memory.gpu.bytes_of({"gradients"}),
    "optimizer_bytes": lambda c: c.memory.gpu.bytes_of({"optimizer"}),
    "states_bytes": lambda c: c.memory.gpu.states_bytes,
    "peak_moment": lambda c: c.memory.gpu.peak_moment,
    "peak_bytes": lambda c: c.memory.gpu.peak_bytes,
    "reserved_bytes": lambda c: c.memory.gpu.reserved_bytes,
    "unknown": lambda c: " ".join(c.memory.gpu.unknown),
    "fits": lambda c: "" if c.fits is None else str(c.fits).lower(),
    "volume_params": lambda c: c.communication.volume_params,
    "ratio_to_dp": lambda c: (
        "" if c.communication.ratio_to_dp is None else c.communication.ratio_to_dp
    ),
    "sent_bytes_per_gpu": lambda c: (
        "" if unknown_sent(c.communication) else c.communication.sent_bytes_per_gpu
    ),
    "host_bytes_per_gpu": lambda c: (
        "" if CPU_TRAFFIC in c.communication.unknown else c.communication.host_bytes_per_gpu
    ),
    "known_sent_bytes_per_gpu": lambda c: c.communication.sent_bytes_per_gpu,
    "unknown_traffic": lambda c: ", ".join(c.communication.unknown),
    "nvme_bytes_per_gpu": lambda c: c.communication.nvme_bytes_per_gpu,
    "cpu_bytes_per_node": lambda c: c.memory.cpu.bytes_per_node if c.memory.cpu else 0,
    "nvme_bytes_per_node": lambda c: c.memory.nvme.bytes_per_node if c.memory.nvme else 0,
    "pipeline_stage": lambda c: "" if c.pipeline_stage is None else c.pipeline_stage,
    "step_seconds": lambda c: "" if c.time is None else c.time.step_seconds,
    "mfu": lambda c: "" if c.time is None else c.time.mfu,
    "tokens_per_second": lambda c: "" if c.time is None else c.time.tokens_per_second,
    "days": lambda c: "" if c.time is None or c.time.days is None else c.time.days,
    "gpu_hours": lambda c: "" if c.time is None or c.time.gpu_hours is None else c.time.gpu_hours,
}


def show_csv(plan: Plan) -> None:
    """Print one line a candidate, in bytes."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for candidate in plan.candidates:
        writer.writerow([pick(candidate) for pick in CSV_COLUMNS.values()])


def show_markdown(plan: Plan) -> None:
    """Print the table as Markdown, with the remarks as a list."""
    unit, size = unit_of(plan)
    names = [display_name(c.name) for c in plan.candidates]
    lines = [str(verdict(plan)), ""] if plan.job.cluster.usable_bytes is not None else []
    lines += ["<br>\n".join(header(plan)), ""]
    lines += [f"| {unit} per GPU | | {' | '.join(names)} |", f"|---|---:|{'---:|' * len(names)}"]
    lines += [
        f"| {row.label.strip()} | {row.coefficient} | {' | '.join(row.cells)} |"
        for row in [*memory_rows(plan, size), *traffic_rows(plan, size)]
    ]
    lines += ["", *(f"- {label}: {text}" for label, text in remarks(plan))]
    sys.stdout.write("\n".join(lines) + "\n")
