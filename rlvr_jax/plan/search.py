"""Which mesh, remat policy and number of micro-batches make the fastest update that fits."""

import dataclasses
import math
from collections.abc import Iterator

import jax

from rlvr_jax.config import Config, MeshShape
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.layout import layer_layout, outer_layout
from rlvr_jax.plan.advice import allowed, rows_at_once
from rlvr_jax.plan.chips import GIB
from rlvr_jax.plan.planning import Say, compiled
from rlvr_jax.plan.topology import Target
from rlvr_jax.train.program import Described, assemble

_REMAT = ("none", "dots", "full")


@dataclasses.dataclass(frozen=True)
class Tried:
    """One update, compiled. `peak` in bytes of a device (None: more than there is), `seconds` of a training step's updates at
    the least."""

    mesh: dict[str, int]
    remat: str
    micro_batches: int
    fits: bool
    peak: int | None
    seconds: float | None

    @property
    def words(self) -> str:
        """What to write behind a command."""
        mesh = " ".join(f"--mesh.{name} {size}" for name, size in self.mesh.items())
        return f"{mesh} --model.remat {self.remat} --batch.micro_batches {self.micro_batches}"


def search(
    config: Config, described: Described, num_prompts: int, target: Target, say: Say, *, tries: int
) -> list[Tried]:
    """Compile at the most `tries` updates: those that fit, fastest first, then the others.

    Of each mesh and policy the fewest micro-batches that an estimate lets pass, and twice as many while they do not fit.

    Raises ValueError where the compiler of the chip is not here: nothing is known of its memory then.
    """
    if target.missing or target.chip is None:
        raise ValueError(
            f"--search needs to know what fits. {target.missing or 'A cpu has no fixed memory.'}"
        )
    out: list[Tried] = []
    for mesh in _meshes(described.model, len(target.devices)):
        for remat in _REMAT:
            for micro in _micro_batches(config, described.model, mesh, remat, target.chip.memory):
                if len(out) >= tries:
                    return _ranked(out)
                tried = _try(config, described, num_prompts, target, mesh, remat, micro)
                out.append(tried)
                say(f"{len(out)}/{tries}  {tried.words}  {'fits' if tried.fits else 'does not fit'}")
                if tried.fits:
                    break
    return _ranked(out)


def as_text(tried: list[Tried]) -> str:
    """One line each."""
    lines = []
    for each in tried:
        peak = "   -  " if each.peak is None else f"{each.peak / GIB:6.2f}"
        seconds = "   -   " if each.seconds is None else f"{each.seconds:7.2f}"
        lines.append(f"{'fits' if each.fits else 'no  '}  {peak} GiB  {seconds} s  {each.words}")
    return "\n".join(lines) or "Nothing was tried: no micro-batch is small enough for the memory of the chip."


def _ranked(tried: list[Tried]) -> list[Tried]:
    return sorted(tried, key=lambda each: (not each.fits, each.seconds or math.inf))


def _meshes(model: ModelConfig, devices: int) -> Iterator[MeshShape]:
    """All devices share the parameters (fsdp) first, then some of them split each matrix (tensor), then copies of all (data)."""
    for data, tensor in ((1, 1), (1, 2), (2, 1), (1, 4), (4, 1), (1, 8)):
        if devices % (data * tensor) == 0 and model.num_kv_heads % tensor == 0:
            yield MeshShape(data=data, fsdp=devices // data // tensor, tensor=tensor)


def _micro_batches(config: Config, model: ModelConfig, mesh: MeshShape, remat: str, memory: int) -> list[int]:
    """Numbers of micro-batches that the batch allows, from the fewest that may fit."""
    shards = mesh.data * mesh.fsdp
    if config.batch.prompts % shards:
        return []
    fewest: dict[int, int] = {}
    for number in allowed(config):
        fewest.setdefault(rows_at_once(config, shards, number), number)
    held = (
        16 * _parameters(model) / (mesh.fsdp * mesh.tensor)
    )  # float32: parameters, gradient and two moments
    kept = _kept(model, remat) * config.sampling.max_new_tokens / mesh.tensor
    return [number for rows, number in fewest.items() if held + rows * kept < memory]


def _parameters(model: ModelConfig) -> int:
    layer = sum(math.prod(leaf.shape) for leaf in layer_layout(model).values())
    return model.num_layers * layer + sum(math.prod(leaf.shape) for leaf in outer_layout(model).values())


def _kept(model: ModelConfig, remat: str) -> float:
    """Bytes of bfloat16 that a token leaves for the backward pass, at the least."""
    entry, products = model.dim, (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    products += 2 * model.dim + 2 * model.mlp_dim
    wide = {"full": entry, "dots": entry + products, "none": 2 * (entry + products)}[remat]
    return 2.0 * model.num_layers * wide


def _try(
    config: Config,
    described: Described,
    num_prompts: int,
    target: Target,
    mesh: MeshShape,
    remat: str,
    micro: int,
) -> Tried:
    changed = dataclasses.replace(
        config,
        mesh=mesh,
        model=dataclasses.replace(config.model, remat=remat),
        batch=dataclasses.replace(config.batch, micro_batches=micro),
    )
    program = assemble(changed, num_prompts, devices=target.devices, described=described)
    with jax.set_mesh(program.mesh):
        (figures,) = compiled(program, target, lambda words: None, ("update",))
    fits = figures.fits(target.chip) is True
    return Tried(
        mesh=dataclasses.asdict(mesh),
        remat=remat,
        micro_batches=micro,
        fits=fits,
        peak=None if figures.memory is None else figures.memory.peak,
        seconds=None if figures.fastest is None else float(figures.runs * figures.fastest),
    )
