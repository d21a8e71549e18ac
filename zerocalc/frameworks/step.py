"""One optimizer step as a framework's program writes it: what it sends, and what is alive.

A program gathers, computes, frees, reduces and updates. Every `Step.send` becomes a collective, and
every `Step.hold` a term that is alive until `Step.free`. Whenever the program computes, or marks an
instant, all that is alive then is summed up with the activations of that instant; the largest sum
within each moment of the ledger is what the ledger shows of it.

Alike layers are written once: memory is linear in depth, so that the first and the last of them
decide, and both are looked at wherever the program computes in a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import Literal

from zerocalc.formulas.buffers import held_bytes, held_in_group_bytes, held_share_bytes
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import MOMENTS, Block, Kind, Moment, Term, alive_at, block, span, term
from zerocalc.memory.saved import Alive, Position, Saved
from zerocalc.memory.states import states
from zerocalc.schedule import Collective, Link, Op, Phase, collective
from zerocalc.sharding.rank import Rank
from zerocalc.spec.framework import FrameworkStage
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.groups import link

Word = Literal["gather", "reduce", "compute", "weights", "fp32", "int8"]
"""What a dtype is called in a program: by what the recipe uses it for, or by its own name."""


TRAINED_ANYWHERE = (
    "which parameters are trained is not known: gradients of a layer or tensor counted as if all "
    "of it that can be were, reduced as one"
)


class Step:
    """One rank's optimizer step at one ZeRO stage.

    ``job``, ``rank``, ``stage``: whose step it is. ``saved``: what the layers save for backward.
    ``collectives`` and `block` are the outcome.
    """

    def __init__(
        self,
        job: Job,
        rank: Rank,
        stage: FrameworkStage,
        saved: Saved,
    ) -> None:
        self.job, self.zero, self.rank = job, job.zero, rank
        self.saved = saved
        self.stage, self.source = stage.stage, job.framework.source
        self.collectives: list[Collective] = []
        self.phase: Phase = "forward"
        self.overlaps = job.overlaps(stage.stage)
        self.micro_batches = job.training.accumulation
        defers = job.zero.defer_grad_sync or (job.framework.pipelines_defer and job.parallel.pp > 1)
        self.reductions = 1 if stage.sync == "step" or defers else self.micro_batches
        self.accumulates = self.micro_batches > 1
        self.deferred = self.accumulates and defers
        self._alive: dict[int, Term] = {}
        self._made: dict[tuple[str | int, ...], Term | None] = {}
        self._alive_bytes = 0
        self.spanning: list[Term] = []
        self._unknown: list[str] = []
        self._assumptions: list[str] = []
        self._largest: dict[Moment, tuple[int, tuple[Term, ...], tuple[Alive, ...], int]] = {}
        self._reduced = self._reduced_bytes = 0

    # Dtypes and groups of ranks.

    def dtype(self, word: Word) -> str:
        """The dtype that a word stands for; ``weights`` are those that are trained."""
        job = self.job
        if word == "gather":
            return job.gather_dtype
        if word == "reduce":
            return job.reduce_dtype
        if word == "weights":
            rows = job.trained_recipe.rows
            return next(row.dtype for row in rows if row.kind == "weights" and row.of != "frozen")
        return job.recipe.compute if word == "compute" else word

    @cached_property
    def shards(self) -> Link:
        """The ranks that share one copy of the states; all, where none of them is sharded."""
        job, rank = self.job, self.rank
        ranks = job.shards if self.stage else job.gradient_group
        return self.link(ranks if rank.group == "dp" else rank.shards)

    @cached_property
    def replicas(self) -> Link:
        """The ranks that hold the same share, one in each copy of the states."""
        return self.link(self.job.replicas, apart=self.shards.ranks)

    def link(self, ranks: int, source: str = "", *, apart: int = 1) -> Link:
        """Some of the ranks that reduce with each other, each ``apart`` ranks from the next."""
        return link(self.job, self.rank.group, ranks, source or self.source, apart=apart)

    # Traffic.

    def send(
        self,
        over: Link,
        op: Op,
        what: str,
        dtype: str,
        elements: int,
        calls: int,
        *,
        overlapped: bool = True,
    ) -> None:
        """``calls`` collectives of ``elements`` each in this phase, hidden behind compute where the
        stage overlaps and ``overlapped`` is true. None where there is nobody to send to.
        """
        if over.ranks > 1 and elements and calls:
            hidden = overlapped and self.overlaps
            size = elements * DTYPE_BYTES[dtype]
            self.collectives.append(
                collective(over, self.phase, op, what, dtype, size, calls, hidden)
            )

    # Memory.

    def hold(
        self,
        name: str,
        kind: Kind,
        elements: int,
        word: Word,
        *,
        copies: int = 1,
        shards: int = 1,
        group: int = 1,
    ) -> Term | None:
        """Allocate ``copies`` of ``elements``: all of them, a rank's share of ``shards``, or of a
        smaller ``group``. Alive until it is freed.
        """
        key = (name, elements, word, copies, shards, group)
        entry = self._made.get(key)
        if entry is None or id(entry) in self._alive:
            entry = self.made(name, kind, elements, word, copies=copies, shards=shards, group=group)
            self._made[key] = entry
        return None if entry is None else self.allocate(entry)

    def made(
        self,
        name: str,
        kind: Kind,
        elements: int,
        word: Word,
        *,
        copies: int = 1,
        shards: int = 1,
        group: int = 1,
    ) -> Term | None:
        """As `hold`, a term that nobody has allocated; none of no elements."""
        if not elements:
            return None
        size = DTYPE_BYTES[self.dtype(word)]
        if shards == group == 1:
            return term(
                name,
                kind,
                MOMENTS,
                held_bytes,
                elements=elements,
                bytes_per_element=size,
                copies=copies,
            )
        return term(
            name,
            kind,
            MOMENTS,
            held_share_bytes if group == 1 else held_in_group_bytes,
            elements=elements,
            shards=shards if group == 1 else group,
            bytes_per_element=size,
            copies=copies,
        )

    def allocate(self, made: Term) -> Term:
        """Make a term alive until it is freed."""
        self._alive[id(made)] = made
        self._alive_bytes += made.bytes
        return made

    def free(self, *terms: Term | None) -> None:
        """Free what was held; what was not there needs no freeing."""
        for made in terms:
            if made is not None:
                del self._alive[id(made)]
                self._alive_bytes -= made.bytes

    def states(
        self,
        *,
        as_stage: int | None = None,
        since: Moment | None = None,
        until: Moment = "step",
        waiting: Word | None = None,
        reached: tuple[int, int] | None = None,
        gradients: bool = True,
        owner_blocks: int | None = None,
    ) -> Block:
        """The recipe's rows: weights, gradients and optimizer states, divided as at a stage.

        ``since``, ``until``: the moments of gradients, from backward to the optimizer step unless
        told otherwise. ``waiting``: the dtype in which gradients are kept whole while their
        reduction is deferred. ``reached``: elements whose gradients are reduced by the start of
        backward, and by its end.
        ``gradients``: false where the framework keeps others instead.
        """
        return states(
            self.job.trained_recipe,
            self.rank,
            self.stage if as_stage is None else as_stage,
            accumulates=self.accumulates,
            whole_gradients=self.deferred,
            waiting_dtype=self.dtype(waiting) if waiting else None,
            owner_blocks=owner_blocks,
            since=since,
            until=until,
            reached=reached,
            gradients=gradients,
        )

    def keep(self, made: Block) -> None:
        """Terms that say themselves at which moments they are alive: model states, and what lies
        outside the GPU.
        """
        self.spanning += made.terms
        self._unknown += made.unknown
        self._assumptions += made.assumptions

    def reduced(self, elements: int, bytes_per_element: int) -> None:
        """So many elements of gradients are reduced by now, and a rank has its share of them."""
        self._reduced = elements
        self._reduced_bytes = ceil_div(elements, self.rank.shards) * bytes_per_element

    def reduced_at(self, moment: Moment) -> int:
        """Elements that were reduced at the largest instant of a moment."""
        found = self._largest.get(moment)
        return 0 if found is None else found[3]

    def unknown(self, what: str) -> None:
        """Something that is held, and nobody knows how much of it."""
        self._unknown.append(what)

    def assume_placed(self) -> None:
        """Say so where it is not known which parameters are trained."""
        if not self.rank.placed:
            self.assume(TRAINED_ANYWHERE)

    def assume(self, text: str) -> None:
        """An assumption about what is held."""
        self._assumptions.append(text)

    # Time: phases, and the instants at which memory is looked at.

    def mark(self, moment: Moment, position: Position = "idle") -> None:
        """Look at all that is alive at an instant, with the activations of its position."""
        self.look(moment, self.saved.at(position))

    def look(self, moment: Moment, *saved: Alive) -> None:
        """Look at all that is alive at an instant, with some activations."""
        total = self._alive_bytes + self._reduced_bytes
        for each in saved:
            total += each.bytes
        before = self._largest.get(moment)
        if before is None or total > before[0]:
            held = tuple(self._alive.values())
            self._largest[moment] = total, held, saved, self._reduced

    def forward(self) -> None:
        """The forward pass begins; what is alive so far is there at rest."""
        self.mark("load")
        self.phase = "forward"

    def run_forward(self) -> None:
        """The whole forward pass and the loss, where nothing is gathered or freed in them."""
        self.forward()
        self.compute_layers()
        self.compute_head()
        self.compute_loss()

    def compute_layers(self) -> None:
        """Run the layers: the first one, with no other's activations, up to the last one."""
        self.mark("forward", "first layer")
        self.mark("forward", "last layer")

    def compute_head(self) -> None:
        """Run the final norm and the head: all layers' activations and the logits."""
        self.mark("forward", "head")

    def compute_loss(self) -> None:
        """The loss, until the gradient of the logits exists."""
        self.mark("loss", "loss")

    def backward(self) -> None:
        """The backward pass begins."""
        self.phase = "backward"

    def compute_last_layer_backward(self) -> None:
        """Run the backward of the last layer, the first to have its turn."""
        self.mark("backward_start", "last layer in backward")

    def compute_first_layer_backward(self) -> None:
        """Run the backward of the first layer, the last to have its turn."""
        self.mark("backward_end", "first layer in backward")

    def compute_layer_backward(
        self,
        moment: Moment,
        layers: int,
        whole: int,
        gradients: Callable[[int | None], Term | None],
    ) -> None:
        """Run one layer's backward, ``layers`` of ``whole`` being left, instant by instant:
        ``gradients`` holds as many elements of its weights' gradients as there are by then.
        """
        for instant in self.saved.instants:
            held = gradients(instant.gradients)
            self.look(moment, self.saved.of_layers(layers - instant.among, whole), instant.alive)
            self.free(held)

    def compute_layers_backward(self) -> None:
        """Run the layers' backward, where all of them hold the same."""
        self.compute_last_layer_backward()
        self.compute_first_layer_backward()

    def compute_after_layers(self) -> None:
        """What is alive once no layer is left in backward."""
        self.mark("backward_end", "after the layers")

    def update(self) -> None:
        """The optimizer step begins."""
        self.phase = "step"

    def compute_update(self) -> None:
        """Run the optimizer."""
        self.mark("step", "step")

    # The outcome.

    def block(self) -> Block:
        """The terms of the step: what was alive at each moment's largest instant."""
        alive: dict[int, tuple[Term, list[Moment]]] = {}
        for moment, (_, held, saved, _) in self._largest.items():
            for made in chain(held, *[each.terms for each in saved]):
                alive.setdefault(id(made), (made, []))[1].append(moment)
        terms = [*self.spanning, *self.saved.elsewhere]
        for made, moments in alive.values():
            terms += [alive_at(made, part) for part in _spans(moments)]
        unknown = (*self._unknown, *self.saved.unknown)
        return block(terms, unknown, (*self.saved.assumptions, *self._assumptions))


def _spans(moments: list[Moment]) -> list[tuple[Moment, ...]]:
    """Moments as spans without a gap.

    >>> _spans(["forward", "loss", "step"])
    [('forward', 'loss'), ('step',)]
    """
    out: list[list[Moment]] = []
    for moment in sorted(moments, key=MOMENTS.index):
        if out and MOMENTS.index(moment) == MOMENTS.index(out[-1][-1]) + 1:
            out[-1].append(moment)
        else:
            out.append([moment])
    return [span(part[0], part[-1]) for part in out]
