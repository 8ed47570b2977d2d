"""What an update has to compute: tokens, slots and operations."""

import dataclasses
import math
from typing import Any

import numpy as np

from rlvr_jax.models.decoder import Decoder
from rlvr_jax.rollout.bench.limits import Machine, Step
from rlvr_jax.train.packing import Plan
from rlvr_jax.types import Rollout

_PASSES = 6.0
"""Operations for each weight and token: a multiplication and an addition forward, and twice that backward."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of a batch, in tokens.

    `useful` are prompt and response of every row, without padding: what there is to learn from, and what a rate is of, ours
    and torch's. `live` are the responses with credit. `padded` is every row at the longest prompt and response. `computed` are
    the slots of our plan, filled or not: the prompts but for their last token, and the packed rows; `head` those of them that
    reach the head.
    """

    useful: int
    live: int
    padded: int
    computed: int
    head: int
    micro_batches: int

    @classmethod
    def of(cls, rollout: Rollout, live: np.ndarray, plan: Plan) -> "Counts":
        prompt, longest = rollout.prompt.shape[1], int(rollout.length.max())
        count, size = int(plan.count), rollout.tokens.shape[1]
        head = count * plan.owner[0].size * size
        return cls(
            useful=int(rollout.prompt_length.sum() + rollout.length.sum()),
            live=int(rollout.length[live].sum()),
            padded=len(rollout.length) * (int(rollout.prompt_length.max()) + longest),
            computed=count * plan.prompts[0].size * (prompt - 1) + head,
            head=head,
            micro_batches=count,
        )


def multiplied(model: Decoder) -> tuple[int, int]:
    """Weights that a token is multiplied with: in all layers, and in the head."""
    matrices = sum(math.prod(leaf.shape) for leaf in model.layout().values() if leaf.inputs)
    return model.config.num_layers * matrices, model.config.dim * model.config.vocab_size


def model_flops(model: Decoder, tokens: int) -> float:
    """6 N T: N the weights of all layers and of the head (the embedding where the two are tied, once), T tokens. Attention
    counts for nothing."""
    return _PASSES * sum(multiplied(model)) * tokens


def needed(model: Decoder, rollout: Rollout, live: np.ndarray, group: int) -> Step:
    """What the gradient cannot be had without: each prompt with credit once, its responses with credit, the head for these
    alone, attention to what is seen. Nothing is computed twice, nothing is padded. Reading counts for nothing."""
    c, (layers, head) = model.config, multiplied(model)
    asked = live.reshape(-1, group).any(1)
    prompts = rollout.prompt_length[::group][asked].astype(np.float64) - 1
    own, behind = rollout.length[live].astype(np.float64), rollout.prompt_length[live].astype(np.float64) - 1
    seen = (prompts * (prompts + 1) / 2).sum() + (own * behind + own * (own + 1) / 2).sum()
    attention = 2 * c.num_layers * c.num_heads * c.head_dim * seen
    return Step(
        layer_flops=_PASSES * float(layers * (prompts.sum() + own.sum()) + attention),
        head_flops=_PASSES * float(head * own.sum()),
        bytes=0.0,
    )


def limit(machine: Machine, work: Step, seconds: float) -> dict[str, Any]:
    """The least time for that work on a machine, and its share in the time that was taken."""
    least = machine.seconds(work)
    return {
        "flops": work.layer_flops + work.head_flops,
        "layer_flops_per_second": machine.layer_flops,
        "head_flops_per_second": machine.head_flops,
        "seconds": least,
        "share": least / seconds,
    }
