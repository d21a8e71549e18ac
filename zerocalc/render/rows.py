"""The rows of a plan's table: memory, then traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zerocalc.answers.explain import PEAK_ROWS
from zerocalc.quantities import byte_unit, figure, format_multiple
from zerocalc.render.console import SHORT_MOMENT
from zerocalc.results import (
    CPU_TRAFFIC,
    NVME_TRAFFIC,
    STATE_KINDS,
    Communication,
    Estimate,
    Kind,
    Plan,
    record,
)

UNKNOWN = "unknown"
FITS = {True: "yes", False: "no", None: UNKNOWN}


@record
class Row:
    """One line of the table: a label, the coefficient of Ψ if there is one, a figure per
    candidate.
    """

    label: str
    coefficient: str
    cells: tuple[str, ...]
    style: str = ""


def unit_of(plan: Plan) -> tuple[str, int]:
    """The one unit of a plan's figures: as a heading names it, and its bytes. A GPU's memory is
    counted in GiB, papers count in GB.
    """
    gpus = [c.memory.gpu for c in plan.candidates]
    beside = [
        tier.bytes_per_node
        for c in plan.candidates
        for tier in (c.memory.cpu, c.memory.nvme)
        if tier is not None
    ]
    unit, meaning, size = byte_unit(
        max(*(max(g.states_bytes, g.peak_bytes) for g in gpus), *beside, 0),
        binary=plan.job.cluster.usable_bytes is not None,
    )
    return f"{unit} ({meaning})", size


def memory_rows(plan: Plan, size: int) -> list[Row]:
    """The memory part of the table, in units of ``size`` bytes."""
    gpus = [c.memory.gpu for c in plan.candidates]

    def amounts(
        label: str, coefficient: str, pick: Callable[[Estimate], int], style: str = ""
    ) -> Row:
        return Row(label, coefficient, tuple(figure(pick(c), size) for c in plan.candidates), style)

    def of_kind(label: str, kind: Kind) -> Row:
        each = plan.state_bytes_per_parameter.get(kind)
        coefficient = "" if each is None else f"{each:.4g}Ψ"
        return amounts(label, coefficient, lambda c: c.memory.gpu.bytes_of({kind}))

    rows = [
        of_kind("weights", "weights"),
        of_kind("gradients", "gradients"),
        of_kind("optimizer states", "optimizer"),
        amounts("model states", "", lambda c: c.memory.gpu.states_bytes, "bold"),
    ]
    whole = next(
        (g.states_bytes for g, c in zip(gpus, plan.candidates, strict=True) if c.stage == 0), None
    )
    if whole and len(gpus) > 1:
        rows.append(
            Row("  of DDP", "", tuple(_percent(g.states_bytes, whole) for g in gpus), "dim")
        )
    return [*rows, *_peak_rows(plan, amounts)]


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return "100 %" if part == whole else f"{share:.1f} %" if share >= 0.05 else f"{share:.2g} %"


def _peak_rows(plan: Plan, amounts: Callable[..., Row]) -> list[Row]:
    """What is alive at each candidate's peak, by kind."""

    def at_peak(kinds: frozenset[str]) -> Callable[[Estimate], int]:
        return lambda c: c.memory.gpu.bytes_of(kinds, at=c.memory.gpu.peak_moment)

    moments = tuple(SHORT_MOMENT[c.memory.gpu.peak_moment] for c in plan.candidates)
    rows = [
        Row(
            "peak (known part), at" if plan.candidates[0].memory.gpu.unknown else "peak, at",
            "",
            moments,
            "italic",
        )
    ]
    if plan.job.by_stage:
        rows.append(
            Row(
                "  on pipeline stage",
                "",
                tuple(f"{c.pipeline_stage} of {plan.job.parallel.pp}" for c in plan.candidates),
                "italic",
            )
        )
    rows.append(amounts("  model states at the peak", "", at_peak(STATE_KINDS)))
    for label, kinds in PEAK_ROWS:
        row = amounts(f"  {label}", "", at_peak(kinds))
        missing = [label in c.memory.gpu.unknown for c in plan.candidates]
        if any(missing) and kinds != {"logits"}:
            row = Row(
                row.label,
                "",
                tuple(
                    UNKNOWN if unknown else cell
                    for unknown, cell in zip(missing, row.cells, strict=True)
                ),
            )
        if set(row.cells) != {"0.00"}:
            rows.append(row)
    rows.append(amounts("  total", "", lambda c: c.memory.gpu.peak_bytes, "bold"))
    if plan.job.zero.fragmentation_fraction:
        rows.append(
            amounts("with fragmentation", "", lambda c: c.memory.gpu.reserved_bytes, "bold")
        )
    usable = plan.job.cluster.usable_bytes
    if usable is not None:
        unknown = any(c.memory.gpu.unknown for c in plan.candidates)
        rows.append(
            amounts(
                "headroom, at most" if unknown else "headroom",
                "",
                lambda c: usable - c.memory.gpu.reserved_bytes,
            )
        )
    if usable is not None or plan.verdict == "does_not_fit":
        rows.append(Row("fits", "", tuple(FITS[c.fits] for c in plan.candidates), "bold"))
    return rows


