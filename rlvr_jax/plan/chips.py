"""What accelerators can do at their best, as their makers publish it."""

import dataclasses
from collections.abc import Mapping

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator, as a program sees it. Rates are per second and one-way; all are peaks, which no program reaches."""

    name: str
    flops: float
    """bfloat16 operations in products, without sparsity."""
    memory: int
    """Bytes of HBM that a program may use."""
    bandwidth: float
    """Bytes from and to HBM."""
    link: float
    """Bytes that it sends to its neighbours, over all links together."""
    source: str


def _tpu(version: str, flops: float, memory: float, bandwidth: float, both_ways: float) -> Chip:
    """From the table of a version's page: TFLOPs, GiB, GB/s, GB/s of the links in both directions."""
    return Chip(
        name=f"TPU {version}",
        flops=flops * 1e12,
        memory=int(memory * GIB),
        bandwidth=bandwidth * 1e9,
        link=both_ways / 2 * 1e9,
        source=f"https://cloud.google.com/tpu/docs/{version}",
    )


def _gpu(name: str, flops: float, memory: float, bandwidth: float, link: float, page: str) -> Chip:
    """From its data sheet: dense TFLOPs, GB, GB/s, GB/s of NVLink in one direction."""
    return Chip(
        name=f"NVIDIA {name}",
        flops=flops * 1e12,
        memory=int(memory * 1e9),
        bandwidth=bandwidth * 1e9,
        link=link * 1e9,
        source=f"https://www.nvidia.com/en-us/data-center/{page}/",
    )


CHIPS: Mapping[str, Chip] = {
    "v5e": _tpu("v5e", 197.0, 15.75, 819.0, 400.0),
    "v5p": _tpu("v5p", 459.0, 95.0, 2765.0, 1200.0),
    "v6e": _tpu("v6e", 918.0, 31.25, 1600.0, 800.0),
    "a100": _gpu("A100 80GB", 312.0, 80.0, 2039.0, 300.0, "a100"),
    "h100": _gpu("H100 SXM", 989.0, 80.0, 3350.0, 450.0, "h100"),
    "h200": _gpu("H200 SXM", 989.0, 141.0, 4800.0, 450.0, "h200"),
    "b200": _gpu("B200", 2250.0, 180.0, 7700.0, 900.0, "dgx-b200"),
}
"""Of v5e and v6e the compiler itself keeps 0.25 and 0.75 GiB of the 16 and 32 that the page gives."""
