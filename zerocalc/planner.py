"""From a job to an answer: its candidates, which of them fit, which to take and why, and what would change that."""

from __future__ import annotations

from itertools import groupby

from zerocalc.estimator import estimate_with_assumptions
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import DYNAMIC_KINDS
from zerocalc.modules.layers import dealt
from zerocalc.modules.padding import added_words
from zerocalc.modules.rank import shares
from zerocalc.results import SCHEMA_VERSION, Estimate, Plan, Recommendation, Verdict, cheapest, display_name
from zerocalc.spec.base import require
from zerocalc.spec.job import Job
from zerocalc.spec.lora import Lora
from zerocalc.spec.model import WITH_SCORES
from zerocalc.units import format_count, format_gib

WORST_STAGE = "the pipeline stage that needs most memory"
EVEN_SPLIT = "even split: pipeline parallelism divides states evenly"
EVEN_TENSORS = "even split: tensor parallelism divides all of a bare number of parameters"
EVEN_TOKENS = "even split: context parallelism divides the tokens of a sequence evenly"


def _pipeline(job: Job) -> list[str]:
    """Whose figures a pipeline's are, and how its layers are dealt."""
    parallel, layers = job.parallel, job.model.layer_count
    if job.even_share:
        out = [EVEN_SPLIT]
        if layers and layers % parallel.pp:
            fullest = ceil_div(layers, parallel.pp)
            out.append(
                f"even split: {layers} layers over {parallel.pp} pipeline stages, {layers / parallel.pp:.4g} a stage; the fullest has {fullest}"
            )
        return out
    whose = f"pipeline stage {parallel.pipeline_stage} of {parallel.pp}" if parallel.pipeline_stage else WORST_STAGE
    out = [f"memory and traffic are those of {whose}"]
    ends = job.framework.ends_as_layers
    counts = dealt(layers or 0, parallel.pp * parallel.interleave, ends)
    if len(set(counts)) > 1:
        what = f"chunks of {layers} layers" if parallel.interleave > 1 else f"{layers} layers"
        how = ", embedding and head counted as a layer each" if ends else ""
        out.append(f"{what} dealt to pipeline stages as {_runs(counts)}{how}")
    return out


def _runs(counts: list[int]) -> str:
    """Counts in a row, equal ones together.

    >>> _runs([8, 9, 9, 8])
    '8, 2 × 9, 8'
    """
    runs = [(len(list(same)), count) for count, same in groupby(counts)]
    return ", ".join(f"{times} × {count}" if times > 1 else str(count) for times, count in runs)


def _context_shards(job: Job) -> str:
    """Over what states are sharded where context parallelism is used, which the paper does not have."""
    return (
        f"gradients are reduced and states sharded over dp·cp = {job.dp}·{job.parallel.cp} = {job.shards} ranks, "
        "as FSDP, Megatron and DeepSpeed-Ulysses do; [ZeRO] has no context parallelism"
    )


def _tensor_parallel(job: Job) -> list[str]:
    """What tensor parallelism is taken to divide evenly, and the rows of a vocabulary that a framework adds so that it does."""
    words, tp = job.model.words, job.parallel.tp
    if tp > 1 and job.model.is_bare:
        return [EVEN_TENSORS]
    out = [f"tp {tp} does not divide the vocabulary of {words:,}: counted as even shares"] if words % tp else []
    return out + ([added] if (added := added_words(job)) else [])


