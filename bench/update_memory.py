"""What `update` needs for models of given shapes, as XLA plans it for this machine's backend; nothing is allocated.

    python bench/update_memory.py --shapes SHAPES.jsonl          # lines of config.json fields, with an `id`
    python bench/update_memory.py --shapes SHAPES.jsonl --only qwen2.5-7b --layers 4 32

For each shape: parameters, bytes of the arguments (float32 parameters and AdamW's moments), bytes of the temporaries of one
optimiser step, what a [rows, tokens, vocabulary] array in float32 alone would take, and seconds to compile. With several
`--layers` each shape is compiled at each depth, and the last column is the time relative to the first depth.
"""

import dataclasses
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from rlvr_jax.config import Optimizer
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.families import from_huggingface
from rlvr_jax.objective import preset
from rlvr_jax.train.optimizer import make_optimizer
from rlvr_jax.train.packing import Packer
from rlvr_jax.train.step import Forward, TrainState, make_credit, make_update
from rlvr_jax.types import BatchSpec, Rollout, Stats

NOTES = ("id", "source", "note", "qk_norm")
"""Keys of a shape that no config.json has."""


@dataclasses.dataclass(frozen=True)
class Bench:
    shapes: pathlib.Path
    """JSON lines: fields of a config.json, with an `id`."""
    only: tuple[str, ...] = ()
    """Ids; empty: all."""
    layers: tuple[int, ...] = ()
    """Depths to compile each shape at; empty: its own."""
    rows: int = 8
    """Responses in one micro-batch, all to one prompt."""
    prompt: int = 512
    tokens: int = 1024
    micro_batches: int = 4
    dtype: str = "bfloat16"
    remat: str = "full"
    vocab_chunk: int = 8192


def compiled(config: ModelConfig, b: Bench) -> tuple[jax.stages.Compiled, int, float]:
    """One optimiser step of GRPO; the number of parameters; seconds to compile."""
    make = lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=jnp.dtype(b.dtype), remat=b.remat)  # noqa: E731
    graphdef, params = nnx.split(nnx.eval_shape(make))
    objective, tx = preset("grpo"), make_optimizer(Optimizer(), 1e-6)
    spec = BatchSpec(groups=b.micro_batches, group_size=b.rows, length=b.tokens, num_prompts=1)
    rollout = _rollout(spec, b.prompt)
    credit, state, _ = jax.eval_shape(
        make_credit(objective, spec), rollout, Stats(values={}), objective.init(spec)
    )
    start = TrainState(
        params=params,
        opt=jax.eval_shape(tx.init, params),
        objective=state,
        step=jax.ShapeDtypeStruct((), jnp.int32),
    )
    packer = Packer(b.micro_batches, b.rows, b.tokens, b.micro_batches)
    plan = packer.all_rows(np.full(spec.rows, b.tokens), b.prompt)
    update = make_update(objective, Forward(graphdef, 1.0, b.vocab_chunk), tx, spec, 1)
    lowered = jax.jit(update, donate_argnums=0).lower(start, rollout, Stats(values={}), credit, plan, 0, 0)
    begin = time.perf_counter()
    return lowered.compile(), sum(x.size for x in jax.tree.leaves(params)), time.perf_counter() - begin


def _rollout(spec: BatchSpec, prompt: int) -> Rollout:
    def array(dtype, *shape):
        return jax.ShapeDtypeStruct((spec.rows, *shape), dtype)

    return Rollout(
        prompt=array(jnp.int32, prompt),
        prompt_length=array(jnp.int32),
        tokens=array(jnp.int32, spec.length),
        length=array(jnp.int32),
        mask=array(jnp.float32, spec.length),
        reward=array(jnp.float32),
        correct=array(jnp.float32),
        prompt_id=array(jnp.int32),
        truncated=array(bool),
    )


def main(b: Bench) -> None:
    shapes = [json.loads(line) for line in b.shapes.read_text().splitlines()]
    table = Table(
        title=f"update on {jax.default_backend()}: {b.micro_batches} micro-batches of {b.rows} x ({b.prompt} + {b.tokens}) "
        f"tokens, {b.dtype}, remat {b.remat}"
    )
    for column in (
        "shape",
        "layers",
        "parameters",
        "arguments",
        "temporaries",
        "[B, T, V]",
        "compile",
        "relative",
    ):
        table.add_column(column, justify="left" if column == "shape" else "right")
    for shape in shapes:
        if b.only and shape["id"] not in b.only:
            continue
        first = None
        for layers in b.layers or (shape["num_hidden_layers"],):
            fields = {key: value for key, value in shape.items() if key not in NOTES}
            config = dataclasses.replace(from_huggingface(fields), num_layers=layers)
            program, parameters, seconds = compiled(config, b)
            first = first or seconds
            memory = program.memory_analysis()
            row = {
                "shape": shape["id"],
                "layers": layers,
                "parameters": parameters,
                "argument_bytes": memory.argument_size_in_bytes,
                "temporary_bytes": memory.temp_size_in_bytes,
                "dense_logits_bytes": 4 * b.rows * b.tokens * config.vocab_size,
                "compile_seconds": seconds,
                "relative": seconds / first,
            }
            print(json.dumps(row), flush=True)
            sizes = (f"{row[k] / 2**30:.2f} GiB" for k in list(row)[3:6])
            table.add_row(
                shape["id"],
                str(layers),
                f"{parameters / 1e9:.2f}B",
                *sizes,
                f"{seconds:.1f} s",
                f"{seconds / first:.2f}",
            )
    Console(stderr=True, width=120).print(table)


if __name__ == "__main__":
    main(tyro.cli(Bench))
