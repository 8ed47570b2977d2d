"""Times the ways to compute attention side by side, on the backend that JAX finds.

    python bench/attention.py                                   # a small step: 2 prompts, 8 answers of 128 tokens each
    python bench/attention.py --prompts 4 --length 4096 --heads 32 --kv-heads 8 --width 128

`plain` and `dense` run everywhere, `splash` on a TPU, `cudnn` on an NVIDIA GPU. The runs are interleaved and the best of
`--repeats` counts, since other work on the machine only ever adds. FLOP/s are those of the products with keys that a
query sees, S + (T + 1) / 2 of them, twice as many for the gradient; memory is XLA's plan of the temporaries.
"""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from rlvr_jax.models.attention import dense, plain
from rlvr_jax.models.kernels import cudnn


@dataclasses.dataclass(frozen=True)
class Bench:
    prompts: int = 2
    group: int = 8
    prefix: int = 64
    length: int = 128
    """Own tokens of a row."""
    heads: int = 9
    kv_heads: int = 3
    width: int = 64
    dtype: str = "bfloat16"
    repeats: int = 9


def main(bench: Bench) -> None:
    b, rows = bench, bench.prompts * bench.group
    shapes = {
        "q": (rows, b.length, b.heads, b.width),
        "prefix_k": (b.prompts, b.prefix, b.kv_heads, b.width),
        "prefix_v": (b.prompts, b.prefix, b.kv_heads, b.width),
        "k": (rows, b.length, b.kv_heads, b.width),
        "v": (rows, b.length, b.kv_heads, b.width),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arrays = [
        jax.random.normal(key, shape, b.dtype) for key, shape in zip(keys, shapes.values(), strict=True)
    ]
    lengths = jnp.full(b.prompts, b.prefix, jnp.int32)
    forward = 4 * rows * b.length * b.heads * b.width * (b.prefix + (b.length + 1) / 2)

    table = Table("attention", "pass", "ms", "ratio", "GFLOP/s", "MiB")
    for kind, flops in (("value", forward), ("value and gradient", 3 * forward)):
        compiled = {
            name: jax.jit(with_gradient(how) if kind != "value" else how).lower(*arrays).compile()
            for name, how in ways(b, lengths).items()
        }
        best = dict.fromkeys(compiled, float("inf"))
        for _ in range(b.repeats + 1):  # the first is never the best
            for name, run in compiled.items():
                start = time.perf_counter()
                jax.block_until_ready(run(*arrays))
                best[name] = min(best[name], time.perf_counter() - start)
        for name, seconds in best.items():
            memory = compiled[name].memory_analysis().temp_size_in_bytes / 2**20
            ratio = best["plain"] / seconds
            table.add_row(
                name,
                kind,
                f"{seconds * 1e3:.1f}",
                f"{ratio:.2f}",
                f"{flops / seconds / 1e9:.1f}",
                f"{memory:.0f}",
            )
    Console().print(f"{jax.default_backend()}, {b}", table)


def ways(b: Bench, lengths: jax.Array) -> dict:
    """Each as a function of q, prefix_k, prefix_v, k, v."""
    scale, seen = b.width**-0.5, jnp.tril(jnp.ones((1, b.length, b.length), bool))
    whole = jnp.ones((b.prompts, 1, b.prefix), bool)
    out = {
        how.__name__: lambda q, pk, pv, k, v, how=how: how(q, pk, pv, whole, k, v, seen, scale)
        for how in (plain, dense)
    }
    if jax.default_backend() == "tpu":
        from rlvr_jax.models.splash import splash

        out["splash"] = lambda *rows: splash(*rows, lengths, window=0, scale=scale)
    if jax.default_backend() == "gpu":
        out["cudnn"] = lambda *rows: cudnn(*rows, lengths, window=0, scale=scale)
    return out


def with_gradient(how):
    """The value, and its gradients under the value itself as a cotangent."""

    @functools.wraps(how)
    def both(*rows):
        out, back = jax.vjp(how, *rows)
        return out, back(out)

    return both


if __name__ == "__main__":
    main(tyro.cli(Bench))
