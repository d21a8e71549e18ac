"""DeepSpeed's stage 3: which parameters are gathered when, as its windows decide it.

A micro-batch is a row of turns: a module's turn begins (its tensors are fetched, the next ones
prefetched) and ends (its tensors are released unless they are needed again soon). The rules are
those of DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py and parameter_offload.py.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

Sizes = tuple[int, ...]
"""Elements of the tensors that one call gathers, in the order of the model."""
Calls = tuple[tuple[Sizes, bool, int], ...]
"""What is gathered, whether from a second copy, how often."""
ABSENT, IN_FLIGHT, THERE = 0, 1, 2
REMEMBERED = 64
"""Models and windows whose gathers are kept: a search asks for the same ones again and again."""


class Node(NamedTuple):
    """A module: the elements of its own tensors, and the modules that it calls, in order.

    ``shared``: its tensor is the model's first (a tied head). ``frozen``: its own tensors are not
    trained. ``silent``: nothing that leaves it has a gradient, so that it has no turn in backward.
    """

    own: Sizes = ()
    calls: tuple[Node, ...] = ()
    shared: bool = False
    frozen: bool = False
    silent: bool = False


class Layers(NamedTuple):
    """So many layers that are alike, and how each one's forward pass is repeated in backward:
    ``none``, ``whole``, or ``cut``.

    ``cut``: the repetition is asked for by the layer's last module, and ends within that module, as
    soon as all that backward needs is there.
    """

    times: int
    layer: Node
    repeated: str = "none"


class Stack(NamedTuple):
    """A model as its modules are called: before the layers, the layers, the final norms, and the
    head, which a module around all this calls itself.

    ``around``: the modules around one another, without the innermost.
    """

    before: tuple[Node, ...]
    layers: tuple[Layers, ...]
    after: tuple[Node, ...]
    head: tuple[Node, ...]
    around: int = 1


class Windows(NamedTuple):
    """The windows [elements].

    What is prefetched at once, what may be gathered at once, how near a next use keeps a tensor
    there, how small a tensor always stays there. ``secondary``: what has been released in a step is
    gathered again from a second copy, in a call of its own.
    """

    prefetch: int
    live: int
    reuse: int
    persistent: int
    secondary: bool = False


class Gathers(NamedTuple):
    """The calls of one micro-batch's forward and backward pass, and elements gathered at once,
    without those never released.

    ``between``: between the passes, while the loss is computed. ``most``: the most in each pass
    while each place of the model runs, in the order of the forward pass: all before the layers,
    each layer, the final norms, the head. ``last``: while backward is in the model's first module.
    """

    forward: Calls
    backward: Calls
    between: int
    most: tuple[tuple[int, ...], tuple[int, ...]]
    last: int

    @property
    def last_layer(self) -> int:
        """The most while the last layer is in backward; before backward's first turn where there
        are no layers.
        """
        layers = self.most[1][1:-2]
        return layers[-1] if layers else self.between


class _Module(NamedTuple):
    """A node with a number of its own, and its tensors by theirs."""

    number: int
    tensors: tuple[int, ...]
    calls: tuple[_Module, ...]
    silent: bool


class _Turn(NamedTuple):
    """The beginning or the end of a module's turn, and which place of the model it is in.

    ``owner``: where a forward pass is repeated, the module in backward that asked for it.
    """

    begins: bool
    place: int
    module: int
    tensors: tuple[int, ...]
    owner: int = 0


class _Trace:
    """The turns of one micro-batch, and the sizes of the tensors."""

    def __init__(self, stack: Stack) -> None:
        self.sizes: list[int] = []
        self.frozen: list[bool] = []
        self.turns: list[_Turn] = []
        self.modules = self.place = 0
        body = [(0, node, "none") for node in self._numbered(stack.before)]
        layers = 0
        for group in stack.layers:
            for _ in range(group.times):
                layers += 1
                body.append((layers, self._numbered((group.layer,))[0], group.repeated))
        body += [(layers + 1, node, "none") for node in self._numbered(stack.after)]
        head = self._numbered(stack.head)
        self.places = layers + 3
        inner, outer = self._numbered((Node(), Node()))
        for _ in range(stack.around):
            self._begin(outer)
        self._begin(inner)
        for place, node, _ in [*body, *[(layers + 2, node, "none") for node in head]]:
            self.place = place
            self._forward(node)
        self.forward_turns = len(self.turns)
        self.place = layers + 2
        for _ in range(stack.around):
            self._begin(outer)
        for node in reversed(head):
            self._backward(node)
        self.place = layers + 1
        self._begin(inner)
        for place, node, repeated in reversed(body):
            self.place = place
            if repeated == "none":
                self._backward(node)
            elif repeated == "cut":
                self._cut(node)
            else:
                self._whole(node)

    def _numbered(self, nodes: tuple[Node, ...]) -> tuple[_Module, ...]:
        modules: list[_Module] = []
        for node in nodes:
            self.modules += 1
            number, first = self.modules, len(self.sizes)
            self.sizes += node.own
            self.frozen += [node.frozen] * len(node.own)
            tensors = (0,) if node.shared else tuple(range(first, len(self.sizes)))
            modules.append(_Module(number, tensors, self._numbered(node.calls), node.silent))
        return tuple(modules)

    def _begin(self, module: _Module, owner: int = 0) -> None:
        self.turns.append(_Turn(True, self.place, module.number, module.tensors, owner))

    def _end(self, module: _Module, owns: bool = False) -> None:
        if module.tensors or owns:
            self.turns.append(_Turn(False, self.place, module.number, module.tensors))

    def _forward(self, module: _Module, owner: int = 0) -> None:
        self._begin(module, owner)
        for inner in module.calls:
            self._forward(inner, owner)
        self._end(module)

    def _backward(self, module: _Module) -> None:
        if not module.silent:
            self._begin(module)
        for inner in reversed(module.calls):
            self._backward(inner)
        if not module.silent:
            self._end(module)

    def _whole(self, layer: _Module) -> None:
        """Backward of a layer whose forward pass runs again first."""
        self._begin(layer)
        for inner in layer.calls:
            self._forward(inner, layer.number)
        for inner in reversed(layer.calls):
            self._backward(inner)
        self._end(layer, owns=True)

    def _cut(self, layer: _Module) -> None:
        """Backward of a layer whose last module asks for the forward pass, which ends within it:
        its turn there does not.
        """
        path = [layer]
        while path[-1].calls:
            path.append(path[-1].calls[-1])
        for module in path:
            self._begin(module)
        for inner in layer.calls:
            self._forward(inner, path[-1].number)
        while not self.turns[-1].begins and self.turns[-1].module in {
            module.number for module in path
        }:
            self.turns.pop()
        self._end(path[-1], owns=True)
        for module in reversed(path[:-1]):
            for inner in reversed(module.calls[:-1]):
                self._backward(inner)
            self._end(module)


class _Tensors:
    """Where each tensor is while the turns pass, and what has been gathered."""

    def __init__(
        self,
        trace: _Trace,
        windows: Windows,
        free: dict[tuple[int, int], list[int]],
        *,
        gathered: bool,
    ) -> None:
        self.sizes, self.windows, self.free = trace.sizes, windows, free
        self.passed = [0]
        """Elements of the tensors of all turns before each."""
        self.queue: list[tuple[int, int]] = []
        """(tensor, turn) in the order of use: what is prefetched from."""
        self.uses: list[list[int]] = [[] for _ in trace.sizes]
        for number, turn in enumerate([turn for turn in trace.turns if turn.begins]):
            for tensor in turn.tensors:
                self.queue.append((tensor, number))
                self.uses[tensor].append(number)
            self.passed.append(
                self.passed[-1] + sum([trace.sizes[tensor] for tensor in turn.tensors])
            )
        self.queue.reverse()
        self.stays = [size <= windows.persistent for size in trace.sizes]
        self.state = [THERE if stays and gathered else ABSENT for stays in self.stays]
        self.used_by: list[set[int]] = [set() for _ in trace.sizes]
        self.frozen = trace.frozen
        self.owned: dict[int, list[int]] = {}
        """Frozen tensors that were gathered for a repeated forward pass: they stay until the module
        that asked for it ends, and no longer.
        """
        self.looked_at = [-1] * len(trace.sizes)
        """The last turn for which each tensor has been fetched or passed over, being there already.
        """
        self.released = [*trace.frozen]  # a second copy of what is never updated serves for good
        self.calls: list[Counter[tuple[Sizes, bool]]] = [Counter(), Counter()]
        self.turn = self.live = 0

    def fetch(self, module: int, tensors: tuple[int, ...], phase: int, owner: int = 0) -> None:
        """A module's turn begins."""
        missing = [tensor for tensor in tensors if self.state[tensor] == ABSENT]
        if missing:
            self._gather(missing, phase)
        new = 0
        for tensor in tensors:
            self.state[tensor] = THERE
            self.used_by[tensor].add(module)
            if owner and self.frozen[tensor]:
                self.used_by[tensor].add(owner)
                self.owned.setdefault(owner, []).append(tensor)
            new += self.looked_at[tensor] < self.turn
        own: set[int] = set()
        while self.queue and len(own) < new:
            tensor, use = self.queue.pop()
            self.looked_at[tensor] = use
            own.add(tensor)
        self._prefetch(phase)
        self.turn += 1

    def _prefetch(self, phase: int) -> None:
        room = min(self.windows.live - self.live, self.windows.prefetch)
        ahead: list[int] = []
        amount = 0
        while amount < room and self.queue:
            tensor, use = self.queue.pop()
            self.looked_at[tensor] = max(self.looked_at[tensor], use)
            if self.state[tensor] == ABSENT:
                self.state[tensor] = IN_FLIGHT
                ahead.append(tensor)
                amount += self.sizes[tensor]
        if ahead:
            self._gather(ahead, phase)

    def _gather(self, tensors: list[int], phase: int) -> None:
        for again in (True, False):
            group = tuple(
                [
                    self.sizes[tensor]
                    for tensor in sorted(tensors)
                    if (self.windows.secondary and self.released[tensor]) is again
                ]
            )
            if group:
                self.calls[phase][group, again] += 1
                self.live += sum(group)

    def release(self, module: int, tensors: tuple[int, ...]) -> None:
        """A module's turn ends. Which of its tensors are not needed soon is found once, and
        remembered from one micro-batch to the next.
        """
        place = module, self.turn
        free = self.free.get(place)
        if free is None:
            free = self.free[place] = [tensor for tensor in tensors if not self._needed(tensor)]
        owned = self.owned.pop(module, [])
        for tensor in (*tensors, *owned):
            self.used_by[tensor].discard(module)
        for tensor in dict.fromkeys(
            (*free, *[tensor for tensor in owned if not self.stays[tensor]])
        ):
            if self.state[tensor] == THERE and not self.used_by[tensor]:
                self.state[tensor], self.released[tensor] = ABSENT, True
                self.live -= self.sizes[tensor]

    def _needed(self, tensor: int) -> bool:
        turn, passed = self.turn, self.passed
        if self.stays[tensor] or self.looked_at[tensor] > turn:
            return True
        near = passed[turn] + self.windows.reuse
        return any(use >= turn and passed[use] < near for use in self.uses[tensor])