def plan(job: Job) -> Plan:
    """All stages asked for, side by side, with a verdict and a recommendation where the GPU's memory is known."""
    require(job, Job, "plan")
    candidates: list[Estimate] = []
    assumptions: list[str] = []
    held = shares(job)
    for stage in job.stages:
        candidate, rests_on = estimate_with_assumptions(job, stage, held)
        candidates.append(candidate)
        assumptions += rests_on
    verdict = _verdict(candidates)
    notes = _notes(job, candidates)
    if verdict == "does_not_fit":
        from zerocalc.offloading import would_fit  # most answers fit

        notes += would_fit(job)
    timed = any(candidate.time is not None for candidate in candidates)
    assumptions = [*job.model.assumed, *_assumed(job, timed), *assumptions]
    return Plan(
        schema_version=SCHEMA_VERSION,
        job=job,
        candidates=tuple(candidates),
        verdict=verdict,
        recommended=recommend(job, candidates),
        assumptions=tuple(dict.fromkeys(assumptions)),
        notes=(*notes, *job.config_notes),
        suggestions=_suggestions(job) if verdict == "does_not_fit" else (),
    )


LORA = "the frozen base has no gradients and no optimizer states"
HELD = f"{LORA}, and is held in the recipe's compute dtype"


def _adapters(job: Job, lora: Lora) -> list[str]:
    """What the framework makes of adapters."""
    out = []
    if job.adapter_dtype != lora.dtype:
        out.append(f"adapters in {job.adapter_dtype}, not {lora.dtype}: {job.framework.name} casts all parameters to the dtype of compute")
    gathered = job.trained_recipe.gather
    if gathered != job.adapter_dtype and not job.recipe.autocast:
        out.append(f"adapters are kept in {job.adapter_dtype} and compute in {gathered}, in which recipe {job.recipe.name} gathers or copies weights")
    if job.framework.adapters == "each":
        out.append(
            "each matrix of an adapter is a unit of its own (PEFT's fsdp_auto_wrap_policy); one unit with its layer would have all its gradients"
        )
    return out


def _assumed(job: Job, timed: bool) -> list[str]:
    """What the job's own choices and defaults come to, where an answer rests on them."""
    zero, parallel, cluster = job.zero, job.parallel, job.cluster
    out = []
    if job.model.lora is not None:
        out += [*job.model.lora.assumed, HELD if job.model.quantised is None else LORA, *_adapters(job, job.model.lora)]
    if timed:
        out += _assumed_of_time(job)
    out += _tensor_parallel(job)
    if parallel.pp > 1:
        out += _pipeline(job)
    if job.experts_apart:
        etp = job.expert_tensor_parallel
        out.append(
            f"routed experts are dealt over ep·etp = {parallel.ep}·{etp} ranks, their states sharded over "
            f"gpus/(pp·ep·etp) = {job.expert_shards}; each sees as many tokens as another"
        )
    if parallel.cp > 1:
        out += [EVEN_TOKENS, _context_shards(job)]
    chosen = [job.framework.stage(stage) for stage in job.stages]
    out += [f"{display_name(stage.name)} of {job.framework.name} is {stage.meaning}" for stage in chosen if stage.meaning]
    published = any(stage.published for stage in chosen)
    if job.shards > 1:
        if published and zero.buffers == "constant":
            sizes = dict.fromkeys((zero.reduce_bucket_size, zero.allgather_bucket_size))
            out.append(f"C_B: buckets of up to {' and '.join(f'{size:,}' for size in sizes)} elements")
        if published and 3 in job.stages and not (job.model.is_bare and job.model.blocks is None):
            out.append(f"stage 3 holds {job.framework.units_in_flight} layers gathered, beside the embedding or head in use")
        if zero.gather == "broadcast" and not job.model.is_bare:
            out.append("every owner of broadcast blocks holds an equal share of the parameters")
    if cluster.gpus > cluster.gpus_per_node:
        out.append(f"nodes of {cluster.gpus_per_node} GPUs")
    return out


def _assumed_of_time(job: Job) -> list[str]:
    own, (typical, note) = job.training.kernel_efficiency, job.cluster.kernel_efficiency
    share = f"{100 * typical:.0f} % of the dense peak ({note})" if own is None else f"{100 * own:.0f} % of the dense peak"
    from zerocalc.traffic.placement import HOPS

    out = [
        f"time: kernels reach {share}, links their nominal bandwidth; a hop takes {HOPS}; no input, no stragglers",
        "FLOPs as papers count them: attention over the whole square, of which a causal mask needs half",
    ]
    if job.zero.offload_optimizer != "none":
        out.append("time: the host's optimizer step reads and writes each state once, as fast as its memory carries them")
    return out


