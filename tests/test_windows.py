"""What windows gather, whatever the model and the windows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocalc import Job, estimate
from zerocalc.frameworks.zero3_modules import windowed
from zerocalc.frameworks.zero3_prefetch import Calls, Layers, Node, Stack, Windows, gathers
from zerocalc.ledger import ACTIVATION_KINDS, Moment, span
from zerocalc.memory.activations import activations
from zerocalc.sharding.rank import rank

RUNS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "live_runs.json").read_text("utf-8")
)["runs"]

SIZES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
LEAVES = SIZES.map(Node)
MODULES = st.one_of(
    LEAVES,
    st.tuples(SIZES, st.lists(LEAVES, min_size=1, max_size=3).map(tuple)).map(
        lambda parts: Node(*parts)
    ),
)
LAYER = st.lists(MODULES, min_size=1, max_size=4).map(lambda calls: Node((), tuple(calls)))
GROUPS = st.lists(
    st.builds(Layers, st.integers(1, 4), LAYER, st.sampled_from(["none", "whole", "cut"])),
    max_size=3,
).map(tuple)
STACKS = st.builds(
    Stack,
    st.just((Node((30,)),)),
    GROUPS,
    st.lists(LEAVES, max_size=1).map(tuple),
    st.sampled_from([(Node((30,)),), (Node(shared=True),)]),
    st.sampled_from([1, 3]),
)
WINDOWS = st.builds(
    Windows,
    st.integers(0, 100),
    st.integers(0, 400),
    st.integers(0, 400),
    st.integers(0, 20),
    st.booleans(),
)
ENOUGH = 10**9


def tensors(stack: Stack) -> list[int]:
    def of(node: Node) -> list[int]:
        return [*node.own, *[size for inner in node.calls for size in of(inner)]]

    layers = [
        size for group in stack.layers for _ in range(group.times) for size in of(group.layer)
    ]
    return [
        *[s for n in stack.before for s in of(n)],
        *layers,
        *[s for n in (*stack.after, *stack.head) for s in of(n)],
    ]


def gathered(calls: Calls) -> Counter[int]:
    out: Counter[int] = Counter()
    for sizes, _, count in calls:
        for size in sizes:
            out[size] += count
    return out


@given(stack=STACKS, windows=WINDOWS)
def test_all_that_is_not_kept_is_gathered_for_forward_and_may_be_again(
    stack: Stack, windows: Windows
) -> None:
    found = gathers(stack, windows)
    wanted = Counter(size for size in tensors(stack) if size > windows.persistent)
    forward = gathered(found.forward)
    assert forward.keys() == wanted.keys()
    assert all(forward[size] >= count for size, count in wanted.items())
    assert gathered(found.backward).keys() <= wanted.keys()
    most = [amount for places in found.most for amount in places]
    assert 0 <= found.last <= found.most[1][0]
    assert 0 <= found.between <= max(found.most[0])
    assert found.last_layer <= max(most) <= sum(size * count for size, count in wanted.items())
    layers = sum(group.times for group in stack.layers)
    assert len(found.most[0]) == len(found.most[1]) == layers + 3


@given(stack=STACKS, persistent=st.integers(0, 20))
def test_windows_larger_than_the_model_gather_once(stack: Stack, persistent: int) -> None:
    found = gathers(stack, Windows(ENOUGH, ENOUGH, ENOUGH, persistent))
    assert gathered(found.forward) == Counter(size for size in tensors(stack) if size > persistent)
    assert found.backward == ()
    assert len(found.forward) <= 1


@given(stack=STACKS, persistent=st.integers(0, 20))
def test_no_windows_gather_module_by_module_for_each_pass(stack: Stack, persistent: int) -> None:
    plain = Stack(
        stack.before,
        tuple([Layers(group.times, group.layer) for group in stack.layers]),
        stack.after,
        stack.head,
    )
    none = Windows(0, 0, 0, persistent, secondary=True)
    found, again = gathers(plain, none), gathers(stack, none)
    shared = Counter([30] if plain.head[0].shared else [])
    assert (
        gathered(found.forward)
        == gathered(found.backward)
        == Counter(size for size in tensors(plain) if size > persistent) + shared
    )
    assert all(first is False for _, first, _ in found.forward) or shared
    assert all(released for _, released, _ in found.backward)
    assert gathered(again.forward) == gathered(found.forward)
    assert all(
        gathered(again.backward)[size] >= count for size, count in gathered(found.backward).items()
    )


@given(stack=STACKS, windows=WINDOWS)
def test_what_is_frozen_is_gathered_for_good_from_a_second_copy_and_no_gradient_needs_no_turn(
    stack: Stack, windows: Windows
) -> None:
    def frozen(node: Node, silent: bool) -> Node:
        return node._replace(
            calls=tuple([frozen(inner, silent) for inner in node.calls]), frozen=True, silent=silent
        )

    def without(silent: bool) -> Stack:
        layers = tuple([Layers(group.times, frozen(group.layer, silent)) for group in stack.layers])
        parts = [
            tuple([frozen(node, silent) for node in nodes])
            for nodes in (stack.before, stack.after, stack.head)
        ]
        return Stack(parts[0], layers, parts[1], parts[2], stack.around)

    assert gathers(without(silent=True), windows).backward == ()
    found = gathers(without(silent=False), windows._replace(secondary=True))
    assert all(again for calls in (found.forward, found.backward) for _, again, _ in calls)


def job_of(
    model: dict[str, Any], zero: dict[str, Any], training: dict[str, Any], gpus: int = 16
) -> Job:
    table = {
        "model": model,
        "cluster": {"gpus": gpus},
        "framework": "deepspeed",
        "zero": {"stage": 3, **zero},
        "training": {"seq": 32, **training},
    }
    return Job.model_validate(table)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"].replace(" ", "-") for run in RUNS])
def test_what_is_live_is_what_was_recorded(run: dict[str, Any]) -> None:
    job, seen = job_of(run["model"], run["zero"], run["training"], run["gpus"]), run["live"]
    known = windowed(job, rank(job))
    assert known is not None
    assert known.between == seen["forward"] == seen["loss"]
    assert [list(places) for places in known.most] == seen["most"]
    assert known.last == seen["last"]
    terms = [t for t in estimate(job).memory.gpu.terms if t.name == "live parameters"]
    at: dict[Moment, int] = {moment: t.bytes for t in terms for moment in t.moments}
    forward, backward = seen["most"]
    recorded: dict[Moment, list[int]] = {
        "forward": [seen["forward"], *forward],  # of the place with the most, with activations
        "loss": [seen["loss"]],
        "backward_start": backward,
        "backward_end": [seen["last"]],
    }
    assert set(at) <= set(recorded)
    for moment, elements in recorded.items():
        assert at.get(moment, 0) in [2 * each for each in elements]


@given(
    model=st.sampled_from([RUNS[0]["model"], {**RUNS[0]["model"], "layers": 3, "vocab": 100}]),
    zero=st.fixed_dictionaries(
        {
            name: st.integers(0, 10**6)
            for name in (
                "max_live_parameters",
                "max_reuse_distance",
                "prefetch_bucket_size",
                "persistence_threshold",
            )
        }
    ),
    training=st.fixed_dictionaries(
        {
            "seq": st.sampled_from([8, 64, 512]),
            "recompute": st.sampled_from(["none", "full"]),
            "reentrant": st.booleans(),
            "accumulation": st.integers(1, 2),
        }
    ),
)
def test_no_instant_of_a_pass_has_more_than_the_peak(
    model: dict[str, Any], zero: dict[str, Any], training: dict[str, Any]
) -> None:
    """Layers' activations come one by one and go one by one, beside what windows gather
    meanwhile.
    """
    job = job_of(model, zero, training)
    own, gpu = rank(job), estimate(job).memory.gpu
    known = windowed(job, own)
    assert known is not None
    assert own.arch is not None
    saved = [t for t in activations(job, own, own.arch).terms if t.kind in ACTIVATION_KINDS]
    layers = [t for t in saved if t.moments == span("forward", "backward_start")]
    growing = sum(t.bytes for t in layers)
    instants: tuple[Moment, Moment] = ("forward", "backward_start")
    for moment, most in zip(instants, known.most, strict=True):
        there = [
            t
            for t in saved
            if moment in t.moments and t not in layers and t.moments[-1] not in ("forward", "loss")
        ]
        there += [
            t
            for t in gpu.terms
            if moment in t.moments and t.kind not in {"gathered", *ACTIVATION_KINDS}
        ]
        beside = sum(t.bytes for t in there)
        for done, elements in enumerate(most[1:-2], 1):
            assert (
                beside + growing * done // model["layers"] + 2 * elements
                <= gpu.moments[moment]
                <= gpu.peak_bytes
            )
        if moment == "forward":
            assert beside + growing + 2 * max(most[-2:]) <= gpu.moments[moment]
