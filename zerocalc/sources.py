"""The papers that formulas and answers cite by a tag."""

import re

PAPERS = {
    "ZeRO": (
        "Rajbhandari et al. 2019, ZeRO: Memory Optimizations Toward Training Trillion "
        "Parameter Models, arXiv 1910.02054"
    ),
    "Meg": (
        "Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters "
        "Using Megatron-LM, arXiv 2104.04473"
    ),
    "SP": (
        "Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer "
        "Models, arXiv 2205.05198"
    ),
    "Off": (
        "Ren et al. 2021, ZeRO-Offload: Democratizing Billion-Scale Model Training, arXiv "
        "2101.06840"
    ),
    "Inf": (
        "Rajbhandari et al. 2021, ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme "
        "Scale Deep Learning, arXiv 2104.07857"
    ),
    "++": (
        "Wang et al. 2023, ZeRO++: Extremely Efficient Collective Communication for Giant "
        "Model Training, arXiv 2306.10209"
    ),
    "MiCS": (
        "Zhang et al. 2022, MiCS: Near-linear Scaling for Training Gigantic Model on Public "
        "Cloud, arXiv 2205.00119"
    ),
    "FSDP": (
        "Zhao et al. 2023, PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, "
        "arXiv 2304.11277"
    ),
    "PaLM": "Chowdhery et al. 2022, PaLM: Scaling Language Modeling with Pathways, "
    "arXiv 2204.02311",
    "Adafactor": (
        "Shazeer and Stern 2018, Adafactor: Adaptive Learning Rates with Sublinear Memory "
        "Cost, arXiv 1804.04235"
    ),
}
TAG = re.compile(r"\[([A-Z][A-Za-z]+|\+\+)\]")
"""A paper as texts cite it."""


def cited(*texts: str) -> list[str]:
    """The tags that texts cite, in the order of `PAPERS`.

    >>> cited("[SP] §4", "as in [ZeRO] §7.1 and [SP]")
    ['ZeRO', 'SP']
    """
    found = {tag for text in texts for tag in TAG.findall(text)}
    return [tag for tag in PAPERS if tag in found]
