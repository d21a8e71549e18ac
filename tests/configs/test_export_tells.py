"""Whatever is chosen for a job is in the configuration that is written for it, or is told beside
it, or is refused.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.running import Ran, run
from zerocalc.cli.flags import FLAGS, Flag
from zerocalc.configs.export import FORMS
from zerocalc.configs.writing.common import ASKED_ONLY

CHOICES = {
    "training.seq": "2048",
    "training.micro_batch": "2",
    "training.accumulation": "2",
    "training.recompute": "full",
    "training.recompute_every": "2 --recompute full",
    "training.recompute_modules": "mlp --recompute selective",
    "training.reentrant": "",
    "training.attention": "eager",
    "implementation": "torchtitan-0.3",
    "loss": "fused",
    "recipe": "fp32-adam",
    "parallel.tp": "2",
    "parallel.pp": "2",
    "parallel.first_stage_layers": "14 --pp 2",
    "parallel.last_stage_layers": "14 --pp 2",
    "parallel.interleave": "2 --pp 2 --accumulation 2",
    "parallel.cp": "2",
    "parallel.sequence_parallel": "--tp 2",
    "zero.stage": "2",
    "zero.grad_sync": "all-reduce",
    "zero.defer_grad_sync": "--accumulation 2",
    "zero.gather": "broadcast",
    "zero.reduce_dtype": "fp16",
    "zero.shard_group": "8",
    "zero.secondary_group": "4",
    "zero.quantised_weights": "",
    "zero.quantised_gradients": "",
    "zero.reduce_to_owner": "--stage 2",
    "zero.grad_accum_dtype": "fp32",
    "zero.contiguous_gradients": "no",
    "zero.max_live_parameters": "1M",
    "zero.max_reuse_distance": "1M",
    "zero.prefetch_bucket_size": "1M",
    "zero.persistence_threshold": "1M",
    "zero.sub_group_size": "1M",
    "zero.partition_activations": "--tp 2 --recompute full",
    "zero.cpu_checkpointing": "--pa --tp 2 --recompute full",
    "zero.buffers": "fused",
    "zero.reduce_bucket_size": "1M",
    "zero.allgather_bucket_size": "1M",
    "zero.overlap_comm": "no",
    "zero.defragment": "no",
    "zero.offload_optimizer": "cpu",
    "zero.offload_params": "cpu --offload-optimizer cpu",
    "zero.offload_activations": "cpu --recompute full",
    "parallel.ep": "2 --model mixtral-8x7b --stage 1",
    "parallel.etp": "1 --ep 2 --tp 2 --model mixtral-8x7b --stage 1",
    "zero.fragmentation": "0.2 --no-defragment",
}
"""A value of every flag that says how a job runs, and what it needs beside it."""
CHOSEN = [
    flag
    for flag in FLAGS
    if flag.path.partition(".")[0] not in ("model", "cluster")
    and flag.path not in {"framework", *ASKED_ONLY}
]
STAGES = {"megatron": "1"}


@cache
def exported(target: str, *flags: str) -> Ran:
    stage = () if "--stage" in flags else ("--stage", STAGES.get(target, "3"))
    seq = () if "--seq" in flags else ("--seq", "1024")
    model = () if "--model" in flags else ("--model", "llama-3-8b")
    return run("export", "--to", target, *model, "--gpus", "16", *stage, *seq, *flags)


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("flag", CHOSEN, ids=lambda flag: flag.name)
def test_no_choice_is_dropped_without_a_word(target: str, flag: Flag) -> None:
    name, path = flag.name, flag.path
    value, *beside = (
        CHOICES[path].split(" --")
        if CHOICES[path] and not CHOICES[path].startswith("--")
        else ["", *CHOICES[path].split("--")[1:]]
    )
    needed = [word for part in beside for word in f"--{part}".split()]
    if value == "no":
        name, value = f"--no-{name[2:]}", ""
    without = exported(target, *needed)
    with_it = exported(target, name, *([value] if value else []), *needed)
    assert with_it.status == 2 or (with_it.out, with_it.err) != (without.out, without.err)
