"""What a job's own choices and defaults come to, where an answer rests on them, in words."""

from __future__ import annotations

from itertools import groupby

from zerocalc import answers, sharding, spec
from zerocalc.formulas.formula import ceil_div
from zerocalc.model.architecture import chunk_layers
from zerocalc.results import display_name
from zerocalc.sharding.padding import added_words
from zerocalc.sharding.rank import Share
from zerocalc.spec.cluster import DEFAULT_GPUS_PER_NODE
from zerocalc.spec.job import Job
from zerocalc.traffic.placement import RING_LATENCY

NOTABLE = 0.001
"""Smaller differences are not reported."""
WORST_STAGE = "the pipeline stage with the largest peak"
EVEN_SPLIT = "pipeline parallelism divides model states evenly"
EVEN_TENSORS = "tensor parallelism divides all parameters evenly (parameter count only)"
EVEN_TOKENS = "context parallelism divides each sequence's tokens evenly"


def _pipeline(job: Job) -> list[str]:
    """The stage that a pipeline's figures are of, and how layers are assigned to stages."""
    parallel, layers = job.parallel, job.model.layer_count
    if job.even_share:
        out = [EVEN_SPLIT]
        if layers and layers % parallel.pp:
            fullest = ceil_div(layers, parallel.pp)
            out.append(
                f"{layers} layers on {parallel.pp} pipeline stages: "
                f"{layers / parallel.pp:.4g} per stage; the fullest stage has {fullest}"
            )
        return out
    whose = (
        f"pipeline stage {parallel.pipeline_stage} of {parallel.pp}"
        if parallel.pipeline_stage
        else WORST_STAGE
    )
    out = [
        f"memory and traffic of {whose}"
        + ("" if parallel.pipeline_stage else "; step time of the slowest stage")
    ]
    ends = job.framework.ends_as_layers
    counts = chunk_layers(layers or 0, parallel, ends)
    if len(set(counts)) > 1:
        what = f"chunks of {layers} layers" if parallel.interleave > 1 else f"{layers} layers"
        how = (
            ", embedding and head counted as one layer each"
            if ends and parallel.first_stage_layers is parallel.last_stage_layers is None
            else ""
        )
        out.append(f"{what} assigned to pipeline stages as {_runs(counts)}{how}")
    return out


def _slowest_stage(job: Job, held: list[Share]) -> list[str]:
    """How much longer than the mean, which is counted, the pipeline stage computes that has most to
    compute.
    """
    works = [
        sharding.work.stage_work(own, rank)
        for own, rank in answers.pipeline_stages.every_stage(job, held)
    ]
    done = [work.forward + work.backward + work.recomputed for work in works if work is not None]
    more = max(done, default=0) * len(done) / sum(done) - 1 if sum(done) else 0
    return (
        [
            "step time assumes that pipeline stages compute equally long; the slowest one "
            f"computes {more:.1%} longer"
        ]
        if more >= NOTABLE
        else []
    )


def _runs(counts: list[int]) -> str:
    """Counts in a row, equal ones together.

    >>> _runs([8, 9, 9, 8])
    '8, 2 × 9, 8'
    """
    runs = [(len(list(same)), count) for count, same in groupby(counts)]
    return ", ".join(f"{times} × {count}" if times > 1 else str(count) for times, count in runs)


def _context_shards(job: Job) -> str:
    """Over what states are sharded where context parallelism is used, which the paper does not
    have.
    """
    return (
        f"gradients are reduced and states sharded over dp·cp = {job.dp}·{job.parallel.cp} "
        f"= {job.shards} ranks, "
        "as FSDP, Megatron and DeepSpeed-Ulysses do; [ZeRO] has no context parallelism"
    )


def _tensor_parallel(job: Job) -> list[str]:
    """What tensor parallelism is taken to divide evenly, and the rows of a vocabulary that a
    framework adds so that it does.
    """
    words, tp = job.model.words, job.parallel.tp
    if tp > 1 and job.model.is_bare:
        return [EVEN_TENSORS]
    out = (
        [f"tp {tp} does not divide the vocabulary of {words:,}: counted as even shards"]
        if words % tp
        else []
    )
    return out + ([added] if (added := added_words(job)) else [])


