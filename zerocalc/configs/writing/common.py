"""What the writers of tools' configurations share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job


@dataclass(frozen=True, slots=True)
class Exported:
    """A configuration, and in words what of the job it does not hold."""

    text: str
    remarks: tuple[str, ...]


def batch_of(job: Job) -> int:
    """Sequences of one optimizer step over all ranks."""
    return job.training.micro_batch * job.training.accumulation * job.dp


def fields(**parts: str) -> frozenset[str]:
    """The paths of fields of a Job, part by part.

    >>> sorted(fields(parallel="tp cp", zero="stage"))
    ['parallel.cp', 'parallel.tp', 'zero.stage']
    """
    return frozenset(f"{part}.{name}" for part, names in parts.items() for name in names.split())


def no_recipe(job: Job, words: str, instead: str = "") -> FieldError:
    """The error to raise for a recipe that ``words`` of a configuration do not stand for."""
    return FieldError("recipe", f"{job.recipe.name} is none that {words} for{instead}")


def data_parallel_shards(job: Job) -> int:
    """Ranks that share a sharded tensor, of which the context-parallel ones are no data-parallel
    ones. Raises `FieldError` where they do not go into each other.
    """
    cp = job.parallel.cp
    if job.shards % cp:
        raise FieldError(
            "zero.shard_group",
            f"{job.shards} is not divisible by the context-parallel degree {cp}, whose "
            "ranks share shards",
        )
    return job.shards // cp


ASKED_ONLY = fields(zero="stage", training="kernel_efficiency tokens", parallel="pipeline_stage")
"""Fields that are questions to zerocalc and say nothing of how a job runs; the stage is the one
that is written.
"""


def remarks_on(job: Job, held: Iterable[str]) -> tuple[str, ...]:
    """What of the job stands elsewhere: in the script, in the model, in the launcher: all that is
    chosen, but for the fields ``held``.
    """
    said = [_words(job, path) for path in ("model", *_chosen(job)) if path not in held]
    m = job.model
    if m.lora is not None:
        said.append(f"adapters are the model's (PEFT): rank {m.lora.rank}")
    if m.quantised is not None:
        said.append(f"the base is quantised when it is loaded: {m.quantised.name}")
    if m.trainable is not None:
        said.append(f"the script freezes all but {m.trainable:,} parameters")
    return tuple(said)


def _chosen(job: Job) -> Iterator[str]:
    """The fields by which a job differs from what it would be without any of them, but for its
    model, machine, recipe and framework.
    """
    for name, brought in (
        ("implementation", job.framework.implementation),
        ("loss", job.implementation.loss),
    ):
        if getattr(job, name).name != brought:
            yield name
    for part in ("training", "parallel", "zero"):
        spec = getattr(job, part)
        for field, value in spec:
            path = f"{part}.{field}"
            if value != type(spec).model_fields[field].default and path not in ASKED_ONLY:
                yield path


def _words(job: Job, path: str) -> str:
    """What is to be said of a field that a configuration does not hold."""
    t, p = job.training, job.parallel
    words = {
        "model": f"the model is the script's: {job.model.title or 'as described'}",
        "implementation": f"layers are the model's: counted as those of {job.implementation.name}",
        "loss": f"the loss is the script's: {job.loss.name}",
        "training.seq": f"sequences of {t.seq} are the script's",
        "training.micro_batch": f"the script takes batches of {t.micro_batch} a GPU",
        "training.accumulation": f"the script accumulates {t.accumulation} micro-batches a step",
        "training.attention": f"attention is the model's: {t.attention}",
        "training.recompute": f"recomputation is the model's to switch on: {t.recompute}",
        "training.recompute_every": f"the script recomputes one layer in {t.recompute_every}",
        "training.recompute_modules": "what is recomputed is the script's to say: "
        f"{', '.join(t.recompute_modules)}",
        "parallel.pp": f"the script cuts the model into {p.pp} pipeline stages",
        "parallel.interleave": f"each pipeline stage has {p.interleave} chunks of layers",
        "zero.defer_grad_sync": "the script reduces gradients after the last micro-batch of a step "
        "alone",
    }
    if path in words:
        return words[path]
    part, _, field = path.rpartition(".")
    return (
        f"{field.replace('_', ' ')} {getattr(getattr(job, part), field)}: the configuration "
        "has no word for it"
    ).lower()
