"""Matrix products in the types that a decoder could use, side by side: GFLOP/s of each, and times float32's.

    python bench/products.py

The shapes are those of SmolLM2-135M: a projection over a batch of rows, the same for one decode step, and the head. `ours`
is `rlvr_jax.products.product` with its result in bfloat16; `gradient` is one of its two products, and `autodiff` the
same as JAX would do it: a float32 cotangent times a bfloat16 matrix. Best of ten, the choices taking turns.
"""

import time

import jax
import jax.numpy as jnp

from rlvr_jax.products import product

SHAPES = {"projection": (2048, 576, 1536), "decode": (64, 576, 1536), "head": (512, 576, 49152)}
WIDE, NARROW = jnp.float32, jnp.bfloat16


def autodiff(g: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.dot_general(g, w, (((1,), (0,)), ((), ())), preferred_element_type=WIDE)


CHOICES = {
    "float32": (lambda x, w: jnp.matmul(x, w, precision="highest"), WIDE, WIDE),
    "bfloat16 -> bfloat16": (jnp.matmul, NARROW, NARROW),
    "ours": (lambda x, w: product(x, w).astype(NARROW), NARROW, NARROW),
    "autodiff": (autodiff, WIDE, NARROW),
    "gradient": (lambda g, w: product(g.astype(NARROW), w), WIDE, NARROW),
}


def main() -> None:
    print(f"{jax.default_backend()}, GFLOP/s (times float32)")
    for name, (m, k, n) in SHAPES.items():
        x, w = jax.random.normal(jax.random.key(0), (m, k)), jax.random.normal(jax.random.key(1), (k, n))
        runs = {c: (jax.jit(f), x.astype(a), w.astype(b)) for c, (f, a, b) in CHOICES.items()}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(11):  # the first one compiles
            for choice, (f, *operands) in runs.items():
                start = time.perf_counter()
                f(*operands).block_until_ready()
                best[choice] = min(best[choice], time.perf_counter() - start)
        rates = {choice: 2e-9 * m * k * n / seconds for choice, seconds in best.items()}
        shown = (f"{choice} {rate:.0f} ({rate / rates['float32']:.2f}x)" for choice, rate in rates.items())
        print(f"{name} {m} x {k} x {n}: {', '.join(shown)}")


if __name__ == "__main__":
    main()
