"""Published tables: every cell with a verdict reproduces, what is printed is copied right, and a
wrong cell would be found.
"""

from __future__ import annotations

import copy
import csv
import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from zerocalc import presets
from zerocalc.answers.document import to_json
from zerocalc.estimator import estimate
from zerocalc.formulas.published import max_model
from zerocalc.papers.comparison import comparison
from zerocalc.papers.jobs import bare
from zerocalc.papers.tables import (
    READINGS,
    WITHOUT_VERDICT,
    Cell,
    Table,
    reproduce,
    round_half_up,
    summary,
    tables,
    unit_size,
)
from zerocalc.render.papers import LETTERS, mark, render_comparison, render_table

DATA = Path(__file__).parent / "data" / "published"
TABLES = {name: reproduce(name) for name in tables()}
CELLS = [(name, cell) for name, table in TABLES.items() for cell in table.cells]


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def cell(table: str, row: str, column: str, group: str = "") -> Cell:
    found = [
        c
        for c in TABLES[table].cells
        if (c.row, c.column) == (row, column) and c.group.startswith(group)
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("name", "one"), CELLS, ids=[f"{name}:{c.group[:12]}:{c.row}:{c.column}" for name, c in CELLS]
)
def test_cell(name: str, one: Cell) -> None:
    if one.reading in WITHOUT_VERDICT:
        assert one.verdict is None
    else:
        assert one.verdict == "same", f"{name}: printed {one.printed}, ours {one.ours} {one.unit}"
    assert one.ours > 0
    if one.reading == "rounded":
        assert one.agrees
        assert one.shown == one.printed or abs(
            Fraction(one.shown) - Fraction(one.printed or 0)
        ) == Fraction(1, 10 ** len(one.shown.partition(".")[2]))


@pytest.mark.parametrize("name", TABLES)
def test_a_place_has_one_cell(name: str) -> None:
    places = [(c.group, c.row, c.column) for c in TABLES[name].cells]
    assert len(set(places)) == len(places)
    assert {c.column for c in TABLES[name].cells} == set(TABLES[name].columns)
    assert {c.reading for c in TABLES[name].cells} <= set(READINGS)
    assert TABLES[name].source


def test_the_first_table_is_figure_1() -> None:
    assert tables()[0] == "zero-figure1"
    assert [c.shown for c in TABLES["zero-figure1"].cells] == ["120", "31.4", "16.6", "1.9"]


def test_figure_1_is_copied_right() -> None:
    data = json.loads((DATA / "zero_figure1.json").read_text("utf-8"))
    assert [float(c.printed or 0) for c in TABLES["zero-figure1"].cells] == [
        data["baseline"],
        data["Pos"],
        data["Pos_g"],
        data["Pos_g_p"],
    ]
    assert [c.ours for c in TABLES["zero-figure1"].cells] == data["recomputed"]


@pytest.mark.parametrize(
    "row", rows("zero_table1"), ids=lambda r: f"{r['model']}-{r['dp']}-{r['zero_stage']}"
)
def test_table_1(row: dict[str, str]) -> None:
    column = ("P_os", "P_os+g", "P_os+g+p")[int(row["zero_stage"]) - 1]
    ours = cell("zero-table1", row["dp"], column, f"{row['model']} ")
    assert ours.printed == row["printed_GB"]
    assert ours.reading == row["rounding"]
    assert ours.ours == pytest.approx(float(row["recomputed_GB"]), abs=5.1e-6)


@pytest.mark.parametrize("row", rows("zero_table2"), ids=lambda r: f"mp{r['mp']}")
def test_table_2(row: dict[str, str]) -> None:
    for column, key in (
        ("baseline", "baseline"),
        ("P_os", "Pos"),
        ("P_os+g", "Pos_g"),
        ("P_os+g+p", "Pos_g_p"),
    ):
        ours = cell("zero-table2", row["mp"], column)
        scale = unit_size(ours.unit) / unit_size("B params")
        assert Fraction(ours.printed or 0) * scale == Fraction(row[f"th_{key}_B"])
        assert ours.ours * float(scale) == pytest.approx(float(row[f"rec_{key}"]), abs=5.1e-3)


