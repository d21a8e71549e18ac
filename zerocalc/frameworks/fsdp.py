"""PyTorch's FSDP1 and FSDP2, and torchtitan on FSDP2: shard every unit, gather it to use it.

torch 2.13, torch/distributed/fsdp: _flat_param.py and _runtime_utils.py (FSDP1);
_fully_shard/_fsdp_param_group.py, _fsdp_collectives.py and _fsdp_param.py (FSDP2). torchtitan 0.2.2
and 0.3.0, models/llama3/infra/parallelize.py. The order of allocations was recorded for FSDP2, and
is taken for FSDP1 too, which gathers into its flat parameter without a copy.
"""

from __future__ import annotations

from zerocalc.frameworks.offload import Offload, Offloading
from zerocalc.frameworks.program import Program
from zerocalc.frameworks.sharded_units import ShardedUnits
from zerocalc.frameworks.step import Step, Word
from zerocalc.ledger import Moment, Term
from zerocalc.sharding.padding import Rule
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

FSDP1 = "fsdp1"
TEMPORARIES = "optimizer temporaries"
SHARDED_AS = 3
"""Both stages shard parameters, gradients and optimizer states at rest."""


def run(step: Step) -> None:
    """One optimizer step at a stage."""
    if step.stage == 0:
        ddp(step)
    else:
        Sharded(step).run()


def ddp(step: Step) -> None:
    """FSDP1's NO_SHARD: every rank has all parameters, and the units' gradients are all-reduced."""
    units = ShardedUnits(step, in_place=True)
    step.keep(step.states())

    step.run_forward()

    step.backward()
    gradients = units.hold_gradients("layer's gradients", "layer", "gather")
    step.compute_layers_backward()
    step.free(gradients)
    units.reduce("all_reduce", step.shards)

    step.update()
    temporaries = step.hold(TEMPORARIES, "buffers", step.rank.part("trainable"), "weights")
    step.compute_update()
    step.free(temporaries)


