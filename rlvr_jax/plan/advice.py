"""What to change where a run does not fit, or wastes what it has."""

from collections.abc import Iterator

from rlvr_jax.config import Config
from rlvr_jax.plan.chips import GIB, Chip
from rlvr_jax.plan.measure import Figures
from rlvr_jax.plan.planning import Planned
from rlvr_jax.plan.topology import Target
from rlvr_jax.train.packing import Packer

_WASTE = 0.05
"""More than this share of repeated work, or of links that the products wait for, is worth a word. Ours."""


def advice(config: Config, found: Planned, target: Target) -> list[str]:
    """Sentences, the most helpful change first; none where all fits and little is wasted."""
    out: list[str] = []
    for figures in found.figures:
        if figures.fits(target.chip) is False:
            out += [
                f"{figures.name} does not fit: {words}"
                for words in _smaller(figures, config, found, target.chip)
            ]
    for figures in found.figures:
        repeated = found.repeated(figures.name)
        if repeated is not None and repeated > _WASTE:
            out.append(
                f"{figures.name} computes {repeated:.0%} more than one device would, as some of it is done on several: make "
                "mesh.tensor a divisor of the key heads, and mesh.data * mesh.fsdp one of batch.prompts."
            )
        limits = figures.seconds
        if limits and limits.get("links", 0.0) > 0.5 * sum(limits.values()):
            gathers = figures.name == "decode" and config.decoding.weights == "stored"
            ways = (
                ""
                if not gathers
                else "--decoding.weights gathered, where there is memory for all of them; else "
            )
            out.append(
                f"{figures.name} waits for the links: {ways}less of mesh.fsdp or mesh.tensor, or larger micro-batches."
            )
    return list(dict.fromkeys(out))


def _smaller(figures: Figures, config: Config, found: Planned, chip: Chip | None) -> Iterator[str]:
    """Changes that take memory from what is too large."""
    memory, batch, model = figures.memory, config.batch, config.model
    if memory is not None and chip is not None and memory.arguments + memory.beside > 0.8 * chip.memory:
        held = (memory.arguments + memory.beside) / GIB
        yield f"what it holds before it begins is {held:.1f} GiB already: more devices, more of mesh.fsdp, or model.lora."
    if figures.name == "decode":
        slots = config.decoding.slots or batch.prompts * batch.group_size
        yield f"fewer rows at once, --decoding.slots {max(_shards(found), slots // 2)}."
        if config.decoding.cache != "int8":
            yield "half the cache, --decoding.cache int8 (log-probabilities are then those of the rounded cache)."
    elif figures.name == "prefill":
        yield "all prompts of a batch are prefilled at once: lower batch.prompts or prompts.max_tokens, or take more devices."
    else:
        if model.remat in ("none", "dots") and figures.name == "update":
            yield f"keep less for the backward pass, --model.remat {'dots' if model.remat == 'none' else 'full'}."
        rows = rows_at_once(config, _shards(found))
        more = next((n for n in allowed(config) if rows_at_once(config, _shards(found), n) < rows), None)
        if more is not None:
            yield f"fewer rows at once, --batch.micro_batches {more}."
        else:
            yield (
                "each device computes one row at a time already: more of mesh.tensor, or shorter rows "
                "(sampling.max_new_tokens)."
            )
        if model.vocab_chunk > 1024:
            yield f"a smaller part of the vocabulary at a time, --model.vocab_chunk {model.vocab_chunk // 2}."


def allowed(config: Config) -> list[int]:
    """Numbers of micro-batches that divide the rows of an optimiser step."""
    rows = config.batch.prompts // config.batch.minibatches * config.batch.group_size
    return [n for n in range(1, rows + 1) if rows % n == 0]


def rows_at_once(config: Config, shards: int, micro_batches: int | None = None) -> int:
    """Packed rows that a shard computes at a time."""
    batch = config.batch
    packer = Packer(
        groups=batch.prompts // batch.minibatches,
        group_size=batch.group_size,
        length=config.sampling.max_new_tokens,
        micro_batches=micro_batches or batch.micro_batches,
        shards=shards,
    )
    return next(packer.shapes(config.prompts.max_tokens))[1]


def _shards(found: Planned) -> int:
    return found.mesh["data"] * found.mesh["fsdp"]