def traffic_rows(plan: Plan, size: int) -> list[Row]:
    """The traffic part of the table, in units of ``size`` bytes."""
    answers = [c.communication for c in plan.candidates]
    missing = unknown_sent(answers[0])
    rows = [
        Row(
            "traffic per step",
            "",
            tuple(f"{format_multiple(a.volume_params, 4)}Ψ" for a in answers),
        ),
        Row(
            "  of DDP",
            "",
            tuple(
                "-" if a.ratio_to_dp is None else f"{format_multiple(a.ratio_to_dp, 3)}×"
                for a in answers
            ),
            "dim",
        ),
        Row(
            "  sent per GPU (known part)" if missing else "  sent per GPU",
            "",
            tuple(
                UNKNOWN
                if missing and not a.sent_bytes_per_gpu
                else figure(a.sent_bytes_per_gpu, size)
                for a in answers
            ),
        ),
    ]
    if any(a.inter_node_bytes_per_gpu for a in answers):
        rows.append(
            Row(
                "    of which inter-node",
                "",
                tuple(figure(a.inter_node_bytes_per_gpu or 0, size) for a in answers),
                "dim",
            )
        )
    cluster = plan.job.cluster
    cards = cluster.network_cards
    if (
        cards
        and cards != cluster.gpus_of_a_node
        and any(a.inter_node_bytes_per_card for a in answers)
    ):
        rows.append(
            Row(
                "    per NIC",
                "",
                tuple(figure(a.inter_node_bytes_per_card or 0, size) for a in answers),
                "dim",
            )
        )
    rows += [Row(f"  {name}", "", (UNKNOWN,) * len(answers)) for name in missing]
    if CPU_TRAFFIC in answers[0].unknown:
        rows += [
            Row(label, "", (UNKNOWN,) * len(answers))
            for label in (f"  {CPU_TRAFFIC}", "CPU memory per node")
        ]
    else:
        rows += _offload_rows(plan, size)
    return rows


def _offload_rows(plan: Plan, size: int) -> list[Row]:
    """CPU-GPU and NVMe traffic, and what a node's CPU memory and NVMe hold, where something is
    offloaded.
    """
    hosts, drives = (
        [c.memory.cpu for c in plan.candidates],
        [c.memory.nvme for c in plan.candidates],
    )
    answers = [c.communication for c in plan.candidates]

    def amounts(label: str, values: Iterable[int]) -> Row:
        return Row(label, "", tuple(figure(value, size) for value in values))

    rows = []
    if any(hosts) or any(drives):
        rows.append(amounts(f"  {CPU_TRAFFIC}", (a.host_bytes_per_gpu for a in answers)))
    if any(drives):
        rows.append(amounts(f"  {NVME_TRAFFIC}", (a.nvme_bytes_per_gpu for a in answers)))
    for label, tiers in (("CPU memory per node", hosts), ("NVMe per node", drives)):
        if any(tiers):
            rows.append(amounts(label, (tier.bytes_per_node if tier else 0 for tier in tiers)))
        if any(tier and tier.high_bytes_per_node > tier.bytes_per_node for tier in tiers):
            rows.append(
                amounts(
                    "  pinned, at most",
                    (tier.high_bytes_per_node if tier else 0 for tier in tiers),
                )
            )
        capacity = next(
            (tier.capacity_bytes for tier in tiers if tier and tier.capacity_bytes is not None),
            None,
        )
        if capacity is not None:
            rows.append(amounts("  available", (capacity for _ in tiers)))
    return rows


def unknown_sent(answer: Communication) -> list[str]:
    """What a GPU sends to others and no figure counts."""
    return [name for name in answer.unknown if name != CPU_TRAFFIC]
