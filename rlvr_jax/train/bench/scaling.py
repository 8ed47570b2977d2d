"""How the cost of an update goes with the size of a group, the share of the prompt, of padding and of collapsed groups."""

import dataclasses
import gc
import statistics
from typing import Any

import jax
import numpy as np

from rlvr_jax.rollout.bench.process import Say
from rlvr_jax.train.bench import ours
from rlvr_jax.train.bench.work import Counts
from rlvr_jax.train.bench.workload import Batch, UpdateBench
from rlvr_jax.types import Rollout

GROUPS = (1, 4, 16)
PROMPTS = (0.25, 0.5, 0.75)
PADDING = (0.0, 0.25, 0.5)
COLLAPSED = (0.0, 0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A batch that differs from the others in one respect; its responses evenly spread, with that share of padding."""

    what: str
    value: float
    batch: Batch
    padding: float = 0.0

    def rollout(self, vocab_size: int) -> Rollout:
        """The rows; lengths go evenly from the shortest, T (1 - 2 padding), to the longest, T."""
        rows, most = ours.rollout_of(self.batch, vocab_size), self.batch.new_tokens
        spread = np.linspace(max(1, most * (1 - 2 * self.padding)), most, self.batch.rows)
        length = np.random.default_rng(0).permutation(np.rint(spread)).astype(np.int32)
        mask = (np.arange(most) < length[:, None]).astype(np.float32)
        return dataclasses.replace(rows, length=length, mask=mask)


def check_scaling(batch: Batch) -> None:
    """Raise ValueError where the rows do not make groups of 16, four of them at the least."""
    if batch.rows % max(GROUPS) or batch.rows < 4 * max(GROUPS):
        raise ValueError(
            f"{batch.rows} rows do not make four or more groups of {max(GROUPS)}: choose prompts and group so that they do."
        )


def variants(batch: Batch) -> list[Variant]:
    """All at the same number of rows, and the share of a prompt at the same number of tokens in a row."""
    base = dataclasses.replace(batch, lengths="fixed", collapsed=0.0)
    most = max(GROUPS)
    grouped = dataclasses.replace(base, prompts=base.rows // most, group=most)
    wide = base.prompt_tokens + base.new_tokens
    found = [
        Variant("group size", float(g), dataclasses.replace(base, prompts=base.rows // g, group=g))
        for g in GROUPS
    ]
    for share in PROMPTS:
        prompt = max(2, round(share * wide))
        found.append(
            Variant(
                "prompt share",
                share,
                dataclasses.replace(base, prompt_tokens=prompt, new_tokens=wide - prompt),
            )
        )
    found += [Variant("padding share", share, base, padding=share) for share in PADDING]
    found += [
        Variant("collapsed share", share, dataclasses.replace(grouped, collapsed=share))
        for share in COLLAPSED
    ]
    return found


def scaling(bench: UpdateBench, say: Say) -> list[dict[str, Any]]:
    """Seconds of our update for each; one after another, each after a step that compiles."""
    return [_timed(bench, each, say) for each in variants(bench.batch)]


def _timed(bench: UpdateBench, variant: Variant, say: Say) -> dict[str, Any]:
    program = ours.program_of(bench, variant.batch, ours.BY_REWARD)
    with jax.set_mesh(program.mesh):
        rollout = variant.rollout(program.model_config.vocab_size)
        update = ours.TimedUpdate(program, rollout)
        counts = Counts.of(rollout, update.live, update.plan())
        update.run()
        seconds = statistics.median(update.run().seconds for _ in range(bench.repeats))
    del update, program
    gc.collect()  # the weights, before the next ones are there
    say(f"{variant.what} {variant.value:g}: {seconds:.2f} s, {counts.computed} slots")
    return {
        "what": variant.what,
        "value": variant.value,
        "seconds": seconds,
        "tokens_per_second": counts.useful / seconds,
        **dataclasses.asdict(counts),
    }