def _suggestions(job: Job) -> tuple[str, ...]:
    from zerocalc.suggestions import suggestions  # most answers have none

    return tuple(suggestions(job))


def _verdict(candidates: list[Estimate]) -> Verdict:
    fits = [candidate.fits for candidate in candidates]
    return "fits" if True in fits else "unknown" if None in fits else "does_not_fit"


def recommend(job: Job, candidates: list[Estimate]) -> Recommendation | None:
    """What to take among candidates, and why; ``None`` where the capacity is unknown or nothing fits."""
    usable = job.cluster.usable_bytes
    if usable is None:
        return None
    why: list[str] = []
    fitting = [c for c in candidates if c.fits]
    if not fitting:
        fitting = [c for c in candidates if c.fits is None]
        if not fitting:
            return None
        unknown = fitting[0].memory.gpu.unknown
        why.append(f"on model states and buffers alone: {', '.join(unknown)} unknown" if unknown else f"if {' and '.join(unsure(fitting[0]))}")
    chosen = cheapest(fitting)
    for other in candidates:
        if other.fits is False:
            why.append(_lacks(other, usable))
    for other in fitting:
        if other is not chosen:
            why.append(_compared(other, chosen))
    if len(why) == 0:
        why.append("it fits, and no other stage was asked for" if len(candidates) == 1 else "it fits")
    return Recommendation(chosen.name, tuple(why))


BESIDE = {"cpu": "host memory", "nvme": "drives"}


def short_of(candidate: Estimate) -> list[str]:
    """What a node's host lacks, in words: ``12.0 GiB of host memory a node``."""
    memory = candidate.memory
    tiers = {"cpu": memory.cpu, "nvme": memory.nvme}
    return [f"{format_gib(tier.lacking_bytes)} of {BESIDE[name]} a node" for name, tier in tiers.items() if tier is not None and tier.lacking_bytes]


def unsure(candidate: Estimate) -> list[str]:
    """On what it depends whether a node's host suffices, in words."""
    host = candidate.memory.cpu
    if host is None or host.capacity_bytes is None or not host.bytes_per_node <= host.capacity_bytes < host.high_bytes_per_node:
        return []
    most, there = format_gib(host.high_bytes_per_node), format_gib(host.capacity_bytes)
    return [f"page-locked buffers leave the host's {there} a node enough (they may take {most} in all)"]


def _lacks(other: Estimate, usable: int) -> str:
    gpu = other.memory.gpu
    needed = max(gpu.reserved_bytes, gpu.states_bytes)
    if needed <= usable:
        return f"{display_name(other.name)} lacks {' and '.join(short_of(other))}"
    at = gpu.at_peak
    activations = "unknown" if "activations" in gpu.unknown else format_gib(at.activations_bytes)
    parts = f"states {format_gib(at.states_bytes)}, activations {activations}, other {format_gib(at.other_bytes)}"
    least = "at least " if gpu.unknown else ""
    return f"{display_name(other.name)} lacks {least}{format_gib(needed - usable)} (at its peak: {parts})"


def _compared(other: Estimate, chosen: Estimate) -> str:
    """Another candidate that would do, in memory and traffic relative to the chosen one."""
    saved = chosen.memory.gpu.reserved_bytes - other.memory.gpu.reserved_bytes
    sent, base = other.communication.sent_bytes_per_gpu, chosen.communication.sent_bytes_per_gpu
    now, then = format_gib(sent), format_gib(base)
    traffic = "as many bytes" if now == then else f"{now} instead of {then}"
    known = " of what is known" if other.memory.gpu.unknown else ""
    memory = f"frees {format_gib(saved)} more{known}" if saved > 0 else f"takes {format_gib(-saved)} more{known}" if saved < 0 else "takes as much"
    part = " of what is known" if other.communication.unknown else ""
    return f"{display_name(other.name)} {memory} and sends {traffic} a step{part}"


