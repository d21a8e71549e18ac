"""The house keeps to its plan: what imports what, sizes of files, presets, flags and fields, and
what a start loads.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import zerocalc
from tests.docs import documents
from tests.renew_models import TITLES
from tests.renew_models import preset as preset_of
from tests.running import ROOT, environment, run
from zerocalc import presets
from zerocalc.cli import COMMANDS
from zerocalc.cli.flags import FLAGS
from zerocalc.model.counting import count_parameters
from zerocalc.spec.base import Spec
from zerocalc.spec.cluster import Gpu, Node
from zerocalc.spec.framework import Framework
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.job import Job
from zerocalc.spec.lora import Lora
from zerocalc.spec.loss import Loss
from zerocalc.spec.model import Model
from zerocalc.spec.quantisation import Quantisation
from zerocalc.spec.recipe import Recipe
from zerocalc.spec.zero import Zero

PACKAGE = ROOT / "zerocalc"
SOURCES = sorted(PACKAGE.rglob("*.py"))

PHYSICS = {
    "counts",
    "details",
    "quantities",
    "presets",
    "sources",
    "formulas",
    "ledger",
    "schedule",
    "spec",
}
ENGINE = {"model", "sharding", "frameworks", "memory", "traffic", "timing", "results", "estimator"}

MAY_IMPORT: dict[str, set[str]] = {
    "lazy": set(),
    "quantities": set(),
    "sources": set(),
    "formulas": {"formulas"},
    "ledger": {"formulas"},
    "schedule": {"formulas", "ledger"},
    "presets": {"quantities"},
    "spec": {"spec", "quantities", "presets"},
    "configs": {"configs", "spec", "quantities", "presets"},
    "counts": {"ledger"},
    "details": {"ledger"},
    "model": {"model", "spec", "formulas", "ledger", "presets", "counts"},
    "huggingface": {"huggingface", "model", "counts", "spec", "quantities", "presets"},
    "sharding": {"sharding", "model", "spec", "formulas", "ledger"},
    "frameworks": {"frameworks", "memory", "traffic", "sharding", "model", "spec"}
    | {"formulas", "ledger", "schedule"},
    "memory": {"memory", "sharding", "model", "spec", "formulas", "ledger"},
    "traffic": {"traffic", "sharding", "model", "spec", "formulas", "ledger", "schedule"},
    "results": {"details", "ledger", "schedule", "spec"},
    "timing": {"traffic", "sharding", "formulas", "ledger", "schedule", "spec", "results"},
    "estimator": PHYSICS | ENGINE,
    "answers": {"answers"} | PHYSICS | ENGINE,
    "papers": {"papers"} | PHYSICS | ENGINE,
    # What views print is in the results; published tables are results of their own (papers).
    "render": {"render", "results", "counts", "answers", "papers", "quantities", "sources"},
    "__main__": {"cli"},
    "cli": {"cli", "zerocalc", "render", "configs", "huggingface", "answers", "papers"}
    | PHYSICS
    | ENGINE,
}
"""What each part may import of ours beside `zerocalc.lazy`, wherever in a file the import stands.
``from zerocalc import answers`` counts as an import of all that is in there: what it loads, and
when, is for `zerocalc.lazy`.
"""

ONLY_IN = {"rich": "render", "typer": "cli"}


def part(file: Path) -> str:
    """The part of the house that a file belongs to: a folder or a module."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[str]:
    """The dotted names of all modules imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


@pytest.mark.parametrize(
    "file", [file for file in SOURCES if file != PACKAGE / "__init__.py"], ids=name
)
def test_imports_run_downwards(file: Path) -> None:
    assert part(file) in MAY_IMPORT, (
        f"{part(file)} has no place in the house yet: say in MAY_IMPORT what it may import"
    )
    for module in imports(ast.parse(file.read_text("utf-8"))):
        top, _, rest = module.partition(".")
        if top == "zerocalc":
            wanted = rest.partition(".")[0]
            if not (PACKAGE / wanted).is_dir() and not (PACKAGE / f"{wanted}.py").is_file():
                wanted = "zerocalc"  # a name of the package itself
            assert wanted in MAY_IMPORT[part(file)] | {"lazy"}, f"{name(file)} imports {module}"
        if top in ONLY_IN:
            assert part(file) == ONLY_IN[top], f"{name(file)} imports {top}"


@pytest.mark.parametrize("file", SOURCES, ids=name)
def test_no_file_is_two_rooms(file: Path) -> None:
    assert len(file.read_text("utf-8").splitlines()) <= 400


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Every name, and every text that can be a key; prose has spaces."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in prose
            and " " not in node.value
        ):
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name


FRAMEWORKS = re.compile(
    r"deepspeed|torchtitan|megatron|fsdp|accelerate|colossal|fairscale|lightning", re.IGNORECASE
)
NAMED_AFTER = {
    "frameworks": "what they do",
    "configs": "readers of tools' files",
    "papers": "names of published tables",
    "sources": "tags of papers",
    "answers/other_tools.py": "names of tools that we compare with",
}


@pytest.mark.parametrize(
    "file",
    [file for file in SOURCES if not {part(file), name(file)} & NAMED_AFTER.keys()],
    ids=name,
)
def test_no_framework_is_known_by_name(file: Path) -> None:
    """A framework is known by name in its own file and where configurations are read."""
    assert not {
        text for text in identifiers(ast.parse(file.read_text("utf-8"))) if FRAMEWORKS.search(text)
    }


# Presets.

SPECS: dict[str, type[Spec]] = {
    "models": Model,
    "gpus": Gpu,
    "nodes": Node,
    "recipes": Recipe,
    "frameworks": Framework,
    "implementations": Implementation,
    "losses": Loss,
    "quantisations": Quantisation,
}
PRESETS = [(kind, preset) for kind in presets.KINDS for preset in presets.names(kind)]
COUNTED = {
    "models": 105,
    "gpus": 33,
    "nodes": 16,
    "recipes": 17,
    "frameworks": 7,
    "implementations": 8,
    "losses": 8,
    "families": 208,
    "quantisations": 10,
    "papers": 12,
}
"""Presets of each kind, exactly: one that is lost is seen, and one that is added is meant."""


@pytest.mark.parametrize(
    ("kind", "preset"), PRESETS, ids=[f"{kind}-{preset}" for kind, preset in PRESETS]
)
def test_preset_loads_and_has_a_source(kind: str, preset: str) -> None:
    table = presets.load(kind, preset)
    assert len(table["source"]) > 5
    assert table["title"]
    if kind in SPECS:
        made = SPECS[kind].model_validate(table)
        assert SPECS[kind].model_validate(made.model_dump(mode="json")) == made
    if kind in {"recipes", "frameworks", "implementations", "losses", "quantisations"}:
        assert table["name"] == preset
    if kind == "frameworks":
        Recipe.model_validate(presets.load("recipes", table["recipe"]))
        Implementation.model_validate(presets.load("implementations", table["implementation"]))
    if kind == "implementations":
        Loss.model_validate(presets.load("losses", table["loss"]))
    if kind == "nodes":
        assert table["gpu"] in presets.names("gpus")
    if kind == "models":
        model = Model.model_validate(table)
        assert model.stack is not None or not model.assumed, (
            "a preset guesses nothing; what a family's file notes of its class stays"
        )


@pytest.mark.parametrize("kind", presets.KINDS)
def test_no_preset_is_lost(kind: str) -> None:
    assert len(presets.names(kind)) == COUNTED[kind]


def test_every_file_of_a_kind_is_a_preset() -> None:
    for folder in presets.folder().iterdir():
        assert folder.name in (*presets.KINDS, *presets.TABLES)
        assert {file.suffix for file in folder.iterdir()} == {".toml"}


with (ROOT / "tests" / "data" / "model_counts.csv").open(newline="", encoding="utf-8") as _stream:
    COUNTS = {row["name"]: int(row["total"]) for row in csv.DictReader(_stream)}


@pytest.mark.parametrize("preset", presets.names("models"))
def test_model_presets_count_exactly(preset: str) -> None:
    assert (
        count_parameters(Model.model_validate(presets.load("models", preset))).total
        == COUNTS[preset]
    )


@pytest.mark.parametrize("name", TITLES)
def test_written_out_presets_are_what_their_configs_say(name: str) -> None:
    assert (presets.folder() / "models" / f"{name}.toml").read_text("utf-8") == preset_of(name), (
        "python -m tests.renew_models"
    )


def test_every_reference_count_is_of_a_preset() -> None:
    assert set(COUNTS) == set(presets.names("models"))


# Flags and fields.

FILE_ONLY = {
    "config_notes": "what a configuration says beside the job",
    "model.title": "a file's own words",
    "model.source": "a file's own words",
    "model.assumed": "kept with a model whose dimensions were filled in",
    "model.filled": "kept with a model whose dimensions were filled in",
    "model.qkv_bias": "a detail of a family; follows from kind",
    "model.out_bias": "a detail of a family; follows from kind",
    "model.mlp_bias": "a detail of a family; follows from kind",
    "model.qk_norm": "a detail of a family",
    "model.dropout": "a detail of a family; follows from kind",
    "model.family": "what a config.json says it is",
    "model.stack": "an architecture written out, module by module; a config.json gives it",
    "model.dtype": "what a config.json says of its checkpoint",
    "model.lora.assumed": "kept with adapters whose targets were filled in",
}
FROM_A_NAME = {
    "cluster.gpu",
    "framework",
    "recipe",
    "implementation",
    "loss",
    "model.stack",
    "model.quantised",
}
"""Subtrees that a name or a TOML file stands for as a whole."""


READ_LATER: dict[str, type[Spec]] = {"model.lora": Lora}
"""Fields whose classes are read only where they are given, so that the annotation does not name
them.
"""
SPELLED = {f"model.lora.{field}": f"lora_{field}" for field in Lora.model_fields} | {
    "model.quantised": "quantise"
}
"""Fields that need the name of the part they belong to."""


def leaves(spec: type[Spec], prefix: str = "") -> Iterator[str]:
    """The dotted paths of all fields that hold no further fields, and of subtrees that a name
    stands for.
    """
    for field, info in spec.model_fields.items():
        path = f"{prefix}{field}"
        if path in READ_LATER:
            yield from leaves(READ_LATER[path], f"{path}.")
            continue
        inner = [
            kind
            for kind in (info.annotation, *get_args(info.annotation))
            if isinstance(kind, type) and issubclass(kind, Spec)
        ]
        if inner and path not in FROM_A_NAME:
            yield from leaves(inner[0], f"{path}.")
        else:
            yield path


def test_every_flag_sets_a_field_and_every_field_has_a_flag() -> None:
    fields = set(leaves(Job))
    flags = {flag.path for flag in FLAGS}
    assert {"zero.stage", "cluster.gpu", "recipe"} <= fields
    assert flags - fields == {"model"}  # the name of a model, beside the flags for its fields
    assert fields - flags == set(FILE_ONLY)


SPELLED_AS_A_VERB = {"--quantise": "model.quantised"}


def test_flags_are_spelled_like_their_fields() -> None:
    names = [flag.name for flag in FLAGS] + [flag.alias for flag in FLAGS if flag.alias]
    assert len(set(names)) == len(names)
    for flag in FLAGS:
        assert flag.name == "--" + SPELLED.get(flag.path, flag.path.rpartition(".")[2]).replace(
            "_", "-"
        )
        assert flag.help.endswith(".")


def _undocumented_fields(tree: ast.Module) -> Iterator[str]:
    """The fields of classes that no docstring follows; constants of a class are none."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(
                statement.target, ast.Name
            ):
                continue
            documented = (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            )
            if not documented:
                yield f"{node.name}.{statement.target.id}"


