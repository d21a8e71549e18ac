"""What is to be said beside an answer: what is unknown and what would make it known, what was
chosen and changes nothing.
"""

from __future__ import annotations

from zerocalc import answers
from zerocalc.frameworks import program_of
from zerocalc.ledger import DYNAMIC_KINDS
from zerocalc.quantities import format_gib
from zerocalc.results import Estimate, display_name
from zerocalc.sharding.rank import Share
from zerocalc.sharding.rounding import rounded
from zerocalc.spec.job import Job
from zerocalc.spec.model import WITH_SCORES

CANNOT_JUDGE = "cannot judge the fit: pass --gpu or --gpu-memory"
MUCH_PADDING = 0.02
"""The smallest share of the parameters at which padding is reported."""


def _time_needs(job: Job) -> str:
    """What is missing for a step time."""
    gpu, zero, cluster = job.cluster.gpu, job.zero, job.cluster
    if (
        gpu is None
        or gpu.bf16_dense_flops_per_second is None
        or gpu.memory_bytes_per_second is None
    ):
        lacking = (
            "memory bandwidth"
            if gpu is not None and gpu.bf16_dense_flops_per_second is not None
            else "bf16 peak"
        )
        needs = f"this GPU preset has no {lacking}"
    elif cluster.peak_flops_per_second(job.recipe.compute) is None:
        needs = (
            f"GPU presets have 16-bit peaks only, and recipe {job.recipe.name} computes in "
            f"{job.recipe.compute}"
        )
    elif zero.offload_optimizer != "none" and cluster.cpu_bytes_per_second is None:
        needs = "pass --cpu-bandwidth, e.g. 400GB/s: the optimizer step runs on the CPU"
    elif (
        "nvme" in (zero.offload_optimizer, zero.offload_params)
        and cluster.nvme_bytes_per_second_per_gpu is None
    ):
        needs = "pass --nvme-bandwidth, e.g. 25GB/s: all NVMe drives of a node"
    elif (
        zero.offloads or zero.checkpoints_on_host
    ) and cluster.host_bytes_per_second_per_gpu is None:
        needs = "this GPU preset has no CPU-GPU bandwidth"
    elif cluster.intra_node_bytes_per_second is None:
        needs = "pass --intra-node, e.g. 450GB/s: per GPU, one way"
    else:
        needs = "pass --node, or --inter-node, e.g. 3200Gbps: all NICs of a node"
    return f"no step time: {needs}"


def notes_on(job: Job, held: list[Share], candidates: list[Estimate]) -> list[str]:
    """All notes on a job's candidates; ``held``: the job's `shares`."""
    notes: list[str] = []
    unknown = tuple(dict.fromkeys(name for c in candidates for name in c.memory.gpu.unknown))
    if unknown:
        notes.append(f"unknown: {', '.join(unknown)}; {_how_to_know(job)}")
    notes += _beyond_data_parallelism(job, candidates)
    without_effect = _without_effect(job) if "activations" in unknown else []
    if without_effect:
        notes.append(f"no effect while activations are unknown: {', '.join(without_effect)}")
    if job.cluster.gpu is not None and job.cluster.usable_bytes is None:
        notes.append(
            f"usable memory of {job.cluster.gpu.title} is unknown: pass --gpu-memory, e.g. 80GiB"
        )
    elif job.cluster.usable_bytes is None and all(c.fits is None for c in candidates):
        notes.append(CANNOT_JUDGE)
    if (
        job.cluster.gpu is not None
        and job.training.seq
        and not job.model.is_bare
        and all(c.time is None for c in candidates)
    ):
        notes.append(_time_needs(job))
    notes += [
        f"no effect: {flag} ({why})"
        for flag, why in _idle(
            job, "activations" not in unknown, any(c.time is not None for c in candidates)
        )
    ]
    if _kept_by_another_kernel(job):
        notes.append(
            f"only unfused attention is known for {job.model.family or 'this model'}, which "
            "saves more; --attention eager counts it"
        )
    if job.zero.offloads or job.zero.checkpoints_on_host:
        notes += _offload_notes(job, held, candidates)
    if job.parallel.tp * job.parallel.pp > 1 and "activations" in unknown:
        notes.append("tensor- and pipeline-parallel traffic is unknown too, and not counted")
    if job.even_share:
        notes.append(
            "the fit is judged on an even share of the pipeline: the first and last stages "
            "hold more (embedding, head, uneven layers)"
        )
    if job.zero.defer_grad_sync and job.training.accumulation == 1:
        notes.append("deferred gradient reduction has no effect with one micro-batch per step")
    if (
        job.training.recompute == "selective"
        and job.training.attention == "flash"
        and job.model.has_attention
    ):
        notes.append(
            "selective recompute frees almost nothing with flash attention, which saves no scores"
        )
    notes += _padding(job, held) + _untrained(job) + _cannot_run(job)
    if job.parallel.tp > job.cluster.gpus_per_node:
        notes.append(
            f"tensor parallelism over {job.parallel.tp} GPUs leaves the node of "
            f"{job.cluster.gpus_per_node}: its all-reduces cross the network"
        )
    return notes


