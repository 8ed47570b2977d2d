"""The sampler: what it stores is what the scorer computes, its noise is a function of identity, it stops where it should."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import CONFIG, FULL, NEVER, G, P, T, prompts, rollout, sample, scorer

from rlvr_jax.rollout.decode_loop import Edits
from rlvr_jax.rollout.engine import Engine
from rlvr_jax.rollout.sampling import RowSampling, Sampling, draw, row_keys, threshold
from rlvr_jax.sharding import make_mesh
from rlvr_jax.types import Stat

V = CONFIG.vocab_size
STOP = tuple(range(0, V, 6))
"""The padding among them; so many that rows of T tokens get ragged."""

LOGPROB_TOLERANCE = 1e-5
"""The acceptance's. Logits are of order 1 (of order 10 at temperature 0.3), and sums of 16 to 64 float32 terms in another
order differ by a few ulp, 1e-7 to 1e-6."""


def first_stop(tokens, stop):
    """Length of each row when it ends with its first token in `stop`, and whether none is there: a plain loop."""
    length, truncated = [], []
    for row in tokens:
        where = [i for i, token in enumerate(row) if token in stop]
        length.append(where[0] + 1 if where else len(row))
        truncated.append(not where)
    return np.array(length), np.array(truncated)


# ---- what is stored is what the scorer computes ------------------------------------------------------------------


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.5])
def test_stored_statistics_are_the_scorers(temperature, top_p):
    found = sample(Sampling(temperature=temperature, top_p=top_p, max_new_tokens=T), stop=STOP)
    assert len(set(found.length.tolist())) > 3  # ragged
    scored = scorer(temperature)(tiny.decoder()[1], rollout(found))
    real = found.mask > 0
    for stat, stored in ((Stat.LOGPROB, found.logprob), (Stat.ENTROPY, found.entropy)):
        gap = np.abs(np.asarray(scored[stat]) - stored)[real]
        assert gap.max() < LOGPROB_TOLERANCE, stat


def test_stored_statistics_are_the_scorers_under_a_softcap_and_top_k():
    capped = dataclasses.replace(tiny.CONFIG, softcap=2.0)
    found = sample(Sampling(temperature=0.6, top_k=5, max_new_tokens=T), config=capped)
    scored = scorer(0.6, config=capped)(tiny.decoder(capped)[1], rollout(found))
    assert np.abs(np.asarray(scored[Stat.LOGPROB]) - found.logprob).max() < LOGPROB_TOLERANCE
    assert np.abs(np.asarray(scored[Stat.ENTROPY]) - found.entropy).max() < LOGPROB_TOLERANCE


def test_stored_log_probabilities_are_those_of_the_whole_tempered_vocabulary():
    """Under top-p too, against a dense softmax in float64."""
    found = sample(Sampling(temperature=0.6, top_p=0.8, max_new_tokens=T), stop=STOP)
    rows = rollout(found)
    logits = tiny.dense()(tiny.decoder()[1], rows.prompt, rows.prompt_length, rows.tokens)
    logp = tiny.log_softmax(np.asarray(logits, np.float64) / 0.6)
    want = np.take_along_axis(logp, found.tokens[..., None], -1)[..., 0] * found.mask
    entropy = -(np.exp(logp) * logp).sum(-1) * found.mask
    # One rounding of the logits to float32 (1e-7 of a number of order 10), and the scorer's tolerance.
    np.testing.assert_allclose(found.logprob, want, rtol=0, atol=LOGPROB_TOLERANCE)
    np.testing.assert_allclose(found.entropy, entropy, rtol=0, atol=LOGPROB_TOLERANCE)


def test_computing_in_bfloat16_keeps_float32_log_probabilities():
    """Hidden states round to 8 bits, so logits of up to 4 are off by some 2^-8 * 4 in each of a few roundings, in
    sampler and scorer differently. The softmax over them does not round: all V probabilities sum to 1 in float32."""
    found = sample(FULL, dtype="bfloat16")
    params = tiny.decoder()[1]
    rows = rollout(found)
    scored = scorer(dtype="bfloat16")(params, rows)
    assert found.logprob.dtype == scored[Stat.LOGPROB].dtype == np.float32
    gap = np.abs(np.asarray(scored[Stat.LOGPROB]) - found.logprob)
    assert 0 < gap.mean() < 0.02 and gap.max() < 0.1
    exact = np.asarray(scorer()(params, rows)[Stat.LOGPROB])
    # As far from float32 as the scorer is, whose roundings are as many, up to the luck of the largest of them.
    assert np.abs(exact - found.logprob).max() < 2 * np.abs(exact - np.asarray(scored[Stat.LOGPROB])).max()

    total = np.zeros(P * G)
    for token in range(V):  # the first response token's probability, for every token that could stand there
        first = dataclasses.replace(rows, tokens=np.full_like(rows.tokens, token))
        logprob = scorer(dtype="bfloat16", want=(Stat.LOGPROB,))(params, first)[Stat.LOGPROB]
        total += np.exp(np.asarray(logprob, np.float64)[:, 0])
    np.testing.assert_allclose(
        total, 1.0, rtol=0, atol=1e-5
    )  # 64 float32 numbers; in bfloat16 it would be 1e-2


# ---- randomness is a function of identity ------------------------------------------------------------------------


def test_permuted_prompts_get_their_own_samples():
    order = np.random.default_rng(1).permutation(P)
    straight, mixed = sample(), sample(batch=tuple(x[order] for x in prompts()))
    rows = (order[:, None] * G + np.arange(G)).ravel()
    np.testing.assert_array_equal(mixed.tokens, straight.tokens[rows])


def test_neighbours_do_not_matter():
    others = prompts(seed=5)
    batch = tuple(
        np.where(np.arange(P).reshape(-1, *[1] * (a.ndim - 1)) == 3, a, b)
        for a, b in zip(prompts(), others, strict=True)
    )
    one = slice(3 * G, 4 * G)
    np.testing.assert_array_equal(sample(batch=batch).tokens[one], sample().tokens[one])


def test_padding_does_not_matter():
    tokens, *rest = prompts()
    wider = np.pad(tokens, ((0, 0), (0, 4)), constant_values=9)
    np.testing.assert_array_equal(sample(batch=(wider, *rest)).tokens, sample().tokens)


def test_a_group_sampled_in_two_rounds_is_the_same_group():
    *batch, first = prompts()
    rounds = [sample(batch=(*batch, first + start), group=2).tokens.reshape(P, 2, T) for start in (0, 2)]
    np.testing.assert_array_equal(np.concatenate(rounds, 1), sample().tokens.reshape(P, G, T))


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 4, 1, 2), (2, 1, 2, 2)], ids=str)
def test_one_and_eight_devices_sample_the_same_tokens(shape):
    sampling = dataclasses.replace(FULL, top_p=0.9)
    many = sample(sampling, mesh=make_mesh(*shape), stop=STOP)
    one = sample(sampling, stop=STOP)
    np.testing.assert_array_equal(many.tokens, one.tokens)
    np.testing.assert_array_equal(many.length, one.length)
    np.testing.assert_array_equal(many.truncated, one.truncated)
    np.testing.assert_allclose(many.logprob, one.logprob, rtol=0, atol=LOGPROB_TOLERANCE)


def test_samples_of_a_prompt_its_occurrences_seeds_and_steps_all_differ():
    """Under a model to which all tokens are the same, so that nothing but the noise can tell rows apart."""
    tokens, length, ids, first = prompts()
    ids = np.full_like(ids, 7)  # one prompt P times, each time with the next G samples
    tokens, length = np.repeat(tokens[:1], P, 0), np.repeat(length[:1], P)
    batch = (tokens, length, ids, np.arange(P, dtype=np.int32) * G)
    runs = [
        sample(batch=batch, params=tiny.flat(), seed=s, step=n).tokens for s, n in ((0, 0), (1, 0), (0, 1))
    ]
    other = sample(batch=(tokens, length, ids + 1, batch[3]), params=tiny.flat()).tokens
    rows = np.concatenate([*runs, other])
    assert len({tuple(row) for row in rows.tolist()}) == len(rows) == 4 * P * G
    np.testing.assert_array_equal(sample(batch=batch, params=tiny.flat()).tokens, runs[0])


def test_a_flat_model_draws_every_symbol_equally_often_at_every_position():
    length = 128
    found = sample(Sampling(max_new_tokens=length), params=tiny.flat())
    expected = found.tokens.size / V  # 64
    counts = np.bincount(found.tokens.ravel(), minlength=V)
    # chi-square of V - 1 = 63 degrees: mean 63, standard deviation 11.2; 5 of them are no accident.
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * 11.2
    pairs = (
        found.tokens[:, :-1] * V + found.tokens[:, 1:]
    )  # 4064 draws of 4096: also chi-square, mean and variance known
    hits = np.bincount(pairs.ravel(), minlength=V * V)
    mean = pairs.size / V**2
    assert abs(((hits - mean) ** 2 / mean).sum() - V**2) < 5 * np.sqrt(2 * V**2)
    assert (
        found.tokens[:, 1:] == found.tokens[:, :-1]
    ).mean() < 0.05  # one key for all positions would repeat
    np.testing.assert_allclose(found.logprob, -np.log(V), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.entropy, np.log(V), rtol=0, atol=1e-6)


def test_ids_above_16_bits_are_drawn_and_kept():
    wide = dataclasses.replace(CONFIG, vocab_size=70_000, num_layers=1)
    found = sample(
        dataclasses.replace(FULL, max_new_tokens=8),
        batch=prompts(4),
        params=tiny.flat(wide),
        config=wide,
        group=2,
    )
    assert found.tokens.min() >= 0 and found.tokens.max() < 70_000
    assert (found.tokens > 2**16).any() and ((found.tokens > 2**15) & (found.tokens < 2**16)).any()
    # The logarithm of a float32 sum of 70 000 ones: rounding of log only.
    np.testing.assert_allclose(found.logprob, -np.log(70_000), rtol=0, atol=1e-5)


# ---- one draw ----------------------------------------------------------------------------------------------------


def nucleus(z, top_k, top_p):
    """Which tokens may be drawn: top-k, then top-p of what is left, renormalised; in float64, one token at a time."""
    order = np.argsort(-z, kind="stable")
    if 0 < top_k < len(z):
        order = order[:top_k]
    p = np.exp(np.asarray(z[order], np.float64) - z[order].max())
    p /= p.sum()
    keep, mass = [], 0.0
    for token, share in zip(order, p, strict=True):
        if mass >= top_p:
            break
        keep.append(token)
        mass += share
    return np.isin(np.arange(len(z)), keep)


def cut(z, top_k, top_p, min_p=0.0):
    """-inf where a token may not be drawn."""
    how = RowSampling.of(Sampling(top_k=top_k, top_p=top_p, min_p=min_p), len(z))
    return np.where(z >= np.asarray(jax.jit(threshold)(z.T, how))[:, None], z, -np.inf)


def draws(z, keys, position, sampling):
    nothing = jnp.zeros(z.shape[1], bool)
    how = RowSampling.of(sampling, len(z))
    return np.asarray(jax.jit(draw)(z.T, keys, jnp.full(len(z), position), how, nothing)[0])


CUTS = [(0, 1.0), (5, 1.0), (1, 1.0), (0, 0.8), (0, 0.05), (6, 0.7), (3, 0.95), (0, 0.999)]


@pytest.mark.parametrize("top_k, top_p", CUTS)
def test_cuts_keep_what_a_float64_sampler_keeps(top_k, top_p):
    z = np.random.default_rng(3).normal(0, 2, (50, V)).astype(np.float32)
    found = cut(jnp.asarray(z), top_k, top_p)
    kept = np.isfinite(found)
    np.testing.assert_array_equal(kept, [nucleus(row, top_k, top_p) for row in z])
    assert kept.any(1).all()
    np.testing.assert_array_equal(found[kept], z[kept])


def test_the_order_is_top_k_then_top_p():
    """p = .4 .3 .2 .1: of the top 2, renormalised to 4/7 and 3/7, a nucleus of 0.5 holds one. Of all four it holds two,
    and the top 2 of those are two: the other order would keep both."""
    z = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1]]))
    assert np.isfinite(cut(z, 2, 0.5)).tolist() == [[True, False, False, False]]
    assert np.isfinite(cut(z, 0, 0.5)).tolist() == [[True, True, False, False]]


def test_a_nucleus_always_holds_a_token():
    z = jnp.array([[0.0, 50.0, 0.0], [1.0, 1.0, 1.0], [-1e30, -1e30, -2e30]])
    for top_p in (1e-30, 1e-6, 0.3):
        assert np.isfinite(cut(z, 0, top_p)).any(1).all()


@pytest.mark.parametrize("top_k", [-1, V, V + 5])
def test_a_top_k_of_none_or_all_is_no_cut(top_k):
    z, keys = jnp.asarray(np.random.default_rng(4).normal(size=(64, V)), jnp.float32), many_keys(64)
    free = draws(z, keys, 3, Sampling())
    np.testing.assert_array_equal(draws(z, keys, 3, Sampling(top_k=top_k)), free)
    assert len(set(np.asarray(free).tolist())) > 10


def many_keys(count):
    return row_keys(0, 0, jnp.arange(count), jnp.zeros(count, jnp.int32))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.3),
        Sampling(temperature=1.5, top_k=6),
        Sampling(temperature=0.6, top_p=0.8),
        Sampling(temperature=1.5, top_k=10, top_p=0.7),
    ],
    ids=str,
)
def test_draws_have_the_frequencies_of_a_float64_sampler(sampling):
    count, size = 20_000, 24
    z = np.random.default_rng(5).normal(0, 1, size).astype(np.float32)
    tokens = draws(jnp.tile(z, (count, 1)), many_keys(count), 7, sampling)
    p = np.exp(np.float64(z) / sampling.temperature)
    p *= nucleus(z / np.float32(sampling.temperature), sampling.top_k, sampling.top_p)
    p /= p.sum()
    tiny.assert_frequencies(tokens, p)


def test_greedy_takes_the_most_likely_token_and_stores_its_log_probability_at_temperature_1():
    found = sample(dataclasses.replace(FULL, temperature=0.0, top_p=0.5), stop=STOP)
    rows = rollout(found)
    logits = np.asarray(tiny.dense()(tiny.decoder()[1], rows.prompt, rows.prompt_length, rows.tokens))
    real = found.mask > 0
    np.testing.assert_array_equal(found.tokens[real], logits.argmax(-1)[real])
    assert np.isfinite(found.logprob).all() and np.isfinite(found.entropy).all()
    np.testing.assert_allclose(
        found.logprob[real], tiny.log_softmax(logits).max(-1)[real], rtol=0, atol=LOGPROB_TOLERANCE
    )
    groups = found.tokens.reshape(P, G, T)
    assert (groups == groups[:, :1]).all()


# ---- where a response ends ---------------------------------------------------------------------------------------


def test_any_stop_id_ends_a_row_and_belongs_to_it():
    """Against the same noise without stop ids: rows are the same up to their first stop id, and 0 after it. The second id
    is picked to end rows at their first token; both, and the padding's 0, also stand inside prompts."""
    free = sample()
    second = int(free.tokens[0, 0])
    common = int(np.bincount(free.tokens[:, 2:8].ravel()).argmax())
    tokens, length, *rest = prompts()
    tokens[3, 0], tokens[3, 2], tokens[7, 4] = second, common, second
    free, found = (sample(batch=(tokens, length, *rest), stop=stop) for stop in (NEVER, (common, second)))
    want, truncated = first_stop(free.tokens, (common, second))
    assert want.min() == 1 and (want == T).any() and len(set(want)) > 3
    assert {common, second} == {
        int(row[n - 1]) for row, n, t in zip(free.tokens, want, truncated, strict=True) if not t
    }

    inside = np.arange(T) < want[:, None]
    np.testing.assert_array_equal(found.length, want)
    np.testing.assert_array_equal(found.truncated, truncated)
    np.testing.assert_array_equal(found.mask, inside)
    np.testing.assert_array_equal(found.tokens, np.where(inside, free.tokens, 0))
    np.testing.assert_array_equal(found.logprob, np.where(inside, free.logprob, 0))
    np.testing.assert_array_equal(found.entropy, np.where(inside, free.entropy, 0))