LORA = "the frozen base has no gradients and no optimizer states"
LORA_UNQUANTISED = f"{LORA}, and is stored in the recipe's compute dtype"


def _adapters(job: Job, lora: spec.lora.Lora) -> list[str]:
    """What the framework makes of adapters."""
    out = []
    if job.adapter_dtype != lora.dtype:
        out.append(
            f"adapters in {job.adapter_dtype}, not {lora.dtype}: {job.framework.name} "
            "casts all parameters to the compute dtype"
        )
    gathered = job.trained_recipe.gather
    if gathered != job.adapter_dtype and not job.recipe.autocast:
        out.append(
            f"adapters are stored in {job.adapter_dtype} and compute in {gathered}, the dtype "
            f"in which recipe {job.recipe.name} gathers or copies weights"
        )
    if job.framework.adapters == "each":
        out.append(
            "each adapter matrix is an FSDP unit of its own (PEFT's fsdp_auto_wrap_policy); in "
            "one unit with its layer, the whole layer would have gradients"
        )
    return out


def assumed(job: Job, held: list[Share], timed: bool) -> list[str]:
    """What the job's own choices and defaults come to, where an answer rests on them; ``held``: its
    `shares`.
    """
    zero, parallel, cluster = job.zero, job.parallel, job.cluster
    out = []
    if job.model.lora is not None:
        out += [
            *job.model.lora.assumed,
            LORA_UNQUANTISED if job.model.quantised is None else LORA,
            *_adapters(job, job.model.lora),
        ]
    if timed:
        out += _assumed_of_time(job)
    out += _tensor_parallel(job)
    if parallel.pp > 1:
        out += _pipeline(job)
        out += _slowest_stage(job, held) if timed and job.by_stage else []
    if job.experts_apart:
        etp = job.expert_tensor_parallel
        out.append(
            f"routed experts are split over ep·etp = {parallel.ep}·{etp} ranks, their "
            "states sharded over "
            f"gpus/(pp·ep·etp) = {job.expert_shards}; tokens are routed evenly"
        )
    if parallel.cp > 1:
        out += [EVEN_TOKENS, _context_shards(job)]
    chosen = [job.framework.stage(stage) for stage in job.stages]
    out += [
        f"{display_name(stage.name)} of {job.framework.name} is {stage.meaning}"
        for stage in chosen
        if stage.meaning
    ]
    buckets = job.framework.options is None or "buffers" in job.framework.options
    if job.shards > 1:
        if buckets and zero.buffers == "constant":
            sizes = dict.fromkeys((zero.reduce_bucket_size, zero.allgather_bucket_size))
            out.append(
                "communication buckets (C_B) of up to "
                f"{' and '.join(f'{size:,}' for size in sizes)} elements"
            )
        if (
            job.framework.units_in_flight > 1
            and 3 in job.stages
            and not (job.model.is_bare and job.model.blocks is None)
        ):
            out.append(
                f"stage 3 keeps {job.framework.units_in_flight} layers all-gathered, plus "
                "the embedding or head in use"
            )
        if zero.gather == "broadcast" and not job.model.is_bare:
            out.append("each owner of broadcast blocks holds an equal share of the parameters")
    if (
        cluster.gpus > cluster.gpus_per_node
        and cluster.node is None
        and cluster.gpus_per_node == DEFAULT_GPUS_PER_NODE
    ):
        out.append(f"{cluster.gpus_per_node} GPUs per node")
    return out


def _assumed_of_time(job: Job) -> list[str]:
    own, (typical, note) = job.training.kernel_efficiency, job.cluster.kernel_efficiency
    share = (
        f"{100 * typical:.0f} % of dense peak ({note})"
        if own is None
        else f"{100 * own:.0f} % of dense peak"
    )
    out = [
        f"step time: kernels reach {share}, links their nominal bandwidth; {RING_LATENCY}; "
        "data loading and stragglers not counted",
        "FLOPs count the full attention matrix, as papers do; a causal mask needs half",
    ]
    if job.zero.offload_optimizer != "none":
        out.append(
            "step time: the CPU optimizer step reads and writes each state once, at CPU "
            "memory bandwidth"
        )
    return out