class Sharded:
    """ZeRO-2 and ZeRO-3: parameters are sharded at rest. ZeRO-3 frees a layer after its forward and
    gathers it again for its backward; ZeRO-2 keeps all that it has gathered until then.

    FSDP's root, all that is outside the layers, stays gathered from the start to the end.
    torchtitan wraps the embedding alone, and norm and head together: these stay until the loss.
    """

    def __init__(self, step: Step) -> None:
        self.step, self.units = step, ShardedUnits(step, in_place=is_fsdp1(step.job))
        self.offload = Offload(step, offloading(step.job))
        self.frees = step.stage == 3
        self.rooted = self.units.last == "root"
        self.loss_inside = step.job.implementation.loss_in_model
        self.keeps = step.deferred and is_fsdp1(step.job)  # frees nothing that is not reduced

    def run(self) -> None:
        """The step: forward, loss, backward, update."""
        step = self.step
        step.forward()
        self.gather_for_forward()
        self.forward()
        step.backward()
        self.gather_for_backward()
        self.backward()
        self.reduce_gradients()
        step.update()
        self.update()

    # Forward.

    def forward(self) -> None:
        """Gather a unit, free the output of the gather before it, compute, free the unit."""
        step, units, layers = self.step, self.units, self.units.layer_count
        self.root = units.hold("gathered root", "root")
        output = units.hold_output("root" if self.rooted else "embedding")
        for number in sorted({0, min(1, layers - 1), layers - 1}):
            gathered = self.hold_layers(number)
            before, output = output, units.hold_output("layer")
            step.look("forward", step.saved.of_layers(number, layers), step.saved.input)
            step.free(before)  # once its own parameters are copied out of the gather's output
            step.look("forward", step.saved.of_layers(number + 1, layers))
            step.free(gathered)
        self.gathered = None if self.frees else self.hold_layers(layers - 1)
        self.resharded = units.hold_within("layers resharded in the group", "layers")
        if not self.rooted:
            step.free(output)
            self.root = units.hold("gathered head", "head")
            output = units.hold_output("head")
        if not self.loss_inside:
            step.free(output)
            output = None
        step.compute_head()
        step.free(output)

    def hold_layers(self, number: int) -> Term | None:
        """The layers that are gathered while the one of a number computes: it alone, or all up to
        it.
        """
        if self.frees:
            return self.units.hold("gathered layer", "layer")
        if not self.units.known:
            return self.units.hold("gathered parameters", "all")
        return self.units.hold("gathered layers", "layer", copies=number + 1)

    # Backward.

    def backward(self) -> None:
        """Gather a layer, prefetch the one before it, compute, reduce its gradients and free it.

        The input of a layer's reduce-scatter stays until the next one is made, its output is the
        shard of the gradients.
        """
        step, units, layers = self.step, self.units, self.units.layer_count
        early = self.frees and self.loss_inside and self.rooted
        prefetched = units.hold_prefetched("layer") if early else None
        step.compute_loss()
        step.free(prefetched)
        self.backward_of_head()
        step.free(self.gathered)
        for number in sorted({0, 1, layers - 2, layers - 1} & set(range(layers)), reverse=True):
            if number < layers - 2:
                step.free(self.resharded)
                self.resharded = None
            self.backward_of_layer(number)
        self.backward_of_embedding()

    def backward_of_head(self) -> None:
        """A head in the root has its gradients reduced with the root's, at the end; torchtitan's
        norm and head are a unit of their own.
        """
        step, units = self.step, self.units
        self.reducing: Term | None = None
        self.head_gradients = units.hold_elements("head's gradient", units.head_elements)
        if self.rooted:
            return
        step.free(self.root)
        self.root = None
        self.reducing = units.hold_gradients("head's reduce-scatter input", "head", "reduce")
        prefetched = units.hold_prefetched("layer") if self.frees else None
        step.mark("backward_start", "last layer")
        step.free(self.head_gradients, prefetched)
        self.head_gradients = None

    def backward_of_layer(self, number: int) -> None:
        """One layer's backward, with its gradients as they come; then their reduction, for which
        they are copied while the next gather is under way.
        """
        step, units, layers = self.step, self.units, self.units.layer_count
        self.hold_reduced(units.reduced_after_layers(layers - 1 - number))
        gathered = self.hold_layers(layers - 1 if self.keeps else number)
        prefetched = None
        if self.frees and number:
            prefetched = units.hold_prefetched("layer")
        elif self.frees and not self.rooted:
            prefetched = units.hold_prefetched("embedding")
        moments = self.moments(number)
        for moment in moments:
            step.compute_layer_backward(moment, number + 1, layers, units.hold_layer_gradients)
        step.free(gathered, self.reducing)
        self.reducing = units.hold_gradients("reduce-scatter input", "layer", "reduce")
        gradients = units.hold_layer_gradients(None)
        for moment in moments:
            step.look(moment, step.saved.of_layers(number, layers), step.saved.input)
        step.free(prefetched, gradients)

    def moments(self, number: int) -> list[Moment]:
        """The ledger's moments that a layer's backward belongs to: the last two layers' is its
        start, the others' its end.
        """
        layers = self.units.layer_count
        early = number >= max(min(1, layers - 1), layers - 2)
        late = number < max(1, layers - 2)
        start: list[Moment] = ["backward_start"] if early else []
        return [*start, "backward_end"] if late else start

    def backward_of_embedding(self) -> None:
        """The embedding's gradient is made when no layer is left; where the head is tied to it,
        both gradients and their sum. Then the last unit's gradients are reduced.
        """
        step, units = self.step, self.units
        self.hold_reduced(units.reduced_after_layers(units.layer_count))
        embedding = units.hold("gathered embedding", "embedding") if not self.rooted else None
        gradients = units.hold_elements("embedding's gradient", units.embedding_elements)
        total = units.hold_elements("sum of both gradients", units.tied_elements)
        step.compute_after_layers()
        step.free(self.reducing, self.root, embedding, total)
        if units.tied:  # both gradients are in their sum
            step.free(self.head_gradients)
            self.head_gradients = units.hold_elements("norm's gradient", units.norm_elements)
        self.reduce_last_unit(gradients)

    def reduce_last_unit(self, embedding: Term | None) -> None:
        """The input of the reduce-scatter is made of all gradients of the unit; its output is
        there beside that input and the gradient of the last parameter.
        """
        step, units = self.step, self.units
        reducing = units.hold_gradients(
            f"{units.last}'s reduce-scatter input", units.last, "reduce"
        )
        step.compute_after_layers()
        if self.rooted:
            step.free(embedding)
            embedding = None
        self.hold_reduced(step.rank.shardable("trainable"))
        step.compute_after_layers()
        step.free(embedding, reducing, self.head_gradients)

    def hold_reduced(self, elements: int) -> None:
        """A rank's share of the gradients that are reduced by now, unless the step accumulates
        them, and has all, or they are on the CPUs.
        """
        step = self.step
        if not step.accumulates and not step.zero.offloads:
            rows = [row for row in step.job.trained_recipe.rows if row.kind == "gradients"]
            step.reduced(elements, sum([DTYPE_BYTES[row.dtype] for row in rows]))

    # The update.

    def update(self) -> None:
        """Update the shards; the optimizer's foreach implementation makes a tensor like them."""
        step, rank = self.step, self.step.rank
        temporaries = None
        if not step.zero.offloads:
            trained = rank.shardable("trainable")
            temporaries = step.hold(TEMPORARIES, "buffers", trained, "weights", shards=rank.shards)
        step.compute_update()
        step.free(temporaries)
        self.keep_states()
        self.offload.copy_gradients("down", "weights", step.reductions)
        self.offload.finish()

    def keep_states(self) -> None:
        """The recipe's rows, sharded. Gradients whose reduction is deferred wait as they were made
        in FSDP1, in the dtype of the reduction in FSDP2.
        """
        step = self.step
        waiting: Word = "gather" if is_fsdp1(step.job) else "reduce"
        reached = None
        if step.rank.placed and not step.zero.offloads:
            reached = step.reduced_at("backward_start"), step.reduced_at("backward_end")
        rows = step.states(as_stage=SHARDED_AS, waiting=waiting, reached=reached)
        step.keep(self.offload.place(rows, SHARDED_AS))

    # Traffic.

    def gather_for_forward(self) -> None:
        """All-gather every unit, once a micro-batch. ZeRO-2 under FSDP1 keeps what it does not
        reduce, in a pipeline of torchtitan's what it has gathered.
        """
        step, units, calls = self.step, self.units, self.step.micro_batches
        if not self.frees:
            pipelined = step.job.framework.pipelines_defer and step.job.parallel.pp > 1
            calls = step.reductions if is_fsdp1(step.job) else 1 if pipelined else calls
        units.gather(units.outside + units.layers, calls)

    def gather_for_backward(self) -> None:
        """ZeRO-3 gathers layers again, from a smaller group where that has kept a second copy."""
        step, units = self.step, self.units
        if self.frees:
            within = step.zero.secondary_group
            units.gather(units.gathered_again, step.micro_batches, within=within)

    def reduce_gradients(self) -> None:
        """Reduce-scatter every unit's gradients; all-reduce the shares among copies of them."""
        step = self.step
        self.units.reduce("reduce_scatter", step.shards)
        self.units.reduce("all_reduce", step.replicas, shards=step.rank.shards)