def _padding(job: Job, held: list[Share]) -> list[str]:
    """What rounding tensors up to the number of ranks adds, where that is much: experts fewer than
    ranks, cut along their first dimension.
    """
    own, holds = held[0]
    for stage in job.stages:
        whole = rounded(holds, own, program_of(job.framework.like).pads(stage))
        more = max(part.padded / part.parameters for part in whole.parts or (whole,)) - 1
        if more > MUCH_PADDING:
            return [
                f"{job.framework.name} pads tensors to {holds.shards:,} equal shards, which "
                f"adds {more:.0%} to the parameters: some tensors, such as experts, have fewer "
                "rows than ranks; smaller shard groups (--shard-group) or expert parallelism "
                "(--ep) need less padding"
            ]
    return []


def _untrained(job: Job) -> list[str]:
    """Why nothing is trained over a base that is kept so."""
    quantised, some = job.model.quantised, job.model.lora is not None or job.model.trainable
    return (
        [f"{quantised.untrained}; --quantise none counts that"]
        if quantised is not None and quantised.untrained and some
        else []
    )


def _cannot_run(job: Job) -> list[str]:
    """What an implementation is asked for and cannot run."""
    chosen = {
        "flash attention": job.training.attention == "flash" and bool(job.training.seq),
        "context parallelism": job.parallel.cp > 1,
    }
    lacking = [what for what in job.implementation.lacks if chosen[what]]
    how = (
        f": use --implementation {job.implementation.instead}" if job.implementation.instead else ""
    )
    return (
        [f"{job.implementation.name} layers do not support {' or '.join(lacking)}{how}"]
        if lacking
        else []
    )


def _offload_notes(job: Job, held: list[Share], candidates: list[Estimate]) -> list[str]:
    """Stages that are not shown, capacities that are unknown, and efficiencies."""
    notes = []
    left_out = [stage.name for stage in job.framework.stages if stage.stage not in job.stages]
    if job.zero.stage is None and left_out:
        notes.append(
            f"not shown, because they cannot offload that: {', '.join(map(display_name, left_out))}"
        )
    for flag, tiers in (
        ("--cpu-memory, e.g. 1TB", [c.memory.cpu for c in candidates]),
        ("--nvme-capacity, e.g. 30TB", [c.memory.nvme for c in candidates]),
    ):
        if job.cluster.usable_bytes is not None and any(
            tier is not None and tier.capacity_bytes is None for tier in tiers
        ):
            notes.append(f"the fit is judged on GPU memory alone: pass {flag}")
    return notes + [kind.words() for kind in answers.offloading.efficiencies(*held[0])]


def _beyond_data_parallelism(job: Job, candidates: list[Estimate]) -> list[str]:
    """What no number of data-parallel GPUs makes fit."""
    usable = job.cluster.usable_bytes
    if usable is None or any(c.fits is not False for c in candidates):
        return []
    last = candidates[-1]
    gpu = last.memory.gpu
    rest = gpu.bytes_of(DYNAMIC_KINDS - {"gradients", "copies"}, at=gpu.peak_moment)
    if rest <= usable:
        return []
    return [
        "more data-parallel GPUs do not reduce activations, logits, buffers and all-gathered "
        f"parameters ({format_gib(rest)} of {display_name(last.name)}'s peak)"
    ]