def test_a_stop_token_at_the_last_place_is_no_truncation():
    free = sample()
    row = next(i for i, tokens in enumerate(free.tokens) if tokens[-1] not in tokens[:-1])
    found = sample(stop=(int(free.tokens[row, -1]),))
    assert found.length[row] == T and not found.truncated[row]


def test_the_loop_ends_with_the_longest_row():
    """A segment longer than any row does as many steps as the longest."""
    stop = tuple(range(V // 2))  # every other token ends a row
    sampler = tiny.engine(FULL, stop=stop)
    found = sample(stop=stop, batch=prompts(4))
    asked = tiny.request(prompts(4))
    rows = sampler._prefill(tiny.decoder()[1], *prompts(4), 0, 0, RowSampling.of(FULL, asked.rows))
    layout = sampler.layout(asked)
    slots = sampler._start(rows, layout, T)
    nothing = Edits.none(layout.slots, 0)
    _, log, left = sampler._advance(sampler._weights, rows, slots, nothing, layout)
    assert not left and ((np.asarray(log.row) >= 0).any(1)).sum() == found.length.max() < T
    assert not found.truncated.any()


def test_a_model_without_a_stop_token_is_an_error():
    with pytest.raises(ValueError) as error:
        Engine(tiny.structure(*tiny.decoder()), FULL, ())
    assert str(error.value) == (
        "the model names no stop token: set eos_token_id in its generation_config.json or tokenizer."
    )


# ---- parameters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"temperature": -0.1}, "sampling.temperature is >= 0 (0: greedy), got -0.1."),
        ({"temperature": float("nan")}, "sampling.temperature is >= 0 (0: greedy), got nan."),
        ({"top_p": 0.0}, "sampling.top_p is a probability mass in (0, 1], got 0.0."),
        ({"top_p": 1.01}, "sampling.top_p is a probability mass in (0, 1], got 1.01."),
        ({"max_new_tokens": 0}, "sampling.max_new_tokens is 1 or more, got 0."),
    ],
)
def test_impossible_parameters_are_errors(fields, message):
    with pytest.raises(ValueError) as error:
        Sampling(**fields)
    assert str(error.value) == message


def test_only_uncut_draws_at_a_positive_temperature_are_on_policy():
    assert Sampling(temperature=0.6).is_on_policy and Sampling(top_k=-1).is_on_policy
    for cut in ({"top_k": 5}, {"top_p": 0.9}, {"temperature": 0.0}):
        assert not Sampling(**cut).is_on_policy
    assert Sampling(temperature=0.0).score_temperature == 1.0
