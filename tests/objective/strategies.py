"""Random objectives for hypothesis, as the plain data of a config: any part in any slot, fields anywhere in their ranges."""

from hypothesis import strategies as st

from rlvr_jax import registry
from rlvr_jax.objective.objective import CREDIT_SLOTS
from rlvr_jax.objective.presets import PRESETS

LENGTH = 6
"""Tokens of the longest response of the batches that these objectives are tried on."""


def number(low: float, high: float):
    """A number in [low, high], its ends more often than others."""
    return st.sampled_from([low, high]) | st.floats(low, high)


def ordered(names: list[str], low: float, high: float):
    """Numbers in [low, high], one for each name and none below the one before."""
    values = st.lists(number(low, high), min_size=len(names), max_size=len(names)).map(sorted)
    return values.map(lambda found: dict(zip(names, found, strict=True)))


def fields(**strategies):
    return st.fixed_dictionaries(strategies)


EPSILON = st.sampled_from([0.0, 1e-6, 1e-4, 0.01])
OFFSETS = {"low": number(0.0, 1.0), "high": number(0.0, 6.0)}
CAP = st.floats(1.01, 20.0)
CONFIDENCE = st.builds(
    dict.__or__,
    fields(alpha=st.floats(0.1, 4.0), tau=st.floats(0.1, 20.0), mu=number(-1.0, 1.0)),
    ordered(["lower", "upper"], 0.0, 3.0),
)

# A KL or a statistic in the reward is added to rewards of 0 and 1, which are known to 1e-7. Where it is all that tells the
# responses of a group apart, its weight times the spread of 0.1 or so must be far above that.
FIELDS = {
    ("reward", "overlong"): fields(
        max_length=st.integers(0, 2 * LENGTH), buffer=st.integers(0, LENGTH), factor=number(0.0, 2.0)
    ),
    ("reward", "self_certainty"): fields(keep=number(0.0, 2.0)),
    ("reward", "negative_entropy"): fields(keep=number(0.0, 2.0)),
    ("reward", "kl_in_reward"): fields(coef=st.floats(0.05, 1.0)),
    ("mask", "top_entropy"): fields(fraction=number(0.05, 1.0)),
    ("advantage", "group"): fields(epsilon=EPSILON, ddof=st.integers(0, 1)),
    ("advantage", "focal"): fields(gamma=number(0.0, 3.0)),
    ("advantage", "virtual"): st.builds(
        dict.__or__,
        fields(
            alpha=st.floats(0.1, 2.0),
            rate=number(0.0, 1.0),
            r_max=number(0.95, 2.0),
            anchor=st.floats(0.01, 0.9),
            epsilon=EPSILON,
        ),
        ordered(["low", "threshold", "high"], 0.0, 1.0),
    ),
    ("advantage", "virtual_official"): fields(epsilon=EPSILON),
    ("advantage", "smooth"): fields(epsilon=EPSILON),
    ("response_weight", "inverse_occurrence"): fields(
        cap=st.none() | st.floats(0.1, 10.0), normalize=st.booleans()
    ),
    ("token_weight", "probability"): fields(alpha=number(0.0, 1.0)),
    ("token_weight", "top_entropy"): fields(fraction=number(0.05, 1.0)),
    ("token_weight", "sampler_correction"): fields(cap=st.floats(0.1, 5.0)),
    ("passes", "by_probability"): fields(eta=st.floats(0.01, 0.99)),
    ("aggregate", "fixed_length"): fields(length=st.integers(0, 2 * LENGTH)),
    ("clip", "ppo"): fields(**OFFSETS),
    ("clip", "dual"): fields(**OFFSETS, cap=CAP),
    ("clip", "cispo"): fields(**OFFSETS),
    ("clip", "dynamic"): fields(**OFFSETS, cap=CAP),
    ("clip", "ppo_region"): fields(**OFFSETS),
    ("gate", "confidence"): CONFIDENCE,
    ("gate", "standardised_confidence"): CONFIDENCE,
    ("regulariser", "kl"): fields(coef=st.floats(1e-4, 1.0), kind=st.sampled_from(["k1", "k2", "k3"])),
    ("regulariser", "entropy"): fields(coef=st.floats(1e-4, 1.0)),
}
"""Fields of the parts that have any. One that is missing here is drawn with its defaults."""


PARTS = {
    slot: registry.names(slot)
    for slot in (*CREDIT_SLOTS, "passes", "aggregate", "ratio", "clip", "gate", "regulariser")
}
"""What the package registers; a test that registers something of its own comes later."""


def part(slot: str):
    """One part of a slot, as a config spells it out."""

    def with_fields(name: str):
        return FIELDS.get((slot, name), st.just({})).map(lambda found: {"name": name, **found})

    return st.sampled_from(PARTS[slot]).flatmap(with_fields)


def up_to_two(slot: str):
    return st.lists(part(slot), max_size=2)


configs = st.fixed_dictionaries(
    {
        **{slot: up_to_two(slot) for slot in CREDIT_SLOTS},
        **{slot: part(slot) for slot in ("passes", "aggregate", "ratio", "clip")},
        "gates": up_to_two("gate"),
        "regularisers": up_to_two("regulariser"),
    },
    optional={"preset": st.sampled_from(sorted(PRESETS))},
)
"""Every slot set. Some of these make no sense, and are to be refused."""