@lru_cache(maxsize=REMEMBERED)
def gathers(stack: Stack, windows: Windows, accumulates: bool = False) -> Gathers:
    """What one micro-batch gathers under some windows, in every step but the first two.

    Where micro-batches accumulate, what is released is decided in the first step's second one,
    which gathers also what stays from then on.

    >>> layer = Node((), (Node((10,)), Node((20,))))
    >>> gathers(Stack((Node((5,)),), (Layers(1, layer),), (), (Node((5,)),)), Windows(0, 0, 0,
    ...     5)).backward
    (((20,), False, 1), ((10,), False, 1))
    """
    trace = _Trace(stack)
    free: dict[tuple[int, int], list[int]] = {}
    if accumulates and any(size <= windows.persistent for size in trace.sizes):
        _run(trace, _Tensors(trace, windows, free, gathered=False))
    tensors = _Tensors(trace, windows, free, gathered=True)
    between, most, last = _run(trace, tensors)
    forward, backward = [
        tuple([(sizes, again, count) for (sizes, again), count in calls.items()])
        for calls in tensors.calls
    ]
    return Gathers(forward, backward, between, most, last)


def _run(
    trace: _Trace, tensors: _Tensors
) -> tuple[int, tuple[tuple[int, ...], tuple[int, ...]], int]:
    """One micro-batch; the elements gathered between its passes, at most in each place, and in its
    last turn, as `Gathers` has them.
    """
    between = last = 0
    most = [0] * trace.places, [0] * trace.places
    for number, (begins, place, module, own, owner) in enumerate(trace.turns):
        phase = number >= trace.forward_turns
        if number == trace.forward_turns:
            between = tensors.live
        if begins:
            tensors.fetch(module, own, phase, owner)
            last = tensors.live
            most[phase][place] = max(most[phase][place], last)
        else:
            tensors.release(module, own)
    return between, (tuple(most[0]), tuple(most[1])), last
