"""What windows gather, whatever the model and the windows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from zerocalc.formulas.windows import Calls, Layers, Node, Stack, Windows, gathers

SIZES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
LEAVES = SIZES.map(Node)
MODULES = st.one_of(LEAVES, st.tuples(SIZES, st.lists(LEAVES, min_size=1, max_size=3).map(tuple)).map(lambda parts: Node(*parts)))
LAYER = st.lists(MODULES, min_size=1, max_size=4).map(lambda calls: Node((), tuple(calls)))
GROUPS = st.lists(st.builds(Layers, st.integers(1, 4), LAYER, st.sampled_from(["none", "whole", "cut"])), max_size=3).map(tuple)
STACKS = st.builds(
    Stack, st.just((Node((30,)),)), GROUPS, st.lists(LEAVES, max_size=1).map(tuple), st.sampled_from([(Node((30,)),), (Node(shared=True),)])
)
WINDOWS = st.builds(Windows, st.integers(0, 100), st.integers(0, 400), st.integers(0, 400), st.integers(0, 20), st.booleans())
ENOUGH = 10**9


def tensors(stack: Stack) -> list[int]:
    def of(node: Node) -> list[int]:
        return [*node.own, *[size for inner in node.calls for size in of(inner)]]

    layers = [size for group in stack.layers for _ in range(group.times) for size in of(group.layer)]
    return [*[s for n in stack.before for s in of(n)], *layers, *[s for n in (*stack.after, *stack.head) for s in of(n)]]


def gathered(calls: Calls) -> Counter[int]:
    out: Counter[int] = Counter()
    for sizes, _, count in calls:
        for size in sizes:
            out[size] += count
    return out


@given(stack=STACKS, windows=WINDOWS)
def test_all_that_is_not_kept_is_gathered_for_forward_and_may_be_again(stack: Stack, windows: Windows) -> None:
    found = gathers(stack, windows)
    wanted = Counter(size for size in tensors(stack) if size > windows.persistent)
    forward = gathered(found.forward)
    assert forward.keys() == wanted.keys()
    assert all(forward[size] >= count for size, count in wanted.items())
    assert gathered(found.backward).keys() <= wanted.keys()
    assert 0 <= found.last <= max(found.most)
    assert max(found.most) <= sum(size * count for size, count in wanted.items())


@given(stack=STACKS, persistent=st.integers(0, 20))
def test_windows_larger_than_the_model_gather_once(stack: Stack, persistent: int) -> None:
    found = gathers(stack, Windows(ENOUGH, ENOUGH, ENOUGH, persistent))
    assert gathered(found.forward) == Counter(size for size in tensors(stack) if size > persistent)
    assert found.backward == ()
    assert len(found.forward) <= 1


@given(stack=STACKS, persistent=st.integers(0, 20))
def test_no_windows_gather_module_by_module_for_each_pass(stack: Stack, persistent: int) -> None:
    plain = Stack(stack.before, tuple([Layers(group.times, group.layer) for group in stack.layers]), stack.after, stack.head)
    none = Windows(0, 0, 0, persistent, secondary=True)
    found, again = gathers(plain, none), gathers(stack, none)
    shared = Counter([30] if plain.head[0].shared else [])
    assert gathered(found.forward) == gathered(found.backward) == Counter(size for size in tensors(plain) if size > persistent) + shared
    assert all(first is False for _, first, _ in found.forward) or shared
    assert all(released for _, released, _ in found.backward)
    assert gathered(again.forward) == gathered(found.forward)
    assert all(gathered(again.backward)[size] >= count for size, count in gathered(found.backward).items())
