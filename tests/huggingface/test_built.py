"""Configs counted by transformers itself; where it is installed, it and we must agree on every
family.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.huggingface.test_families import DEFAULTS, shapes
from tests.huggingface.test_measured_counts import MEASURED
from tests.running import run
from zerocalc.huggingface import built_with_transformers as built
from zerocalc.huggingface.config import model_from_config
from zerocalc.model.build import architecture
from zerocalc.model.counting import count_parameters
from zerocalc.presets import PresetError
from zerocalc.spec.job import Job

needs_transformers = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("torch")),
    reason="transformers and torch are an optional extra",
)
UNKNOWN = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "num_hidden_layers": 12,
}


def config_file(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return str(file)


def test_without_the_extra_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(built, "import_module", missing)
    ran = run("params", config_file(tmp_path, UNKNOWN), "--count-with", "transformers")
    assert ran.status == 2
    assert ran.err == (
        "error: --count-with transformers: needs transformers and torch (transformers is "
        "not there): "
        "pip install '.[transformers]' in zerocalc's checkout\n"
    )


def test_an_unknown_family_names_both_ways_out(tmp_path: Path) -> None:
    ran = run("params", config_file(tmp_path, UNKNOWN))
    assert ran.status == 2
    assert "--params" in ran.err
    assert "--count-with transformers" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["params", "gpt2", "--count-with", "transformers"],
            "--count-with: counts a config.json, and 'gpt2' is none",
        ),
        (
            ["params", "x.json", "--count-with", "torch"],
            "--count-with: 'torch' is not one of transformers",
        ),
        (
            ["plan", "--gpus", "8", "--params", "1B", "--count-with", "transformers"],
            "--count-with: counts a config.json, which --model names",
        ),
        (
            ["params", "missing.json", "--count-with", "transformers"],
            "--count-with transformers: missing.json: ",
        ),
    ],
)
def test_what_cannot_be_counted(arguments: list[str], said: str) -> None:
    ran = run(*arguments)
    assert ran.status == 2
    assert ran.err.startswith(f"error: {said}")
    assert ran.err.count("\n") == 1


@needs_transformers
@pytest.mark.parametrize("name", MEASURED)
def test_figures_of_measured_classes(name: str) -> None:
    known = MEASURED[name]
    counts, ours = (
        count_parameters(built.build(known["config"], name, name)),
        count_parameters(model_from_config(known["config"], name)),
    )
    assert (counts.total, counts.active) == (known["total"], known["active"])
    assert (counts.largest_leaf, counts.largest_block) == (
        known["largest_leaf"],
        known["largest_block"],
    )
    assert counts.components == ours.components


@needs_transformers
@pytest.mark.parametrize("model_type", DEFAULTS)
def test_every_family_agrees_with_its_class(model_type: str) -> None:
    known = DEFAULTS[model_type]
    model = built.build(
        {**known["config"], "architectures": [known["architecture"]]}, model_type, model_type
    )
    ours = model_from_config(known["config"], model_type)
    assert count_parameters(model).total == count_parameters(ours).total == known["total"]
    assert shapes(model) == shapes(ours)
    assert (
        Job.model_validate({"model": model.model_dump(mode="json"), "cluster": {"gpus": 1}}).model
        == model
    )


@needs_transformers
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "model_type is missing"),
        ({"model_type": "nothing"}, "does not build it"),
        (
            {"model_type": "llama", "architectures": ["Nothing"]},
            "architectures names no class of transformers",
        ),
        (
            {"model_type": "llama", "architectures": ["AutoConfig"]},
            "architectures names no class of transformers",
        ),
        (
            {"model_type": "llama", "architectures": "LlamaModel"},
            "architectures names no class of transformers",
        ),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers: more than"),
        ({"model_type": "llama", "num_hidden_layers": "many"}, "does not build it"),
        ({"model_type": "llama", "hidden_size": -4}, "does not build it"),
        ({"model_type": "llama", "hidden_size": None}, "does not build it"),
    ],
)
def test_what_transformers_does_not_build(config: dict[str, Any], said: str) -> None:
    with pytest.raises(PresetError, match=said) as error:
        built.build(config, "config.json", "config.json")
    assert "\n" not in str(error.value)


ROUTERS = {"afmoe", "jetmoe", "llama4_text", "longcat_flash", "phimoe"}
"""Families whose routers are linear layers; ours are of no kind that is quantised."""


def linear_layers(model_type: str) -> Counter[tuple[int, ...]]:
    """The shapes of all linear layers of a class, but for the head."""
    torch, transformers = import_module("torch"), import_module("transformers")
    kinds = (torch.nn.Linear, import_module("transformers.pytorch_utils").Conv1D)
    known = DEFAULTS[model_type]
    table = {key: value for key, value in known["config"].items() if key not in built.OWN_CODE}
    config = transformers.AutoConfig.for_model(**{**table, "model_type": model_type})
    with built._silent(), torch.device("meta"):
        model = getattr(transformers, known["architecture"])._from_config(
            config, attn_implementation="eager"
        )
    head = model.get_output_embeddings()
    found = {
        id(m.weight): tuple(m.weight.shape)
        for m in model.modules()
        if isinstance(m, kinds) and m is not head
    }
    return Counter(found.values())


@needs_transformers
@pytest.mark.parametrize("model_type", DEFAULTS)
def test_linear_layers_are_those_of_the_class(model_type: str) -> None:
    arch = architecture(model_from_config(DEFAULTS[model_type]["config"], model_type))
    assert arch is not None
    ours: Counter[tuple[int, ...]] = Counter()
    for count, modules in ((1, arch.before), *arch.groups, (1, arch.after)):
        for module in modules:
            for name, shape, linear in module.parameter_rows:
                if (
                    linear
                    and 0 not in shape
                    and not name.startswith(("router", "experts.up", "experts.down", "head"))
                ):
                    ours[shape] += count
    theirs = linear_layers(model_type)
    assert not ours - theirs
    assert model_type in ROUTERS or not theirs - ours
