"""DeepSpeed's stage 3: what gathers of parameters send, and what is gathered while each place of
the model runs (zero3_prefetch.py has the rules).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from zerocalc.formulas.formula import ceil_div
from zerocalc.formulas.quantisation import scales
from zerocalc.frameworks.step import Step
from zerocalc.frameworks.zero3_modules import windowed
from zerocalc.frameworks.zero3_prefetch import Calls
from zerocalc.ledger import Moment, Term
from zerocalc.memory.saved_by_place import SavedByPlace
from zerocalc.schedule import Link
from zerocalc.spec.recipe import DTYPE_BYTES

SCALED_TOGETHER = 8000
"""Elements, about, that share one scale where weights are gathered in int8 (qwZ)
(runtime/zero/partition_parameters.py: CUDAQuantizer).
"""
UNFOLLOWED = (
    "windows over modules to come are not followed for this model: what is gathered at "
    "once is taken as its bound, and backward as gathering all "
    "that is beyond max_reuse_distance; what is really sent can be less, or up to all of it more"
)


class Parameters:
    """The partitioned parameters of a rank: a module's are gathered when its turn comes, those of
    modules to come as far as the windows reach, and released unless they are needed again soon.

    Where modules, or how they are called, are not known, forward gathers everything, backward what
    is beyond max_reuse_distance, and max_live_parameters are there at once.
    """

    def __init__(self, step: Step) -> None:
        self.step, self.zero = step, step.zero
        self.known = windowed(step.job, step.rank)
        if self.known is None and step.rank.shards > 1:
            step.assume(UNFOLLOWED)

    # Traffic.

    def gather_for_forward(self) -> None:
        """All-gather what forward needs, in every micro-batch."""
        if self.known is None:
            whole = self.step.rank.part("partitioned")
            self._gather(self.step.shards, [(whole, self.step.micro_batches)])
        else:
            self._gather_known(self.known.forward)

    def gather_for_backward(self) -> None:
        """All-gather what is not there any more."""
        step = self.step
        if self.known is None:
            left = max(0, step.rank.part("partitioned") - self.zero.max_reuse_distance)
            self._gather(self._secondary or step.shards, [(left, step.micro_batches)])
        else:
            self._gather_known(self.known.backward)

    @cached_property
    def _secondary(self) -> Link | None:
        """The ranks that hold a second copy of the weights together (hpZ)."""
        group = self.zero.secondary_group
        return None if group is None else self.step.link(group)

    def _gather_known(self, gathered: Calls) -> None:
        """Once a tensor has been released in a step, it is gathered from the second copy."""
        micro_batches, secondary = self.step.micro_batches, self._secondary
        first: Counter[int] = Counter()
        again: Counter[int] = Counter()
        for sizes, released, count in gathered:
            elements = self._rounded(sizes)
            if secondary is None:
                first[elements] += count * micro_batches
            elif released:
                again[elements] += count * micro_batches
            else:
                first[elements] += count
                again[elements] += count * (micro_batches - 1)
        self._gather(self.step.shards, first.items())
        if secondary is not None:
            self._gather(secondary, again.items())

    def _rounded(self, sizes: Sequence[int]) -> int:
        """Elements of some tensors, each rounded up to whole shards."""
        rank, n = self.step.rank, self.step.rank.shards
        return sum([ceil_div(size, n) * n for size in sizes] if rank.rule == "tensor" else sizes)

    def _gather(self, over: Link, calls: Iterable[tuple[int, int]]) -> None:
        """All-gather weights, or their int8 quantisation with its scales (qwZ)."""
        step = self.step
        if not self.zero.quantised_weights:
            for elements, count in calls:
                step.send(over, "all_gather", "weights", step.dtype("gather"), elements, count)
            return
        amounts: Counter[int] = Counter()
        for elements, count in calls:
            step.send(over, "all_gather", "weights", "int8", elements, count)
            if elements:
                share = ceil_div(elements, over.ranks)
                each = scales(elements=share, scale_per=SCALED_TOGETHER)
                amounts[each * over.ranks] += count
        for elements, count in amounts.items():
            step.send(over, "all_gather", "scales of weights", "fp32", elements, count)

    # Memory.

    def compute_forward(self) -> None:
        """Run the layers, the head and the loss. Parameters come and go from place to place; those
        that backward needs soon are there at the loss.
        """
        step = self.step
        if self.known is None:
            live = self._hold(self._bound)
            step.compute_layers()
        else:
            self._compute_places("forward", self.known.most[0])
            live = self._hold(self.known.between)
        step.compute_head()
        step.compute_loss()
        step.free(live)

    def compute_backward(self) -> None:
        """Run the head's and the layers' backward."""
        step = self.step
        if self.known is None:
            live = self._hold(self._bound)
            step.compute_layers_backward()
            step.free(live)
            return
        self._compute_places("backward_start", self.known.most[1])
        live = self._hold(self.known.last_layer)
        step.compute_last_layer_backward()
        step.free(live)
        live = self._hold(self.known.last)
        step.compute_first_layer_backward()
        step.free(live)

    def _compute_places(self, moment: Moment, gathered: Sequence[int]) -> None:
        """Run all places of the model, of which the one with the most is looked at; ``gathered``:
        the most elements at each.
        """
        step, saved = self.step, self._saved
        size = DTYPE_BYTES[step.dtype("gather")]
        kept = saved.forward if moment == "forward" else saved.backward
        most = [elements * size + amount for elements, amount in zip(gathered, kept, strict=True)]
        place = most.index(max(most))
        live = self._hold(gathered[place])
        alive = saved.in_forward(place) if moment == "forward" else saved.in_backward(place)
        step.look(moment, *alive)
        step.free(live)

    @cached_property
    def _saved(self) -> SavedByPlace:
        step = self.step
        assert step.rank.arch is not None  # windows are followed over its modules
        return SavedByPlace(step.job, step.rank, step.rank.arch, step.saved)

    @property
    def _bound(self) -> int:
        """Elements that may be gathered at once."""
        return min(self.step.rank.part("partitioned"), self.zero.max_live_parameters)

    def _hold(self, elements: int) -> Term | None:
        return self.step.hold("live parameters", "gathered", elements, "gather")