def is_fsdp1(job: Job) -> bool:
    """Whether FSDP1 runs the job: it differs from FSDP2 in what it keeps while nothing is reduced,
    in what it gathers into, and in what it pins.
    """
    return job.framework.like == FSDP1


def offloading(job: Job) -> Offloading:
    """CPU offload, as the source says it; not measured."""
    if is_fsdp1(job):
        source = "torch, _runtime_utils.py and _flat_param.py; not measured"
        return Offloading(source, pinned=("weights", "gradients"), by="unit", gathers_in="weights")
    source = "torch, _fsdp_param.py and _fsdp_collectives.py; not measured"
    return Offloading(source, pinned=("weights", "gradients"), by="tensor", gathers_in="weights")


LIMITS = (
    "Gradient clipping adds one all-reduce of 4 bytes. It is not counted.",
    "CPU offload follows the source and was not recorded. The fp32 shard of a layer on its way to "
    "a gather is not counted.",
    "Allocator fragmentation, NCCL's buffers and kernel workspaces were not recorded: no run was "
    "on a GPU.",
)
FULLY_SHARD_LIMITS = (
    "fully_shard(model, reshard_after_forward=True) also reshards the root, as accelerate before "
    "1.14 does. Backward then gathers the root again, which is not counted.",
    "accelerate 1.14 and later, embedding and head not tied: the embedding is a unit, and norm "
    "and head are another, as in torchtitan. Backward then gathers the embedding again.",
    "Learned positions are not modelled as a unit of their own.",
    "Hybrid sharding with set_requires_all_reduce reduces within groups each micro-batch and "
    "across groups once a step. The all-reduce is counted each micro-batch.",
    *LIMITS,
)
TORCHTITAN_LIMITS = ("Metrics add all-reduces of a few bytes. They are not counted.", *LIMITS)
FLAT_LIMITS = (
    "Memory besides the model states was not recorded. It is taken as FSDP2's, except that FSDP1 "
    "gathers into its flat parameter without a copy.",
    "use_orig_params is taken as True: each tensor starts at a multiple of 16 bytes. With False "
    "tensors are packed.",
    "Adapters that are in one unit with their layer (use_orig_params without PEFT's "
    "fsdp_auto_wrap_policy): FSDP1 makes and reduces gradients of the whole unit. Each matrix of "
    "an adapter is counted as a unit of its own.",
    *LIMITS,
)
SHARDED_FROM_2: dict[int, Rule] = {2: "first_dimension", 3: "first_dimension"}
FULLY_SHARD = Program(run, SHARDED_FROM_2, FULLY_SHARD_LIMITS, lambda job, stage: SHARDED_AS)
TORCHTITAN = Program(run, SHARDED_FROM_2, TORCHTITAN_LIMITS, lambda job, stage: SHARDED_AS)
FLAT = Program(
    run,
    {0: "flat", 2: "flat", 3: "flat"},
    FLAT_LIMITS,
    sharded_as=lambda job, stage: SHARDED_AS if stage else 0,
)
