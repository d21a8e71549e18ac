"""How flags lie over a job: what zerocalc had filled in, or another flag's name had brought,
follows from what is given now.
"""

from __future__ import annotations

import re
from typing import Any

from zerocalc.cli.errors import UserError
from zerocalc.presets import label
from zerocalc.spec.defaults import DEFAULT_OF
from zerocalc.spec.dimensions import DEFAULT_KIND, DIMENSIONS, only_given

FROM_NODE = {"gpu": "gpu", "gpus_per_node": "gpus"}
"""What a node says of a cluster: the cluster's field, and the node's."""
ONE_KIND_ONLY = ("dropout", "positions", "activation")
"""Dimensions of a model that mean something to layers of one kind only, or something else to the
other.
"""
CHANGED = re.compile(rf" with ((?:(?:{'|'.join(DIMENSIONS)}) \S+(?:, )?)+)$")
"""The end of a title that says what was changed."""
LONGEST_TITLE = 200


def make_way(data: dict[str, Any], given: dict[str, Any], named: dict[str, Any]) -> list[str]:
    """Take out of a job below, and out of a named model, what flags above it make void, so that the
    answer is that to all of them at once.

    ``given`` are the flags by path, ``named`` the tables that stand for those of them that are
    names. Returns what is to be said of it. Raises `UserError` for a flag without effect.
    """
    notes = _clear_cluster(data, given, named)
    _clear_defaults(data, given)
    layer = named if "model" in named else data
    model = layer.get("model")
    if (
        "model" in given
        and "model.params" in given
        and isinstance(model, dict)
        and model.get("params") is None
    ):
        raise UserError(
            f"--params: contradicts --model {label(given['model'])}, whose parameters are "
            "counted: give one of the two"
        )
    if given and isinstance(model, dict):
        _clear_kind(model, given)
        layer["model"] = only_given(model)
    kind = given.get("model.kind", model.get("kind") if isinstance(model, dict) else None)
    if (
        "model.positions" in given and kind == "llama"
    ):  # presets of that kind state how long a sequence they were trained on
        raise UserError("--positions: kind llama has no learned positions; they are for kind gpt2")
    return notes


def _clear_cluster(data: dict[str, Any], given: dict[str, Any], named: dict[str, Any]) -> list[str]:
    """Another node brings its own GPUs; other GPUs, or another number of them, make a job's node
    another one.
    """
    cluster = data.get("cluster")
    if not isinstance(cluster, dict):
        return []
    if "cluster.node" in given:
        for field in FROM_NODE:
            cluster.pop(field, None)
        return []
    node = cluster.get("node")
    if not isinstance(node, dict) or not {"cluster.gpu", "cluster.gpus_per_node"} & given.keys():
        return []
    for field, key in FROM_NODE.items():
        if cluster.get(field) is None:
            cluster[field] = node.get(key)
    gpu = cluster.get("gpu")
    same_gpu = "cluster.gpu" not in named or (
        isinstance(gpu, dict) and gpu.get("title") == named["cluster.gpu"].get("title")
    )
    per_node = cluster["gpus_per_node"]
    if same_gpu and given.get("cluster.gpus_per_node", per_node) in (per_node, str(per_node)):
        return []
    del cluster["node"]
    flag, left = (
        "--gpus-per-node" if same_gpu else "--gpu",
        label(str(node.get("title"))[:LONGEST_TITLE]),
    )
    return [
        f"{flag}: the job's node {left} has others, so it is left out, with its links, "
        "network cards and host memory"
    ]


def _clear_defaults(data: dict[str, Any], given: dict[str, Any]) -> None:
    """Another framework brings its own recipe and implementation, and that one its loss, where the
    job has those that were brought before.
    """
    changed, before = set(given), dict(data)
    for part, owner in DEFAULT_OF:
        brings, brought = before.get(owner), data.get(part)
        if (
            owner in changed
            and isinstance(brings, dict)
            and isinstance(brought, dict)
            and brought.get("name") == brings.get(part)
        ):
            del data[part]
            changed.add(part)


def _clear_kind(model: dict[str, Any], given: dict[str, Any]) -> None:
    """Layers of another kind have no use for what only the model's own kind has."""
    kind = given.get("model.kind")
    if kind is None or kind == (model.get("kind") or DEFAULT_KIND):
        return
    for field in ONE_KIND_ONLY:
        model.pop(field, None)


def call_by_change(data: dict[str, Any], given: dict[str, Any]) -> None:
    """A named model with another dimension is another model, and is called so: once, however often
    it is changed.
    """
    model = data.get("model")
    changed = {
        name: str(given[f"model.{name}"]).strip() for name in DIMENSIONS if f"model.{name}" in given
    }
    if not isinstance(model, dict) or not isinstance(model.get("title"), str) or not changed:
        return
    title, before = model["title"], CHANGED.search(model["title"])
    if before is not None:
        title = title[: before.start()]
        changed = {**dict(part.rsplit(" ", 1) for part in before[1].split(", ")), **changed}
    set_ones = [name for name in DIMENSIONS if name in changed and model.get(name) is not None]
    words = f" with {', '.join(f'{name} {changed[name]}' for name in set_ones)}"
    model["title"] = title[: LONGEST_TITLE - len(words)] + words
