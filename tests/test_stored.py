"""Stored bytes of quantised weights, beside linear layers that the libraries quantised or made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerocalc import presets
from zerocalc.modules.stored import matrix_bytes
from zerocalc.presets import load
from zerocalc.spec.quantisation import Quantisation

DATA = Path(__file__).parent / "data"
MEASURED: list[dict[str, Any]] = json.loads((DATA / "measured_quantised.json").read_text("utf-8"))["rows"]
FORMATS = presets.names("quantisations")


def form(preset: str, **changes: Any) -> Quantisation:
    return Quantisation.model_validate({**load("quantisations", preset), **changes})


def of_row(name: str) -> Quantisation:
    """The format that a measured row's name speaks of."""
    if name in FORMATS:
        return form(name)
    method, *words = name.split()
    if method in {"gptq", "awq"}:
        return form(f"{method}-4bit", bits=int(words[0]), scale_columns=max(0, int(words[1])))
    if method == "fp8":
        rows, columns = map(int, words[0].split("x")) if words[0] != "None" else (0, 0)
        return form("fp8", scale_rows=rows, scale_columns=columns, tensor_bytes=4 if words[1] == "static" else 0)
    if method == "fbgemm_fp8":
        return form("fp8", scale_rows=1, scale_columns=0)
    return {
        "pack 4 128": form("packed-4bit"),
        "pack 4 32 asym": form("packed-4bit", scale_columns=32, zero_points=True),
        "pack 8 channel": form("packed-4bit", bits=8, scale_columns=0),
        "float 8 channel dynamic": form("fp8", scale_rows=1, scale_columns=0, scale_bytes=2),
        "float 8 tensor static": form("fp8", scale_rows=0, scale_columns=0, scale_bytes=2, tensor_bytes=2),
        "float 8 block": form("fp8", scale_bytes=2),
        "int 8 channel dynamic": form("int8", scale_bytes=2),
        "nvfp4": form("mxfp4", scale_columns=16, tensor_bytes=4),
        "mxfp4": form("mxfp4"),
    }[name.removeprefix("compressed ")]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['format']}-{row['shape'][0]}x{row['shape'][1]}")
def test_a_layer_takes_what_was_measured(row: dict[str, Any]) -> None:
    sizes = matrix_bytes(of_row(row["format"]), *row["shape"])
    assert sizes.total == row["total"]
    packed = ("packed", "qweight", "weight", "weight_packed")
    assert sizes.weights == sum(row["bytes"].get(part, 0) for part in packed)
    assert sizes.zero_points == row["bytes"].get("qzeros", 0) + row["bytes"].get("weight_zero_point", 0)
    assert sizes.indices == row["bytes"].get("g_idx", 0)


def test_every_format_was_measured() -> None:
    """But the formats of experts, which are those of a linear layer."""
    assert {of_row(row["format"]).name for row in MEASURED} == set(FORMATS)
