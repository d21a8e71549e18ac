"""What the writers of tools' configurations share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zerocalc.spec.job import Job


@dataclass(frozen=True, slots=True)
class Exported:
    """A configuration, and in words what of the job it does not hold."""

    text: str
    remarks: tuple[str, ...]


def batch_of(job: Job) -> int:
    """Sequences of one optimizer step over all ranks."""
    return job.training.micro_batch * job.training.accumulation * job.dp


def remarks_on(job: Job, paths: Iterable[str]) -> tuple[str, ...]:
    """What of the job stands elsewhere: in the script, in the model, in the launcher; of the fields ``paths``, and of what no configuration holds."""
    t, p, m = job.training, job.parallel, job.model
    words = {
        "model": f"the model is the script's: {m.title or 'as described'}",
        "training.seq": f"sequences of {t.seq} are the script's" if t.seq else "",
        "training.micro_batch": f"the script takes batches of {t.micro_batch} a GPU" if t.micro_batch > 1 else "",
        "training.accumulation": f"the script accumulates {t.accumulation} micro-batches a step" if t.accumulation > 1 else "",
        "training.attention": f"attention is the model's: {t.attention}" if t.attention != "flash" else "",
        "training.recompute": f"recomputation is the model's to switch on: {t.recompute}" if t.recompute != "none" else "",
        "parallel.pp": f"the script cuts the model into {p.pp} pipeline stages" if p.pp > 1 else "",
        "parallel.interleave": f"each pipeline stage has {p.interleave} chunks of layers" if p.interleave > 1 else "",
    }
    said = [words[path] for path in paths]
    if m.lora is not None:
        said.append(f"adapters are the model's (PEFT): rank {m.lora.rank}")
    if m.quantised is not None:
        said.append(f"the base is quantised when it is loaded: {m.quantised.name}")
    if m.trainable is not None:
        said.append(f"the script freezes all but {m.trainable:,} parameters")
    return tuple(line for line in said if line)