@pytest.mark.parametrize("file", sorted((PACKAGE / "spec").glob("*.py")), ids=name)
def test_every_field_of_a_spec_has_a_docstring(file: Path) -> None:
    """A string under each field says what it is, in which unit, and what it changes."""
    assert not list(_undocumented_fields(ast.parse(file.read_text("utf-8"))))


def test_every_field_of_zero_has_a_default() -> None:
    assert Zero() == Zero.model_validate({})


# Commands and documentation.


def test_every_command_is_documented() -> None:
    modules = {file.stem for file in (PACKAGE / "cli").glob("*.py")} - {
        "__init__",
        "error_location",
        "errors",
        "flags",
        "job_file",
        "jobs",
        "overrides",
        "parameters",
        "streams",
    }
    assert modules == set(COMMANDS)
    documented = "".join(document.read_text("utf-8") for document in documents())
    help_text = run("--help").out
    for command in COMMANDS:
        assert re.search(rf"^  {command}  +\S", help_text, re.MULTILINE), (
            f"zerocalc --help does not say what {command} does"
        )
        assert f"zerocalc {command}" in documented


def test_public_names_exist_and_are_documented() -> None:
    for public in zerocalc.__all__:
        assert getattr(zerocalc, public) is not None
    assert set(zerocalc.__all__) <= set(dir(zerocalc))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = zerocalc.nothing
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("file", SOURCES, ids=name)
def test_every_module_and_formula_has_a_docstring(file: Path) -> None:
    tree = ast.parse(file.read_text("utf-8"))
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Name)
            and decorator.func.id in {"formula", "ratio"}
            for decorator in node.decorator_list
        ):
            assert ast.get_docstring(node), node.name