def _time_needs(job: Job) -> str:
    """What is missing for the time of a step."""
    gpu = job.cluster.gpu
    if gpu is None or gpu.bf16_dense_flops_per_second is None or gpu.memory_bytes_per_second is None:
        return "time is unknown: the GPU's speed is not among its figures"
    if job.zero.offload_optimizer != "none" and job.cluster.cpu_bytes_per_second is None:
        return "time is unknown: --cpu-bandwidth 400GB/s says what a host's memory carries, where the optimizer's step runs"
    if "nvme" in (job.zero.offload_optimizer, job.zero.offload_params) and job.cluster.nvme_bytes_per_second_per_gpu is None:
        return "time is unknown: --nvme-bandwidth 25GB/s says what a node's drives read or write together"
    if (job.zero.offloads or job.zero.checkpoints_on_host) and job.cluster.host_bytes_per_second_per_gpu is None:
        return "time is unknown: the GPU's link to its host is not among its figures"
    if job.cluster.intra_node_bytes_per_second is None:
        return "time is unknown: --intra-node 450GB/s says what a GPU sends inside its node"
    return "time is unknown: --node, or --inter-node 3200Gbps, says what a node's network cards send together"


def _notes(job: Job, candidates: list[Estimate]) -> list[str]:
    notes: list[str] = []
    unknown = tuple(dict.fromkeys(name for c in candidates for name in c.memory.gpu.unknown))
    if unknown:
        notes.append(f"unknown: {', '.join(unknown)}. {_how_to_know(job)}")
    notes += _beyond_data_parallelism(job, candidates)
    without_effect = _without_effect(job) if "activations" in unknown else []
    if without_effect:
        notes.append(f"without effect while activations are unknown: {', '.join(without_effect)}")
    if job.cluster.gpu is not None and job.cluster.usable_bytes is None:
        notes.append(f"usable memory of {job.cluster.gpu.title} is not known; --gpu-memory 80GiB says what it is")
    elif job.cluster.usable_bytes is None:
        notes.append("what fits is unknown: --gpu h100-80g or --gpu-memory 80GiB says what there is")
    if job.cluster.gpu is not None and job.training.seq and not job.model.is_bare and all(c.time is None for c in candidates):
        notes.append(_time_needs(job))
    notes += [
        f"without effect: {flag} ({why})" for flag, why in _idle(job, "activations" not in unknown, any(c.time is not None for c in candidates))
    ]
    if _kept_by_another_kernel(job):
        notes.append(
            f"of the class of {job.model.family or 'this model'} only unfused attention is known, which keeps more; --attention eager counts it"
        )
    if job.zero.offloads or job.zero.checkpoints_on_host:
        notes += _offload_notes(job, candidates)
    if job.parallel.tp * job.parallel.pp > 1 and "activations" in unknown:
        notes.append("what tensor and pipeline parallelism send is unknown too, and not in the traffic")
    if job.even_share:
        notes.append("what fits is said of an even share: the first and last pipeline stages hold more (embedding, head, layers that do not divide)")
    if job.zero.defer_grad_sync and job.training.accumulation == 1:
        notes.append("deferring gradient reduction changes nothing with one micro-batch a step")
    if job.training.recompute == "selective" and job.training.attention == "flash" and job.model.has_attention:
        notes.append("selective recomputation saves next to nothing over flash attention, which keeps no scores")
    if job.parallel.tp > job.cluster.gpus_per_node:
        notes.append(
            f"tensor parallelism over {job.parallel.tp} GPUs leaves the node of {job.cluster.gpus_per_node}: its all-reduces cross the network"
        )
    return notes


