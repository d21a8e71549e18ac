"""Files that are no config, and configs that were changed at random: a model with every dimension
given, or one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.huggingface.test_huggingface import KINDS
from zerocalc.huggingface.config import load_model, model_from_config, read_config
from zerocalc.huggingface.known_keys import GUARDED, NEUTRAL
from zerocalc.model.build import architecture
from zerocalc.presets import PresetError
from zerocalc.spec.model import Model

DATA = Path(__file__).parents[1] / "data"
TENSORS: dict[str, Any] = json.loads((DATA / "config_tensors.json").read_text())["models"]
LLAMA = json.loads((DATA / "configs" / "llama-3.1-8b.json").read_text())
GPT2 = json.loads((DATA / "configs" / "gpt2.json").read_text())


def read(config: dict[str, Any]) -> Model:
    return model_from_config(config, "config.json")


FILES = {
    "truncated.json": b'{"model_type": "llama", "hidden_si',
    "list.json": b"[1, 2]",
    "text.json": b'"llama"',
    "empty.json": b"",
    "binary.json": bytes(range(256)),
    "deep.json": b'{"a":' * 100_000,
    "deep_list.json": b'{"model_type": "llama", "layer_types": ' + b"[" * 100_000,
    "digits.json": b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}",
    "large.json": b" " * 2_100_000 + b"{}",
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(FILES[name])
    with pytest.raises(PresetError) as error:
        load_model(str(file))
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value) or "…" in str(error.value)


@pytest.mark.parametrize(
    "literal", ["1e400", "-1e400", "NaN", "Infinity", "9" * 4000, "-" + "9" * 4000, "1e-400"]
)
def test_numbers_that_are_none(literal: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA).replace('"hidden_size": 4096', f'"hidden_size": {literal}'))
    with pytest.raises(PresetError, match=r"config\.json: hidden_size: "):
        load_model(str(file))


@pytest.mark.parametrize("path", ["no such file.json", "", "a\0b", "x" * 5000, "no such\nfile"])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(PresetError) as error:
        load_model(path)
    assert "\n" not in str(error.value)


def test_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    with pytest.raises(PresetError, match=r"^model is a directory, not a file$"):
        load_model("model")
    Path("model/config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(PresetError, match=r"^model is a directory; give the config\.json in it$"):
        load_model("model")
    assert read_config("model/config.json") == LLAMA
    assert load_model("model/config.json").source == "config.json"


SEEDS = [entry["config"] for entry in TENSORS.values() if entry["config"]["model_type"] in KINDS]
ABSURD = [
    0,
    -1,
    -(10**9),
    10**12,
    10**300,
    0.5,
    True,
    "768",
    [],
    {},
    [768],
    {"a": 768},
    float("inf"),
    float("nan"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    sorted({key for config in SEEDS for key in config} | NEUTRAL | GUARDED.keys())
) | st.text(max_size=12)


def holds(config: dict[str, Any]) -> None:
    """Nothing but a model whose every dimension the config gives, or one line."""
    try:
        model = read(config)
    except PresetError as error:
        text = str(error)
    else:
        text = ""
        complete(config, model)
    assert text.isprintable()


def spellings(config: dict[str, Any], field: str) -> list[str]:
    """The keys that a config may keep a dimension under."""
    family = KINDS[config["model_type"]]
    key = str(family.dimensions[field])
    return [key, *family.aliases.get(key, [])]


def complete(config: dict[str, Any], model: Model) -> None:
    for field in ("layers", "hidden", "heads", "vocab"):
        values = [config[name] for name in spellings(config, field) if name in config]
        assert values
        assert all(
            type(value) in (int, float) and value == getattr(model, field) for value in values
        )
    arch = architecture(model)
    assert arch is not None
    assert arch.parameters > 0
    assert Model.model_validate(model.model_dump(mode="json")) == model


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.dictionaries(KEYS, JSON, max_size=4), st.sets(KEYS, max_size=3))
def test_changed_configs(
    config: dict[str, Any], changes: dict[str, Any], dropped: set[str]
) -> None:
    holds({key: value for key, value in (config | changes).items() if key not in dropped})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_absurd_or_missing_dimensions_are_never_a_model(data: st.DataObject) -> None:
    config = dict(data.draw(st.sampled_from(SEEDS)))
    field = data.draw(st.sampled_from(["layers", "hidden", "heads", "vocab"]))
    used = next(name for name in spellings(config, field) if name in config)
    if data.draw(st.booleans()):
        del config[used]
    else:
        config[used] = data.draw(st.sampled_from(ABSURD))
    with pytest.raises(PresetError):
        read(config)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_anything(value: object) -> None:
    if isinstance(value, dict):
        holds(value)
    for config in (LLAMA, GPT2):
        for key in (
            "model_type",
            "architectures",
            "layer_types",
            "tie_word_embeddings",
            "vocab_size",
        ):
            holds(config | {key: value})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs") / "config.json"


@settings(max_examples=200, deadline=None)
@given(config=st.sampled_from(SEEDS), data=st.data())
def test_truncated_and_spoiled_files(
    file: Path, config: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(config, indent=1).encode()
    start = data.draw(st.integers(0, len(text) - 1))
    rest = data.draw(st.sampled_from([b"", text[start:], text[start + 1 :], text[start + 9 :]]))
    file.write_bytes(text[:start] + data.draw(st.binary(max_size=3)) + rest)
    try:
        model = load_model(str(file))
    except PresetError as error:
        message = str(error)
    else:
        message = ""
        complete(read_config(str(file)), model)
    assert message.isprintable()
