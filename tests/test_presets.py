"""Presets and files of users: whatever a TOML file holds, it is read or refused in one line."""

from __future__ import annotations

import copy
import csv
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.running import run
from zerocalc import presets
from zerocalc.estimator import estimate
from zerocalc.presets import LARGEST_FILE, PresetError
from zerocalc.spec.base import FieldError, Spec, explain
from zerocalc.spec.cluster import Gpu, Node
from zerocalc.spec.framework import Framework
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import Recipe

SPECS: dict[str, type[Spec]] = {
    "models": Model,
    "gpus": Gpu,
    "nodes": Node,
    "recipes": Recipe,
    "frameworks": Framework,
}
EXAMPLES = [
    (kind, name, presets.load(kind, name)) for kind in SPECS for name in presets.names(kind)
]

huge = st.sampled_from(
    [
        0,
        -1,
        1,
        10**18,
        10**19,
        10**400,
        -(10**400),
        1e308,
        -1e308,
        1e-308,
        math.inf,
        -math.inf,
        math.nan,
        0.5,
        2**63,
        2**64,
    ]
)
wrong: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        huge,
        st.text(max_size=20),
        st.booleans(),
        st.none(),
        st.dates(),
        st.sampled_from(["", "nan", "1e999", "10Q", "x" * 5000, "\0", "\n"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a table."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(found for key, item in inner for found in places(item, (*path, key)))]


def one_line(text: str) -> None:
    assert text
    assert "\n" not in text
    assert len(text) < 300


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, Any]:
    """A preset's table with one to three things dropped, replaced, added or doubled."""
    kind, _, original = draw(st.sampled_from(EXAMPLES))
    table: Any = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(table)))
        if not path:
            table = draw(wrong) if draw(st.integers(0, 20)) == 0 else table
            continue
        holder = table
        for key in path[:-1]:
            holder = holder[key]
        action = draw(st.sampled_from(["drop", "replace", "replace", "add", "double"]))
        if action == "drop":
            del holder[path[-1]]
        elif action == "replace":
            holder[path[-1]] = draw(wrong)
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]) if action == "double" else draw(wrong))
        else:
            holder[draw(st.text(max_size=8))] = draw(wrong)
    return kind, table


@given(mutated())
def test_a_wrong_table_is_refused_with_a_field_and_a_line(case: tuple[str, Any]) -> None:
    kind, table = case
    try:
        made = SPECS[kind].model_validate(table)
    except ValidationError as error:
        path, line = explain(error)
        one_line(line)
        assert "\n" not in path or any("\n" in str(key) for place in places(table) for key in place)
    else:
        assert SPECS[kind].model_validate(made.model_dump(mode="json")) == made
        used(kind, made)


def used(kind: str, made: Spec) -> None:
    """What validates can be computed with, or a Job says why not."""
    parts: dict[str, Any] = {"model": {"params": 10**9}, "cluster": {"gpus": 4}}
    if kind == "models":
        parts["model"] = made
    elif kind == "gpus":
        parts["cluster"]["gpu"] = made
    elif kind in {"recipes", "frameworks"}:
        parts[kind.removesuffix("s")] = made
    else:
        return
    try:
        job = Job.model_validate(parts)
    except (ValidationError, PresetError) as error:
        one_line(explain(error)[1] if isinstance(error, ValidationError) else str(error))
        return
    for stage in job.stages:
        try:
            gpu = estimate(job, stage).memory.gpu
        except (
            FieldError
        ) as error:  # what a written-out module's type does not take is found where it is counted
            one_line(str(error))
            return
        assert gpu.peak_bytes >= 0
        assert gpu.states_bytes == sum(
            t.bytes for t in gpu.terms if t.kind in {"weights", "gradients", "optimizer"}
        )


@given(
    st.one_of(
        st.text(max_size=200),
        st.sampled_from(EXAMPLES).map(
            lambda case: (presets.folder() / case[0] / f"{case[1]}.toml").read_text("utf-8")
        ),
    ),
    st.data(),
)
def test_any_text_is_toml_or_refused(text: str, data: st.DataObject) -> None:
    if text and data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(text)))
        text = (
            text[:start]
            + data.draw(st.text(max_size=5))
            + text[data.draw(st.integers(start, len(text))) :]
        )
    for parse in (presets.parse_toml, presets.parse_json):
        try:
            assert isinstance(parse(text, "file"), dict)
        except PresetError as error:
            one_line(str(error))


