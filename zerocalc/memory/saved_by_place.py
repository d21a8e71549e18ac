"""What is saved for backward while each place of the model runs: before the layers, each layer, the
final norms, the head.

Between the instants of the ledger not all activations exist yet, or some are gone. Where what is
gathered changes from layer to layer, more may be alive then.
"""

from __future__ import annotations

from itertools import accumulate

from zerocalc.formulas.activations import logits_bytes, once_bytes
from zerocalc.ledger import ACTIVATION_KINDS, MOMENTS, Term, span, term
from zerocalc.memory.saved import Alive, Saved, alive
from zerocalc.model.architecture import Architecture
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

UNTIL_BACKWARD = span("forward", "backward_start")


class SavedByPlace:
    """The activations of one micro-batch at each place, in the order of the forward pass.
    ``forward``, ``backward``: their bytes, without those that are there at all places.
    """

    def __init__(self, job: Job, rank: Rank, arch: Architecture, saved: Saved) -> None:
        self.job, self.rank, self.arch = job, rank, arch
        ends: list[Term] = []
        self._around: list[Term] = []
        for made in saved.at("head").terms:
            passing = made.kind in ACTIVATION_KINDS and made.moments != UNTIL_BACKWARD
            if passing and made.moments[-1] in ("forward", "loss"):
                ends.append(made)
            elif passing or made.kind not in ACTIVATION_KINDS:
                self._around.append(made)
        in_loss = [made for made in saved.at("loss").terms if made.moments == ("loss",)]
        in_backward = saved.at("last layer in backward").terms
        self._layers = alive([t for t in in_backward if t.moments == UNTIL_BACKWARD])
        self._working = alive([t for t in in_backward if t.moments[0] == "backward_start"])
        self._inputs = alive([t for t in (*ends, *in_loss) if t.kind != "logits"])
        logits = [made for made in ends if made.kind == "logits"]
        # The head makes logits, or has got their gradient beside those that its caller holds; all
        # else is the loss's own.
        self._made = self._at_most(logits, ("logits",))
        names = ("gradient of the logits", "logits")[: 2 if self._returned else 1]
        self._after_loss = self._at_most(
            [t for t in (*logits, *in_loss) if t.kind == "logits" and "loss" in t.moments], names
        )
        self._up_to = _shares(arch, self._layers.bytes)
        whole = self._layers.bytes + self._inputs.bytes
        self.forward = [*self._up_to, whole, whole + self._made.bytes]
        in_layers = [amount + self._working.bytes for amount in self._up_to[1:]]
        self.backward = [0, *in_layers, whole, whole + self._after_loss.bytes]

    @property
    def _returned(self) -> bool:
        """Whether the head's caller holds the logits until backward."""
        return any(
            row.of == "logits" and row.dtype == "compute" and len(row.moments) > 1
            for row in self.job.loss.rows
        )

    def _at_most(self, logits: list[Term], names: tuple[str, ...]) -> Alive:
        """The terms of logits, or as many logits in the compute dtype as there are names."""
        made = [
            term(
                name,
                "logits",
                MOMENTS,
                logits_bytes,
                tokens=self.rank.tokens,
                vocab=self.arch.vocab,
                tensor_parallel=self.job.parallel.tp,
                bytes_per_element=DTYPE_BYTES[self.job.recipe.compute],
            )
            for name in names
        ]
        return min(alive(logits), alive(made), key=lambda each: each.bytes)

    def in_forward(self, place: int) -> tuple[Alive, ...]:
        """What is alive while a place runs forward."""
        layers, norms = len(self._up_to) - 1, len(self._up_to)
        if place <= layers:
            return (alive([*self._around, *self._of_layers(place)]),)
        head = (self._made,) if place > norms else ()
        return (alive([*self._around]), self._layers, self._inputs, *head)

    def in_backward(self, place: int) -> tuple[Alive, ...]:
        """What is alive while a place runs backward."""
        layers, norms = len(self._up_to) - 1, len(self._up_to)
        if place == 0:
            return (alive(self._around),)
        if place <= layers:
            return (alive([*self._around, *self._of_layers(place)]), self._working)
        head = (self._after_loss,) if place > norms else ()
        return (alive(self._around), self._layers, self._inputs, *head)

    def _of_layers(self, layers: int) -> tuple[Term, ...]:
        """What the first layers have saved."""
        amount = self._up_to[layers]
        if amount == self._layers.bytes:
            return self._layers.terms
        if not amount:
            return ()
        name = f"saved by the first {layers} layers" if layers > 1 else "saved by the first layer"
        made = term(
            name,
            self._layers.terms[0].kind,
            MOMENTS,
            once_bytes,
            bytes_per_micro_batch=amount,
            micro_batches_in_flight=1,
        )
        return (made,)


def _shares(arch: Architecture, whole: int) -> list[int]:
    """Of what all layers save together, the bytes of none, the first, the first two …"""
    sizes: list[int] = []
    for count, modules in arch.groups:
        sizes += [sum([module.kept_bytes for module in modules]) if whole else 0] * count
    total = sum(sizes)
    return [whole * amount // total if total else 0 for amount in accumulate(sizes, initial=0)]