@pytest.mark.parametrize("row", rows("megatron_sc21_table1"), ids=lambda r: r["params_B"])
def test_megatron_table_1(row: dict[str, str]) -> None:
    label = f"{row['layers']} × {row['hidden']}, {row['heads']}"
    counted, closed = (
        cell("megatron-table1", label, "counted"),
        cell("megatron-table1", label, "closed form"),
    )
    assert counted.printed == closed.printed == row["params_B"]
    assert closed.ours == pytest.approx(float(row["rec_params_B"]), abs=5.1e-4)
    assert counted.ours * 1e9 == pytest.approx(closed.ours * 1e9 + 2 * int(row["hidden"]), abs=0.5)


@pytest.mark.parametrize("row", rows("zeroinf_fig2a"), ids=lambda r: f"{r['params_T']}T")
def test_infinity_figure_2a(row: dict[str, str]) -> None:
    for column, printed, ours in (
        ("parameters", "params_T", "rec_params_T"),
        ("states", "model_states_TB", "rec_states_TiB"),
        ("activations / node", "act_TB_per_node", "rec_act_TiB(b4 per GPU x16)"),
        ("checkpoints / node", "ckpt_TB_per_node", "rec_ckpt_TiB(b32 per node)"),
        ("MSWM", "MSWM_GB", "rec_MSWM_GiB"),
        ("AWM", "AWM_GB", "rec_AWM_GiB(b4)"),
    ):
        found = cell("infinity-figure2a", f"{row['params_T']}T", column)
        assert found.printed == row[printed]
        assert found.reading == "memory"
        assert found.ours == pytest.approx(float(row[ours]), abs=5.1e-4)
        assert found.agrees is not ((row["params_T"], column) == ("0.1", "MSWM"))


@pytest.mark.parametrize("row", rows("megatron_recompute_configs"), ids=lambda r: r["model"])
def test_activations_against_the_figures(row: dict[str, str]) -> None:
    for label, printed, ours in (
        ("TP, SP", "fig7_SP_pct", "rec_SP"),
        ("TP, sel.", "fig7_sel_pct", "rec_sel"),
        ("TP, SP, sel.", "fig7_SPsel_pct", "rec_SPsel"),
        ("full", "fig7_full_pct", "rec_full"),
    ):
        found = cell("sp-activations", label, row["model"], "%")
        assert (found.printed, found.reading) == (row[printed], "figure")
        assert found.ours == pytest.approx(float(row[ours]), abs=5.1e-3)
        assert abs(found.ours - float(row[printed])) < 0.15
    for label, printed in (
        ("model states", "fig1_param_opt_GiB"),
        ("activations: TP", "fig1_act_baseline_GiB"),
        ("TP, SP, sel.", "fig1_act_SPsel_GiB"),
    ):
        found = cell("sp-activations", label, row["model"], "GiB")
        assert found.printed == f"{float(row[printed]):.2f}"
        assert found.ours == pytest.approx(float(row[printed]), abs=1e-9)


@pytest.mark.parametrize(
    "row",
    rows("deepspeed_estimator"),
    ids=lambda r: f"{r['model']}-{r['stage']}-{r['offload']}-{r['zero_init']}",
)
def test_documented_estimates(row: dict[str, str]) -> None:
    offload = {"opt": "optimizer", "param+opt": "optimizer + parameters"}.get(
        row["offload"], row["offload"]
    )
    label = f"{row['stage']}, {offload}" + (", zero.Init" if row["zero_init"] == "1" else "")
    label += " (older releases)" if row["stage"] == "2" and offload == "none" else ""
    group = {"T5-3B": "T5-3B", "6805M": "4 GPUs: 6805M", "T5-small 60M": "T5-small"}[row["model"]]
    gpu, host = (
        cell("deepspeed-estimators", label, "per GPU", group),
        cell("deepspeed-estimators", label, "host", group),
    )
    assert (gpu.printed, host.printed) == (row["printed_gpu_GB(=GiB)"], row["printed_cpu_GB(=GiB)"])
    assert gpu.ours == pytest.approx(float(row["rec_gpu_GiB"]), abs=5.1e-3)
    assert host.ours == pytest.approx(float(row["rec_cpu_GiB"]), abs=5.1e-3)