@given(st.text(max_size=40), st.sampled_from(presets.KINDS))
def test_any_name_is_a_preset_or_refused(name: str, kind: str) -> None:
    assume(name not in presets.names(kind))
    with pytest.raises(PresetError) as caught:
        presets.load(kind, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../gpus/h100-80g",
        "/etc/passwd",
        "..",
        ".",
        "",
        "gpt2.toml/",
        "GPT2",
        "gpt2 ",
        "a" * 300,
        "\x00",
        "gpt2\n",
    ],
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(PresetError):
        presets.load("models", name)


@given(st.binary(max_size=300))
def test_any_file_is_text_or_refused(data: bytes) -> None:
    try:
        text = presets.decode(data, "file")
    except PresetError as error:
        one_line(str(error))
    else:
        assert text.encode("utf-8") == data.removeprefix(b"\xef\xbb\xbf")


def test_files_are_refused_by_size(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    file.write_bytes(b"#" * LARGEST_FILE)
    assert presets.load("gpus", str(file)) == {}
    with file.open("ab") as stream:
        stream.truncate(200_000_000)
    with pytest.raises(PresetError, match="larger than 2 MB"):
        presets.load("gpus", str(file))


def test_names_are_sorted_as_people_do() -> None:
    names = presets.names("models")
    assert names.index("qwen3-4b") < names.index("qwen3-14b")
    assert names.index("megatron-1.7b") < names.index("megatron-145.6b")


@pytest.mark.parametrize(
    ("wanted", "near"), [("h100", "h100-80g"), ("H200", "h200"), ("a100", "a100-40g")]
)
def test_the_nearest_are_named(wanted: str, near: str) -> None:
    assert near in presets.nearest(wanted, presets.names("gpus"))


@pytest.mark.parametrize("name", presets.names("recipes"))
def test_every_recipe_says_its_bytes(name: str) -> None:
    recipe = Recipe.model_validate(presets.load("recipes", name))
    architecture = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "kind": "gpt2"}
    job = Job.model_validate({"model": architecture, "cluster": {"gpus": 2}, "recipe": name})
    states = [estimate(job, stage).memory.gpu.states_bytes for stage in range(4)]
    assert states == sorted(states, reverse=True)
    if {row.of for row in recipe.rows if row.kind != "copies"} <= {"all", "trainable"}:
        bare = Job.model_validate(
            {"model": {"params": 256_000}, "cluster": {"gpus": 1}, "recipe": name}
        )
        assert estimate(bare, 0).memory.gpu.states_bytes == recipe.bytes_per_parameter * 256_000


@pytest.mark.parametrize("gpu", presets.names("gpus"))
def test_every_gpu_can_be_planned_for(gpu: str) -> None:
    ran = run("plan", "--params", "1B", "--gpus", "8", "--gpu", gpu)
    assert (ran.status, ran.err) == (0, "")
    usable = Gpu.model_validate(presets.load("gpus", gpu)).usable_bytes
    assert ("GiB" in ran.out) == (usable is not None) or usable is None
    assert usable is None or 10**9 < usable < 10**12


with (Path(__file__).parent / "data" / "published" / "gpus.csv").open(encoding="utf-8") as file:
    PUBLISHED_GPUS = {row["preset"]: row for row in csv.DictReader(file)}
FIGURES = {
    "bf16_dense_tflops": ("bf16_dense_flops_per_second", 10**12),
    "memory_tb_per_second": ("memory_bytes_per_second", 10**12),
    "scale_up_gb_per_second": ("scale_up_bytes_per_second", 10**9),
    "host_gb_per_second": ("pcie_bytes_per_second", 10**9),
    "usable_gib": ("usable_bytes", 2**30),
}
"""Columns of published figures: a preset's field and its unit."""


@pytest.mark.parametrize("gpu", presets.names("gpus"))
def test_a_gpus_figures_are_the_published_ones(gpu: str) -> None:
    """To the digits that are printed. An empty cell is not published, or not for one direction."""
    published = PUBLISHED_GPUS[gpu]
    assert published["source"]
    assert published["bf16_dense_tflops"]
    preset = Gpu.model_validate(presets.load("gpus", gpu))
    for column, (field, unit) in FIGURES.items():
        if published[column]:
            printed = Decimal(published[column])
            half_a_digit = Decimal(1).scaleb(int(printed.as_tuple().exponent)) / 2
            assert abs(Decimal(getattr(preset, field)) / unit - printed) <= half_a_digit, column


def test_every_published_gpu_is_a_preset() -> None:
    assert sorted(PUBLISHED_GPUS) == sorted(presets.names("gpus"))


@pytest.mark.parametrize("model", presets.names("models"))
def test_every_model_can_be_planned(model: str) -> None:
    ran = run("plan", "--model", model, "--gpus", "64", "--seq", "512", "--format", "csv")
    assert (ran.status, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == 5
