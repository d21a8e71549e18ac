"""Stored bytes of quantised weights, beside linear layers that the libraries quantised or made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerocalc import presets
from zerocalc.huggingface.config import model_from_config
from zerocalc.model.checkpoint_bytes import matrix_bytes
from zerocalc.model.counting import count_parameters
from zerocalc.presets import PresetError, load
from zerocalc.spec.quantisation import Quantisation

DATA = Path(__file__).parent / "data"
MEASURED: list[dict[str, Any]] = json.loads((DATA / "measured_quantised.json").read_text("utf-8"))[
    "rows"
]
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
        return form(
            "fp8",
            scale_rows=rows,
            scale_columns=columns,
            tensor_bytes=4 if words[1] == "static" else 0,
        )
    if method == "fbgemm_fp8":
        return form("fp8", scale_rows=1, scale_columns=0)
    return {
        "pack 4 128": form("packed-4bit"),
        "pack 4 32 asym": form("packed-4bit", scale_columns=32, zero_points=True),
        "pack 8 channel": form("packed-4bit", bits=8, scale_columns=0),
        "float 8 channel dynamic": form("fp8", scale_rows=1, scale_columns=0, scale_bytes=2),
        "float 8 tensor static": form(
            "fp8", scale_rows=0, scale_columns=0, scale_bytes=2, tensor_bytes=2
        ),
        "float 8 block": form("fp8", scale_bytes=2),
        "int 8 channel dynamic": form("int8", scale_bytes=2),
        "nvfp4": form("mxfp4", scale_columns=16, tensor_bytes=4),
        "mxfp4": form("mxfp4"),
    }[name.removeprefix("compressed ")]


@pytest.mark.parametrize(
    "row", MEASURED, ids=lambda row: f"{row['format']}-{row['shape'][0]}x{row['shape'][1]}"
)
def test_a_layer_takes_what_was_measured(row: dict[str, Any]) -> None:
    sizes = matrix_bytes(of_row(row["format"]), *row["shape"])
    assert sizes.total == row["total"]
    packed = ("packed", "qweight", "weight", "weight_packed")
    assert sizes.weights == sum(row["bytes"].get(part, 0) for part in packed)
    assert sizes.zero_points == row["bytes"].get("qzeros", 0) + row["bytes"].get(
        "weight_zero_point", 0
    )
    assert sizes.indices == row["bytes"].get("g_idx", 0)


def test_every_format_was_measured() -> None:
    """But the formats of experts, which are those of a linear layer."""
    assert {of_row(row["format"]).name for row in MEASURED} == set(FORMATS)


CONFIGS: dict[str, Any] = {
    name: entry["config"]
    for name, entry in json.loads((DATA / "measured_params.json").read_text("utf-8"))[
        "models"
    ].items()
}


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_sum_up(name: str) -> None:
    """For every format: bytes by component and by purpose are the same bytes, and more bits take
    more of them.
    """
    model = model_from_config(CONFIGS[name], name)
    sizes = {}
    for preset in FORMATS:
        counts = count_parameters(model.model_copy(update={"quantised": form(preset)}))
        kept = counts.stored
        if kept is None:
            assert preset == "mxfp4"
            assert not counts.components["experts"]
            continue
        assert counts.stored_bytes == sum(kept.components.values())
        assert (
            counts.stored_bytes
            == kept.weights
            + kept.scales
            + kept.zero_points
            + kept.indices
            + kept.codebooks
            + kept.not_quantised
        )
        assert set(kept.components) == set(counts.components)
        sizes[preset] = counts.stored_bytes
    assert sizes["nf4-double"] < sizes["nf4"] < sizes["int8"] < 2 * counts.total
    assert sizes["awq-4bit"] < sizes["gptq-4bit"] < sizes["nf4"]


def test_a_model_that_is_not_quantised_is_stored_in_its_dtype() -> None:
    for dtype, size in (
        ("float64", 8),
        ("float32", 4),
        ("bfloat16", 2),
        ("torch.float16", 2),
        ("float8_e4m3fn", 1),
        ("float8_e5m2", 1),
    ):
        counts = count_parameters(
            model_from_config({**CONFIGS["llama3-8b"], "torch_dtype": dtype}, "config.json")
        )
        assert counts.stored_bytes == size * 8_030_261_248
        assert not counts.notes
    assert count_parameters(model_from_config(CONFIGS["llama3-8b"], "config.json")).notes == (
        "stored in bf16, 2 bytes a parameter",
    )


@pytest.mark.parametrize("dtype", ["float7", "int8", "", 5, True, [], {}])
def test_a_dtype_that_weights_are_not_kept_in_is_refused(dtype: Any) -> None:
    for key in ("torch_dtype", "dtype"):
        with pytest.raises(
            PresetError,
            match=f"^config.json: {key}: .* is not a dtype that weights are kept in, such as "
            "bfloat16 or float32$",
        ):
            model_from_config({**CONFIGS["llama3-8b"], key: dtype}, "config.json")