def with_print(
    monkeypatch: pytest.MonkeyPatch, name: str, row: str, column: str, printed: str
) -> Table:
    """The table as it would be if one cell were printed otherwise."""
    data: dict[str, Any] = copy.deepcopy(presets.load("papers", name))
    next(r for r in data["rows"] if r["label"] == row and column in r["printed"])["printed"][
        column
    ] = printed
    monkeypatch.setattr(
        "zerocalc.presets.load",
        lambda kind, wanted: data if kind == "papers" else ORIGINAL(kind, wanted),
    )
    return reproduce(name)


ORIGINAL = presets.load


@pytest.mark.parametrize(
    ("name", "row", "column", "printed", "differs"),
    [
        ("zero-figure1", "7.5B", "P_os", "31.5", True),
        ("zero-figure1", "7.5B", "P_os", "31.41", False),
        ("zero-figure1", "7.5B", "P_os", "31.42", True),
        ("zero-table1", "1024", "P_os", "30.0", True),
        ("zero-table1", "4", "P_os+g", "41.2", False),  # 41.25 lies between both
        (
            "zero-table2",
            "2",
            "P_os",
            "15.3",
            True,
        ),  # ours rounded, but not twice the printed first row
        ("zero-table2", "4", "P_os+g+p", "0.6", True),
        ("zero-volumes", "P_os+g+p", "volume", "2", True),
        ("zero-volumes", "P_a over tensor parallelism", "volume", "8", True),
        ("zero-volumes", "P_a over tensor parallelism", "volume", "9", False),
        ("megatron-table1", "24 × 2304, 24", "counted", "1.8", True),
        ("deepspeed-estimators", "3, none, zero.Init", "per GPU", "6.11", True),
        ("deepspeed-estimators-current", "3, none", "host", "74765337601", True),
        ("infinity-figure2a", "0.5T", "states", "99", False),
        ("zero-activations", "checkpoints, §3.2", "figure", "99", False),
    ],
)
def test_a_wrong_print_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, row: str, column: str, printed: str, differs: bool
) -> None:
    table = with_print(monkeypatch, name, row, column, printed)
    assert table.differs is differs
    assert ("1 differs" in summary(table)) is differs


def test_a_cut_off_print_is_not_a_rounded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_print(monkeypatch, "zero-table1", "256", "P_os", "30.4")
    assert not table.differs
    data = copy.deepcopy(presets.load("papers", "zero-table1"))
    for row in data["rows"]:
        row["readings"] = dict.fromkeys(row["printed"], "truncated")
    monkeypatch.setattr(
        "zerocalc.presets.load",
        lambda kind, wanted: data if kind == "papers" else ORIGINAL(kind, wanted),
    )
    differing = {
        (c.row, c.column) for c in reproduce("zero-table1").cells if c.verdict == "differs"
    }
    assert ("4", "P_os+g") in differing  # 41.25 cut off is 41.2, and 41.3 is printed
    assert ("1", "P_os") not in differing


def test_a_wrong_formula_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerocalc.papers.activations.closed_layer", lambda technique, **shape: 1)
    assert reproduce("sp-activations").differs


def test_a_wrong_count_of_ours_is_found_in_rows_made_from_rounded_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zerocalc.formulas.published.max_model", lambda **inputs: 7_700_000_000)
    found = {(c.row, c.column): c.verdict for c in reproduce("zero-table2").cells}
    assert found["16", "P_os"] == "differs"


def test_no_such_table() -> None:
    with pytest.raises(
        presets.PresetError, match="'zero-tabel1' is not a published table; nearest: zero-table1"
    ):
        reproduce("zero-tabel1")
    with pytest.raises(presets.PresetError):
        reproduce("some.toml")


def test_summaries() -> None:
    assert (
        summary(TABLES["zero-table1"])
        == "54 cells: 46 agree to the printed digit, 8 agree with a truncated print"
    )
    assert (
        summary(TABLES["infinity-figure2a"])
        == "30 cells: 30 copied from memory, not judged (29 of 30 match)"
    )
    assert not any(table.differs for table in TABLES.values())


def test_the_papers_own_contradiction_is_shown_without_a_verdict() -> None:
    first, second = (
        cell("zero-activations", f"checkpoints, {section}", "figure")
        for section in ("§3.2", "§6.1")
    )
    assert (first.printed, second.printed) == ("60", "33")
    assert first.ours == second.ours == 67.108864
    assert cell("zero-activations", "with P_a, §6.1", "figure").ours == 4.194304
    assert first.verdict is second.verdict is None


