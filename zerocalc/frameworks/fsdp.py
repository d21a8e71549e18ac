"""PyTorch's FSDP1 and FSDP2, and torchtitan on FSDP2: shard every unit, gather it to use it.

torch 2.13, torch/distributed/fsdp: _flat_param.py and _runtime_utils.py (FSDP1);
_fully_shard/_fsdp_param_group.py, _fsdp_collectives.py and _fsdp_param.py (FSDP2). torchtitan 0.2.2
and 0.3.0, models/llama3/infra/parallelize.py.
"""

from __future__ import annotations

from zerocalc.frameworks.offload import Offload, Offloading
from zerocalc.frameworks.program import Program
from zerocalc.frameworks.sharded_units import ShardedUnits
from zerocalc.frameworks.step import Step, Word
from zerocalc.ledger import Term
from zerocalc.spec.job import Job

FSDP1 = "fsdp1"
TEMPORARIES = "optimizer's temporaries"
SHARDED_AS = 3
"""Both stages shard parameters, gradients and optimizer states at rest."""


def run(step: Step) -> None:
    """One optimizer step at a stage."""
    {0: ddp, 2: zero_2, 3: zero_3}[step.stage](step)


def zero_3(step: Step) -> None:
    """Gather each layer for forward and again for backward, and hold no more than two of them.

    What is outside the layers is gathered once: FSDP's root stays until the end of backward,
    torchtitan's norm and head until the loss. torchtitan's embedding is gathered again.
    """
    units, offload = ShardedUnits(step), Offload(step, offloading(step.job))
    keep_states(step, units, offload)

    step.forward()
    units.gather(units.outside + units.layers, step.micro_batches)
    root = units.hold("gathered root", "root")
    head = None if units.last == "root" else units.hold("gathered head", "head")
    resharded = units.hold_within("layers resharded in the group", "layers")
    layer = units.hold("gathered layer", "layer")
    step.compute_layers()
    step.compute_head()
    step.compute_loss()
    step.free(layer, head)

    step.backward()
    units.gather(units.gathered_again, step.micro_batches, within=step.zero.secondary_group)
    layers = units.hold("gathered layers", "layer", copies=2)
    gradients = gradients_of_a_layer(units)
    step.compute_last_layer_backward()
    step.free(resharded)
    step.compute_first_layer_backward()
    step.free(root, layers, *gradients)
    finish(step, units, offload)


def zero_2(step: Step) -> None:
    """Gather everything once and keep it until its backward: it is sharded at rest alone."""
    units, offload = ShardedUnits(step), Offload(step, offloading(step.job))
    keep_states(step, units, offload)

    step.forward()
    units.gather(units.outside + units.layers, unshards(step))
    everything = units.hold("gathered parameters", "all")
    copied_out = units.hold("all-gather output", "layer")
    step.compute_layers()
    step.compute_head()
    step.free(copied_out)
    step.compute_loss()

    step.backward()
    gradients = gradients_of_a_layer(units)
    step.compute_last_layer_backward()
    left: list[Term | None] = [everything]
    if not (step.deferred and is_fsdp1(step.job)):  # which frees nothing that is not reduced
        step.free(everything)  # layer by layer
        left = [units.hold("gathered root", "root"), units.hold("gathered layer", "layer")]
    step.compute_first_layer_backward()
    step.free(*left, *gradients)
    finish(step, units, offload)


def ddp(step: Step) -> None:
    """FSDP1's NO_SHARD: every rank has all parameters, and the units' gradients are all-reduced."""
    units = ShardedUnits(step)
    step.keep(step.states())

    step.forward()
    step.compute_layers()
    step.compute_head()
    step.compute_loss()

    step.backward()
    gradients = units.hold_gradients("layer's gradients", "layer", "gather")
    step.compute_layers_backward()
    step.free(gradients)
    units.reduce("all_reduce", step.shards)

    step.update()
    temporaries = step.hold(TEMPORARIES, "buffers", step.rank.part("trainable"), "weights")
    step.compute_update()
    step.free(temporaries)


def keep_states(step: Step, units: ShardedUnits, offload: Offload) -> None:
    """The recipe's rows, sharded. Gradients whose reduction is deferred wait as they were made in
    FSDP1, in the dtype of the reduction in FSDP2.
    """
    waiting: Word = "gather" if is_fsdp1(step.job) else "reduce"
    late = step.rank.part(units.last, trained=True)
    rows = step.states(as_stage=SHARDED_AS, waiting=waiting, late=late)
    step.keep(offload.place(rows, SHARDED_AS))


def gradients_of_a_layer(units: ShardedUnits) -> list[Term | None]:
    """What a layer's backward holds of gradients: its own, and the same in the dtype of the
    reduction; those of a head that is part of the root wait until the root is reduced.
    """
    in_root = units.last == "root"
    return [
        units.hold_gradients("layer's gradients", "layer", "gather"),
        units.hold_gradients("reduce-scatter input", "layer", "reduce"),
        units.hold_gradients("head's gradient", "head", "gather") if in_root else None,
    ]


def finish(step: Step, units: ShardedUnits, offload: Offload) -> None:
    """Reduce the last unit's gradients, once no layer is left in backward; update the shards."""
    last = units.last
    gradients = units.hold_gradients(f"{last}'s gradients", last, "gather")
    reduced = units.hold_gradients(f"{last}'s reduce-scatter input", last, "reduce")
    step.compute_after_layers()
    step.free(gradients, reduced)
    units.reduce("reduce_scatter", step.shards)
    units.reduce("all_reduce", step.replicas, shards=step.rank.shards)

    step.update()
    temporaries = None
    if not step.zero.offloads:
        elements, shards = step.rank.part("trainable"), step.rank.shards
        temporaries = step.hold(TEMPORARIES, "buffers", elements, "weights", shards=shards)
    step.compute_update()
    step.free(temporaries)

    offload.copy_gradients("down", "weights", step.reductions)
    offload.finish()


def unshards(step: Step) -> int:
    """How often ZeRO-2 gathers in a step: once a micro-batch. FSDP1 keeps what it does not reduce,
    a pipeline of torchtitan's what it has gathered.
    """
    if is_fsdp1(step.job):
        return step.reductions
    kept = step.job.framework.pipelines_defer and step.job.parallel.pp > 1
    return 1 if kept else step.micro_batches


def is_fsdp1(job: Job) -> bool:
    """Whether FSDP1 runs the job: it differs from FSDP2 in what it keeps while nothing is reduced,
    and in what it pins.
    """
    return job.framework.name == FSDP1


def offloading(job: Job) -> Offloading:
    """CPU offload, as the source says it; not measured."""
    if is_fsdp1(job):
        source = "torch, _runtime_utils.py and _flat_param.py; not measured"
        return Offloading(source, pinned=("weights", "gradients"), by="unit", gathers_in="weights")
    source = "torch, _fsdp_param.py and _fsdp_collectives.py; not measured"
    return Offloading(source, pinned=("weights", "gradients"), by="tensor", gathers_in="weights")


FULLY_SHARD = Program(
    run,
    padding={2: "first_dimension", 3: "first_dimension"},
    sharded_as=lambda job, stage: SHARDED_AS,
)
FLAT = Program(
    run,
    padding={0: "flat", 2: "flat", 3: "flat"},
    sharded_as=lambda job, stage: SHARDED_AS if stage else 0,
)
