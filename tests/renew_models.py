"""Write the presets of models from their configs anew: ``python -m tests.renew_models``, then read
the difference before committing it.

A model that no flat kind describes is a preset written out module by module; the config it comes
from lies in ``tests/data/configs``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from tests.running import ROOT
from zerocalc import load_model

DATA = ROOT / "tests" / "data"

TITLES = {
    "bart-large": ("BART large", "facebook/bart-large"),
    "bloom-176b": ("BLOOM 176B", "bigscience/bloom"),
    "bloom-560m": ("BLOOM 560M", "bigscience/bloom-560m"),
    "bloom-7b1": ("BLOOM 7.1B", "bigscience/bloom-7b1"),
    "dbrx": ("DBRX 132B", "databricks/dbrx-base"),
    "deepseek-v2": ("DeepSeek-V2", "deepseek-ai/DeepSeek-V2"),
    "deepseek-v2-lite": ("DeepSeek-V2 Lite", "deepseek-ai/DeepSeek-V2-Lite"),
    "deepseek-v3": ("DeepSeek-V3", "deepseek-ai/DeepSeek-V3"),
    "falcon-40b": ("Falcon 40B", "tiiuae/falcon-40b"),
    "falcon-7b": ("Falcon 7B", "tiiuae/falcon-7b"),
    "flan-t5-xxl": ("Flan-T5 XXL", "google/flan-t5-xxl"),
    "gemma-2-27b": ("Gemma 2 27B", "google/gemma-2-27b"),
    "gemma-2-2b": ("Gemma 2 2B", "google/gemma-2-2b"),
    "gemma-2-9b": ("Gemma 2 9B", "google/gemma-2-9b"),
    "gemma-2b": ("Gemma 2B", "google/gemma-2b"),
    "gemma-3-4b-it": ("Gemma 3 4B with its vision tower", "google/gemma-3-4b-it"),
    "gemma-7b": ("Gemma 7B", "google/gemma-7b"),
    "gpt-j-6b": ("GPT-J 6B", "EleutherAI/gpt-j-6b"),
    "gpt-neox-20b": ("GPT-NeoX 20B", "EleutherAI/gpt-neox-20b"),
    "gpt-oss-120b": ("gpt-oss 120B", "openai/gpt-oss-120b"),
    "gpt-oss-20b": ("gpt-oss 20B", "openai/gpt-oss-20b"),
    "jamba-v0.1": ("Jamba v0.1", "ai21labs/Jamba-v0.1"),
    "llama-4-scout": ("Llama 4 Scout with its vision tower", "meta-llama/Llama-4-Scout-17B-16E"),
    "mamba-2.8b": ("Mamba 2.8B", "state-spaces/mamba-2.8b-hf"),
    "mixtral-8x22b": ("Mixtral 8x22B", "mistralai/Mixtral-8x22B-v0.1"),
    "mixtral-8x7b": ("Mixtral 8x7B", "mistralai/Mixtral-8x7B-v0.1"),
    "mpt-7b": ("MPT 7B", "mosaicml/mpt-7b"),
    "olmo-2-7b": ("OLMo 2 7B", "allenai/OLMo-2-1124-7B"),
    "opt-1.3b": ("OPT 1.3B", "facebook/opt-1.3b"),
    "opt-30b": ("OPT 30B", "facebook/opt-30b"),
    "opt-350m": ("OPT 350M", "facebook/opt-350m"),
    "opt-6.7b": ("OPT 6.7B", "facebook/opt-6.7b"),
    "phi-2": ("Phi-2", "microsoft/phi-2"),
    "phi-3-mini": ("Phi-3 mini", "microsoft/Phi-3-mini-4k-instruct"),
    "phi-4": ("Phi-4", "microsoft/phi-4"),
    "pythia-1.4b": ("Pythia 1.4B", "EleutherAI/pythia-1.4b"),
    "pythia-12b": ("Pythia 12B", "EleutherAI/pythia-12b"),
    "pythia-6.9b": ("Pythia 6.9B", "EleutherAI/pythia-6.9b"),
    "qwen1.5-moe-a2.7b": ("Qwen1.5 MoE A2.7B", "Qwen/Qwen1.5-MoE-A2.7B"),
    "qwen2-vl-7b": ("Qwen2-VL 7B with its vision tower", "Qwen/Qwen2-VL-7B"),
    "qwen3-235b-a22b": ("Qwen3 235B A22B", "Qwen/Qwen3-235B-A22B"),
    "qwen3-30b-a3b": ("Qwen3 30B A3B", "Qwen/Qwen3-30B-A3B"),
    "starcoder2-7b": ("StarCoder2 7B", "bigcode/starcoder2-7b"),
}
"""Title and source of each preset."""
CONFIG = {"mamba-2.8b": "mamba-2.8b-hf"}
"""The config's name where it is another one."""
HEADER = "# Written by tests/renew_models.py from tests/data/configs/{}.json.\n"


def preset(name: str) -> str:
    """The text of one preset. The weights are those that training starts from: how a checkpoint is
    quantised is not the preset's.
    """
    config = json.loads((DATA / "configs" / f"{CONFIG.get(name, name)}.json").read_text("utf-8"))
    stripped = {key: value for key, value in config.items() if key != "quantization_config"}
    title, repository = TITLES[name]
    model = model_of(stripped).model_dump(mode="json", exclude_defaults=True)
    stack = model.pop("stack")
    model |= {"title": title, "source": f"{repository} config.json"}
    lines = [
        HEADER.format(CONFIG.get(name, name))
        + "\n".join(f"{key} = {_value(value)}" for key, value in model.items())
        + "\n\n[stack]"
    ]
    lines += [f"activations = {_value(stack.get('activations', False))}"]
    lines += [f"positions = {stack['positions']}"] if "positions" in stack else []
    lines += [f"{part} = {_lines(stack[part])}" for part in ("before", "after") if stack.get(part)]
    for group in stack["groups"]:
        lines.append(
            f"\n[[stack.groups]]\ncount = {group['count']}\nmodules = {_lines(group['modules'])}"
        )
    return "\n".join(lines) + "\n"


def model_of(config: Mapping[str, Any]) -> Any:
    """The model of a config, as a reader of the file gets it."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config), "utf-8")
        return load_model(file)


def _lines(modules: list[dict[str, Any]]) -> str:
    return "[\n" + "".join(f"    {_value(module)},\n" for module in modules) + "]"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return (
        key
        if key.replace("_", "").replace("-", "").isalnum() and key.isascii()
        else json.dumps(key)
    )


def main() -> None:
    """Write every preset that changed, and name it."""
    for name in TITLES:
        file = ROOT / "presets" / "models" / f"{name}.toml"
        text = preset(name)
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
            sys.stdout.write(f"wrote {file.name}\n")


if __name__ == "__main__":
    main()