def _offload_notes(job: Job, candidates: list[Estimate]) -> list[str]:
    """Which stages are not shown, whose capacity is not known, and how far computing keeps up."""
    from zerocalc.offloading import efficiencies  # most jobs keep all on the GPU

    notes = []
    left_out = [stage.name for stage in job.framework.stages if stage.stage not in job.stages]
    if job.zero.stage is None and left_out:
        notes.append(f"not shown, since they cannot keep that elsewhere: {', '.join(map(display_name, left_out))}")
    for flag, tiers in (("--cpu-memory 1TB", [c.memory.cpu for c in candidates]), ("--nvme-capacity 30TB", [c.memory.nvme for c in candidates])):
        if job.cluster.usable_bytes is not None and any(tier is not None and tier.capacity_bytes is None for tier in tiers):
            notes.append(f"what fits is said of GPUs alone: {flag} says what a node's host has")
    return notes + [kind.words() for kind in efficiencies(*shares(job)[0])]


def _beyond_data_parallelism(job: Job, candidates: list[Estimate]) -> list[str]:
    """What no number of data-parallel GPUs makes fit."""
    usable = job.cluster.usable_bytes
    if usable is None or any(c.fits is not False for c in candidates):
        return []
    last = candidates[-1]
    gpu = last.memory.gpu
    rest = sum(t.bytes for t in gpu.terms if t.kind in DYNAMIC_KINDS - {"gradients", "copies"} and gpu.peak_moment in t.moments)
    if rest <= usable:
        return []
    held = f"activations, logits, buffers and gathered layers ({format_gib(rest)} of {display_name(last.name)}'s peak)"
    return [f"more data-parallel GPUs never shrink {held}"]


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
    """What was chosen and changes nothing here, as its flag is spelled, and why; ``known``: whether activations are."""
    training, cluster, model = job.training, job.cluster, job.model
    modules = f"--recompute-modules {','.join(training.recompute_modules)}"
    named = training.recompute_modules != type(training).model_fields["recompute_modules"].default
    out = []
    if training.recompute != "selective" and named:
        out.append((modules, "modules are named for --recompute selective"))
    if training.recompute == "selective" and known:
        lacking = [name for name in training.recompute_modules if not RECOMPUTED[name] & model.module_types]
        out += [(modules if named else "--recompute selective", f"no layer has {' or '.join(lacking)}")] if lacking else []
    if training.reentrant and training.recompute == "none":
        out.append(("--reentrant", "nothing is recomputed"))
    if training.recompute_every > (model.layer_count or training.recompute_every):
        out.append((f"--recompute-every {training.recompute_every}", f"beyond the {model.layer_count} layers: one is recomputed"))
    if training.attention != "flash" and known and not model.has_attention:
        out.append((f"--attention {training.attention}", "no layer has attention"))
    if training.tokens is not None and not timed:
        out.append(("--tokens", "days and GPU-hours need the time of a step: --gpu, an architecture and --seq"))
    if cluster.cublas_workspace is not None and not cluster.workspaces:
        out.append(("--cublas-workspace", "--workspaces counts it"))
    return out


def _kept_by_another_kernel(job: Job) -> bool:
    """Whether fused attention is counted for a class of which only unfused attention is known."""
    stack = job.model.stack
    return bool(job.training.seq) and stack is not None and stack.only_eager and job.training.attention != "eager"


def _how_to_know(job: Job) -> str:
    if job.model.is_bare:
        return "Give --model, or --layers --hidden --heads, and --seq"
    if job.model.stack is not None:
        return f"What the layers of {job.model.family or 'this architecture'} save is not counted yet"
    return "Give --seq"


def describe_model(job: Job, parameters: int) -> str:
    """The model in a few words: its title where it has one, and its parameters."""
    count = f"{format_count(parameters)} parameter{'s' if parameters > 1 else ''}"
    return f"{job.model.title}, {count}" if job.model.title else count