def _without_effect(job: Job) -> list[str]:
    """What was chosen and changes activations only, as its flags are spelled."""
    training, zero = job.training, job.zero
    chosen = {
        f"--seq {training.seq}": training.seq is not None,
        f"--micro-batch {training.micro_batch}": training.micro_batch > 1,
        f"--recompute {training.recompute}": training.recompute != "none",
        f"--attention {training.attention}": training.attention != "flash",
        "--sequence-parallel": job.parallel.sequence_parallel,
        "--partition-activations": zero.partition_activations,
        "--cpu-checkpointing": zero.cpu_checkpointing,
    }
    return [flag for flag, is_chosen in chosen.items() if is_chosen]


RECOMPUTED = {"core_attn": WITH_SCORES, "mlp": frozenset({"mlp"}), "moe": frozenset({"moe"})}
"""The modules that can be recomputed by name, as types of modules in the layers."""


def _idle(job: Job, known: bool, timed: bool) -> list[tuple[str, str]]:
    """What was chosen and changes nothing here, as its flag is spelled, and why; ``known``: whether
    activations are.
    """
    training, cluster, model = job.training, job.cluster, job.model
    modules = f"--recompute-modules {','.join(training.recompute_modules)}"
    named = training.recompute_modules != type(training).model_fields["recompute_modules"].default
    out = []
    if training.recompute != "selective" and named:
        out.append((modules, "only --recompute selective uses it"))
    if training.recompute == "selective" and known:
        lacking = [
            name for name in training.recompute_modules if not RECOMPUTED[name] & model.module_types
        ]
        out += (
            [
                (
                    modules if named else "--recompute selective",
                    f"no layer has {' or '.join(lacking)}",
                )
            ]
            if lacking
            else []
        )
    if training.reentrant and training.recompute == "none":
        out.append(("--reentrant", "nothing is recomputed"))
    if training.recompute_every > (model.layer_count or training.recompute_every):
        out.append(
            (
                f"--recompute-every {training.recompute_every}",
                f"more than the {model.layer_count} layers: one is recomputed",
            )
        )
    if training.attention != "flash" and known and not model.has_attention:
        out.append((f"--attention {training.attention}", "no layer has attention"))
    if training.tokens is not None and not timed:
        out.append(
            (
                "--tokens",
                "days and GPU-hours need a step time: pass --gpu, an architecture and --seq",
            )
        )
    for flag, given, tier in (
        ("--cpu-memory", cluster.cpu_memory, "cpu"),
        ("--cpu-bandwidth", cluster.cpu_bandwidth, "cpu"),
        ("--nvme-capacity", cluster.nvme_capacity, "nvme"),
        ("--nvme-bandwidth", cluster.nvme_bandwidth, "nvme"),
    ):
        places = {
            job.zero.offload_optimizer,
            job.zero.offload_params,
            "cpu" if job.zero.checkpoints_on_host else "none",
        }
        if given is not None and tier not in places and not (tier == "cpu" and job.zero.offloads):
            out.append((flag, f"nothing is offloaded to {'the CPU' if tier == 'cpu' else 'NVMe'}"))
    if cluster.cublas_workspace is not None and not cluster.workspaces:
        out.append(("--cublas-workspace", "needs --workspaces"))
    return out


def _kept_by_another_kernel(job: Job) -> bool:
    """Whether fused attention is counted for a class of which only unfused attention is known."""
    stack = job.model.stack
    return (
        bool(job.training.seq)
        and stack is not None
        and stack.only_eager
        and job.training.attention != "eager"
    )


def _how_to_know(job: Job) -> str:
    if job.model.is_bare:
        return "pass --model, or --layers --hidden --heads, and --seq"
    if job.model.stack is not None:
        return f"activations of {job.model.family or 'this architecture'} are not modelled yet"
    return "pass --seq"