# What a start loads: guarded by modules, not by time.


def loaded(code: str) -> set[str]:
    """The modules that are loaded after ``code`` ran in a fresh interpreter, whatever it printed;
    without packages of ours, which hold nothing but modules that are imported on use.
    """
    tail = """
import sys, json
ours = [name for name, module in sys.modules.items()
        if name.startswith("zerocalc.") and hasattr(module, "__path__")]
sys.stderr.write(json.dumps(sorted(sys.modules.keys() - ours)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, env=environment(), check=True
    )
    found: list[str] = json.loads(done.stderr.decode().splitlines()[-1])
    return set(found)


def under(modules: set[str], *tops: str) -> set[str]:
    return {
        module
        for module in modules
        if any(module == top or module.startswith(f"{top}.") for top in tops)
    }


def command(*arguments: str) -> str:
    return f"from zerocalc.cli import run\nassert run({list(arguments)!r}) == 0"


def test_import_loads_next_to_nothing() -> None:
    modules = loaded("import zerocalc\nzerocalc.__version__")
    assert not under(
        modules, "rich", "typer", "pydantic", "tomllib", "importlib.metadata", "zerocalc.cli"
    )
    assert under(modules, "zerocalc") == {"zerocalc"}


HEAVY = ("rich", "yaml", "asyncio", "unittest", "doctest", "numpy", "http", "xml")
"""Modules that pydantic and typer do without; tomllib reads the framework and the recipe."""


def test_plan_json_loads_only_what_it_needs() -> None:
    modules = loaded(command("plan", "--params", "7.5B", "--gpus", "64", "--json"))
    assert not under(modules, *HEAVY)
    others = [f"zerocalc.cli.{other}" for other in COMMANDS if other != "plan"]
    views = ["render", "configs", "huggingface", "papers", "model.counting"]
    views += ["answers.explain", "answers.timeline", "answers.other_tools"]
    assert not under(
        modules,
        *others,
        *[f"zerocalc.{view}" for view in views],
        "zerocalc.formulas.published",
        "zerocalc.formulas.estimators",
        "zerocalc.frameworks.zero3_prefetch",
    )
    offload = ("answers.offloading", "spec.offload")  # programs name their own
    assert not under(modules, *[f"zerocalc.{module}" for module in offload])


def test_a_decoder_loads_no_foreign_kinds() -> None:
    sizes = ("--layers", "2", "--hidden", "64", "--heads", "2", "--seq", "64")
    modules = loaded(command("plan", *sizes, "--gpus", "8", "--json"))
    kinds = {module.rpartition(".")[2] for module in under(modules, "zerocalc.model.kinds")}
    attention = {"attention", "attention_inputs", "attention_values", "scores"}
    assert kinds == {"embedding_head", "norm", "mlp"} | attention


def test_a_refusal_loads_no_rich() -> None:
    code = (
        "from zerocalc.cli import run\nassert run(['plan', '--params', '10Q', '--gpus', '8']) == 2"
    )
    assert not under(loaded(code), "rich", "zerocalc.render")


def test_help_loads_no_rich() -> None:
    assert not under(
        loaded(command("plan", "--help")), "rich", "zerocalc.render", "zerocalc.estimator"
    )


def test_yaml_is_read_where_there_is_some(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text('{"zero_optimization": {"stage": 2}}')
    modules = loaded(
        command("plan", "--params", "1B", "--gpus", "8", "--config", str(config), "--json")
    )
    assert not under(modules, *HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        "plan --params 1B --gpus 8 --format csv",
        "plan --params 1B --gpus 8",
        "presets gpus",
        "params gpt2",
    ],
)
def test_other_commands_load_no_foreign_views(arguments: str) -> None:
    modules = loaded(command(*arguments.split()))
    assert not under(modules, "zerocalc.configs", "zerocalc.huggingface", "zerocalc.papers")
