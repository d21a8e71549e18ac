"""Within a layer's backward: what is left of what it saved, and which weights have gradients yet.

Backward runs through a layer from its last operation to its first. What the layer saved goes, the
gradients of its weights come, so that the sum of both is not what it takes: a few instants decide.
They were read off recorded steps, allocation by allocation (torch 2.13, transformers 5.24).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zerocalc.formulas.activations import gradient_bytes, norm_backward_bytes, once_bytes
from zerocalc.ledger import MOMENTS, Term, term
from zerocalc.memory.saved import LayerInstant, alive
from zerocalc.model.architecture import Architecture, Modules, elements, on_rank, widest
from zerocalc.model.module import Module, saved_bytes
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES


def layer_instants(job: Job, arch: Architecture, tokens: int) -> tuple[LayerInstant, ...]:
    """The instants of the layer that saves most, from its last module to its first."""
    walk = _LayerBackward(job, arch, most_saving(arch), tokens)
    return tuple(
        [LayerInstant(alive(terms), count, walk.among) for terms, count in walk.instants()]
    )


def most_saving(arch: Architecture) -> Modules:
    """The modules of the layer that saves most."""
    return max([modules for _, modules in arch.groups], key=_saved)


class _LayerBackward:
    """One layer's modules, walked from the last to the first."""

    def __init__(self, job: Job, arch: Architecture, modules: Modules, tokens: int) -> None:
        self.job, self.arch, self.modules, self.tokens = job, arch, modules, tokens
        self.size = DTYPE_BYTES[job.recipe.compute]
        rebuilt = any(row[-1] for module in modules for row in module.saved_rows)
        stored = rebuilt and job.training.recompute == "full"
        self.among = 0 if stored else 1
        gathered = job.zero.partition_activations
        self.without = 1 if stored and not gathered else 0
        """Rows of the first module that count with the other layers': the input, which is kept."""

    def instants(self) -> Iterator[tuple[tuple[Term, ...], int]]:
        after = 0
        for number in range(len(self.modules) - 1, -1, -1):
            module, before = self.modules[number], self.modules[:number]
            own = elements([module], self.job.parallel.tp)
            if module.component == "norms":
                yield self._norm(before, module), after + own
            elif own:
                last = on_rank(module.parameter_rows[-1], self.job.parallel.tp)
                yield self._start(before, module), after + last
                yield self._end(before, module), after + own
            after += own

    def _start(self, before: Modules, module: Module) -> tuple[Term, ...]:
        """All that the module saved is there, with the gradients of what its widest operation
        reads: an MLP's activation, or attention's kernel.
        """
        heads, kv_heads, key, value = module.attends
        width = widest((module,)) or heads * key + kv_heads * (key + value)
        return self._terms(self._saved((*before, module)), 1, width)

    def _end(self, before: Modules, module: Module) -> tuple[Term, ...]:
        """Its products with its input are left: one gradient of a gate and an up that are separate,
        both where experts have them in one tensor, and a gradient of the input for each product.
        """
        width, sizes = widest((module,)), saved_bytes(module.saved_rows)
        inputs = max(1, sizes.index(max(sizes))) if sizes else 0  # rows before the widest
        left = self._saved(before) + sum(sizes[:inputs])
        if module.experts > 1:
            return self._terms(left, 1 + module.used, width)
        return self._terms(left, 3, width // 2)

    def _norm(self, before: Modules, module: Module) -> tuple[Term, ...]:
        """A norm written in steps has its fp32 input left and works on five tensors like it; one
        kernel has its input.
        """
        wide = [row for row in module.saved_rows if len(row[3]) > 1 and row[3][-1] > 2]
        in_steps = self.job.implementation.rms_norm == "eager" and len(module.parameter_rows) == 1
        sizes = saved_bytes(wide)
        left = self._saved(before) + max(sizes, default=0)
        terms = self._terms(left, 1, 0)
        if not in_steps:
            return terms
        parallel = self.job.parallel
        made = term(
            "temporaries of a norm's backward",
            "activations",
            MOMENTS,
            norm_backward_bytes,
            tokens=self.tokens,
            hidden=self.arch.hidden,
            sequence_parallel=parallel.tp if parallel.sequence_parallel else 1,
        )
        return (*terms, made)

    def _saved(self, modules: Modules) -> int:
        """Bytes that the first modules of the layer have saved."""
        if not modules:
            return 0
        rows = modules[0].saved_rows[: self.without]
        return _saved(modules) - sum(saved_bytes(rows))

    def _terms(self, left: int, streams: int, width: int) -> tuple[Term, ...]:
        parallel = self.job.parallel
        gradients = term(
            "gradients in a layer's backward",
            "activations",
            MOMENTS,
            gradient_bytes,
            tokens=self.tokens,
            hidden=streams * self.arch.hidden,
            sequence_parallel=parallel.tp if parallel.sequence_parallel else 1,
            width=width,
            tensor_parallel=parallel.tp,
            bytes_per_element=self.size,
        )
        if not left:
            return (gradients,)
        kept = term(
            "saved by the layer in backward",
            "activations",
            MOMENTS,
            once_bytes,
            bytes_per_micro_batch=left,
            micro_batches_in_flight=1,
        )
        return kept, gradients


def _saved(modules: Iterable[Module]) -> int:
    return sum([sum(saved_bytes(module.saved_rows)) for module in modules])
