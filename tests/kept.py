"""The outputs that are kept whole, and where; shared by their test and by what renews them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.running import run

FOLDER = Path(__file__).parent / "snapshots"
WIDTHS = (80, 120)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One command line at one width."""

    name: str
    command: str
    columns: int
    colour: bool = False

    @property
    def file(self) -> Path:
        """Where its output is kept."""
        return FOLDER / f"{self.name}-{self.columns}{'-colour' if self.colour else ''}.txt"

    def printed(self) -> str:
        """What the command prints now, under the line that ran it; it must succeed in silence."""
        ran = run(*shlex.split(self.command), columns=self.columns, colour=self.colour)
        assert not ran.err or self.name in TALKS, ran.err
        return f"$ zerocalc {self.command}\n{ran.out}{ran.err}exit status {ran.status}\n"


EXPORTED = (
    "--model llama-3-8b --gpus 16 --gpu h100-80g --seq 4096 --micro-batch 2 --accumulation 4 "
    "--recompute full"
)
COMMANDS = {
    "plan-bare": "plan --params 10B --gpus 64",
    "plan-one-gpu": "plan --params 350M --gpus 1",
    "plan-fits": "plan --model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192",
    "plan-does-not-fit": "plan --model llama-3-8b --gpus 4 --gpu a100-40g --seq 8192 --check",
    "plan-never-fits": (
        "plan --model llama-3-70b --gpus 8 --gpu a100-40g --seq 8192 --micro-batch 4 --tp 8"
    ),
    "plan-unknown": "plan --params 7B --gpus 8 --gpu h100-80g",
    "plan-accumulation": (
        "plan --model gpt2-xl --gpus 40 --seq 1024 --accumulation 4 --recompute full --tp 5 "
        "--recipe megatron --no-defragment"
    ),
    "plan-offload-optimizer": (
        "plan --model llama-3-8b --node p4d.24xlarge --gpus 8 --seq 4096 --framework deepspeed "
        "--offload-optimizer cpu"
    ),
    "plan-offload-lacks": (
        "plan --model llama-3-70b --node dgx-h100 --gpus 8 --seq 4096 --recompute full "
        "--offload-optimizer cpu --cpu-memory 500GB"
    ),
    "plan-offload-drives": (
        "plan --params 100B --node dgx-2 --gpus 64 --offload-optimizer nvme --offload-params nvme"
    ),
    "step-offload": "step --params 10B --gpus 16 --stage 2 --offload-optimizer cpu",
    "explain-offload": (
        "explain --params 10B --gpus 16 --stage 3 --offload-optimizer nvme --offload-params "
        "cpu --nvme-capacity 30TB"
    ),
    "plan-offload": (
        "plan --layers 48 --hidden 8192 --heads 64 --seq 1024 --gpus 16 --tp 8 --recompute "
        "full --pa --pa-cpu --stage 1,2"
    ),
    "explain-stage-3": "explain --params 10B --gpus 64 --stage 3",
    "explain-gradients": "explain --params 10B --gpus 64 --stage 2 --term gradients",
    "explain-activations": (
        'explain --model llama-3-8b --gpus 8 --seq 8192 --stage 1 --term "mlp activations"'
    ),
    "step-stages-1-3": "step --params 10B --gpus 64 --stage 1,3",
    "step-broadcast": "step --params 10B --blocks 16 --gpus 4 --stage 3 --gather broadcast",
    "step-architecture": "step --model gpt2 --gpus 8 --seq 1024 --accumulation 2",
    "presets": "presets",
    "presets-nodes": "presets nodes",
    "presets-one": "presets gpus h100-80g",
    "presets-recipe": "presets recipes mixed-adam",
    "params": "params llama-3.2-1b",
    "params-quantised": "params llama-2-70b --quantise gptq-4bit",
    "plan-quantised": (
        "plan --model llama-2-70b --gpus 2 --gpu a100-80g --seq 512 --quantise nf4-double "
        "--trainable 200M --stage 1,3"
    ),
    "markdown": "plan --model gpt2-xl --gpus 64 --seq 1024 --gpu v100-32g --format markdown",
    "csv": "plan --params 10B --gpus 64 --format csv",
    "export-deepspeed": f"export --to deepspeed {EXPORTED} --stage 3 --reduce-bucket-size 16M",
    "export-accelerate-fsdp1": (
        f"export --to accelerate {EXPORTED} --stage 2 --framework fsdp1 --reduce-dtype bf16 "
        "--shard-group 8"
    ),
    "export-accelerate-fsdp2": f"export --to accelerate {EXPORTED} --stage 3 --shard-group 8",
    "export-accelerate-deepspeed": (
        f"export --to accelerate {EXPORTED} --stage 3 --framework deepspeed"
    ),
    "export-accelerate-file": (
        f"export --to accelerate {EXPORTED} --stage 3 --framework deepspeed "
        "--max-live-parameters 1M"
    ),
    "export-fsdp2": f"export --to fsdp2 {EXPORTED} --stage 3 --shard-group 8 --recompute-every 2",
    "export-torchtitan": (
        f"export --to torchtitan {EXPORTED} --pp 2 --interleave 2 --tp 2 --sequence-parallel"
    ),
    "export-megatron": (
        f"export --to megatron {EXPORTED} --stage 1 --tp 2 --sequence-parallel --pp 2"
    ),
    "help": "--help",
    "help-plan": "plan --help",
    "help-export": "export --help",
}
TALKS = {name for name in COMMANDS if name.startswith("export-")}
"""Commands that say on standard error what standard output does not hold; it is kept with it."""
DATA = {"markdown", "csv", *TALKS}
"""Formats for programs: the width does not touch them."""
COLOURED = ("plan-fits", "explain-gradients")

SNAPSHOTS = [
    *(
        Snapshot(name, command, columns)
        for name, command in COMMANDS.items()
        for columns in (WIDTHS[:1] if name in DATA else WIDTHS)
    ),
    *(Snapshot(name, COMMANDS[name], WIDTHS[0], colour=True) for name in COLOURED),
]