def test_comparison() -> None:
    stages = comparison().stages
    assert [row.name for row in stages] == ["ddp", "zero-1", "zero-2", "zero-3"]
    assert [row.states_bytes / 1e9 for row in stages] == [120, 31.40625, 16.640625, 1.875]
    assert [row.volume_params for row in stages] == [2, 2, 2, 3]
    assert [row.ratio_to_ddp for row in stages] == [1, 1, 1, 1.5]
    assert [round(row.largest_parameters / 1e9, 2) for row in stages] == [2, 7.64, 14.42, 128]
    for row in stages:
        assert row.weights_bytes + row.gradients_bytes + row.optimizer_bytes == row.states_bytes
        assert row.share_of_ddp == row.states_bytes / stages[0].states_bytes


@given(st.integers(1_000_000, 10**12), st.integers(2, 4096), st.sampled_from(range(4)))
def test_the_largest_model_fits_and_a_larger_one_does_not(
    memory: int, shards: int, stage: int
) -> None:
    largest = max_model(memory_bytes=memory, shards=shards, stage=stage)
    padding = 16  # a shard is rounded up to a whole parameter, which the closed form does not count
    fits = estimate(bare(largest, shards), stage).memory.gpu.states_bytes
    above = estimate(bare(largest + shards, shards), stage).memory.gpu.states_bytes
    assert fits <= memory + padding
    assert above > memory


@given(st.fractions(0, 10**6), st.integers(0, 4))
def test_rounding(value: Fraction, decimals: int) -> None:
    text = round_half_up(value, decimals)
    assert abs(Fraction(text) - value) <= Fraction(1, 2 * 10**decimals)
    assert len(text.partition(".")[2]) == decimals


def drawn(item: object, width: int, colour: bool = False) -> str:
    out = io.StringIO()
    Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        legacy_windows=False,
    ).print(item)
    return out.getvalue()


@pytest.mark.parametrize("name", TABLES)
def test_drawn_in_80_columns(name: str) -> None:
    table = TABLES[name]
    text = drawn(render_table(table), 80)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert " ".join(summary(table).split()) in " ".join(text.split())
    for one in table.cells:
        assert one.shown in text
        assert (one.printed or "–") in text
    wide = drawn(render_table(table), 200)
    assert len(wide.splitlines()) <= len(lines)


def test_marks_do_not_rest_on_colour() -> None:
    table = TABLES["zero-table1"]
    plain, coloured = drawn(render_table(table), 80), drawn(render_table(table), 80, colour=True)
    assert "513 / 513.5 ✓t" in plain
    assert "41.3 / 41.3 ✓" in plain
    assert "\x1b[" in coloured
    assert "t printed truncated, not rounded" in plain


def test_every_way_of_reading_is_told_apart() -> None:
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert set(READINGS) - set(LETTERS) == {"rounded", "formula", "none"}
    assert {mark(c) for c in TABLES["deepspeed-estimators"].cells} == {"✓d", ""}


def test_the_comparison_drawn() -> None:
    text = drawn(render_comparison(comparison(), TABLES["zero-figure1"]), 80)
    lines = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert lines["model states"][2:] == ["120.00", "31.41", "16.64", "1.88"]
    assert "120 ✓   31.4 ✓   16.6 ✓    1.9 ✓" in text
    assert "2B    7.64B   14.42B     128B" in text
    assert "1.5×" in text
    assert "printed" not in drawn(render_comparison(comparison()), 80)


def test_as_json() -> None:
    data = json.loads(to_json(TABLES["zero-figure1"]))
    assert data["cells"][1] == {
        "group": "",
        "row": "7.5B",
        "column": "P_os",
        "unit": "GB",
        "printed": "31.4",
        "ours": 31.40625,
        "shown": "31.4",
        "reading": "rounded",
        "verdict": "same",
        "agrees": True,
        "formula": "⌈4·Ψ + K·Ψ/N_d⌉",
    }
    assert json.loads(to_json(comparison()))["stages"][3]["volume_params"] == 3
