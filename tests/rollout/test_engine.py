"""The engine: no schedule shows in what it samples, rows have parameters of their own, strings end responses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import CONFIG, FULL, G, T, prompts, rollout, sample, scorer

from rlvr_jax.rollout.engine import Decoding, Engine
from rlvr_jax.rollout.sampling import RowSampling, Sampling, _invert, draw, row_keys, threshold
from rlvr_jax.sharding import make_mesh
from rlvr_jax.types import Stat

V = CONFIG.vocab_size
STOP = tuple(range(0, V, 6))
"""So many that rows of T tokens get ragged."""
BATCH = prompts(16)
B = 16 * G

LOGPROB_TOLERANCE = 1e-5
"""The acceptance's: logits of order 1, sums of 16 to 64 float32 terms in another order."""

LOCKSTEP, REFILLED, FEW = Decoding(slots=64), Decoding(slots=16, segment=5), Decoding(slots=4, segment=1)
MESH = make_mesh(8, 1, 1)


def of(sampling=FULL, decoding=LOCKSTEP, batch=BATCH, **which):
    return sample(sampling, batch, decoding=decoding, stop=STOP, **which)


def assert_same(found, want):
    np.testing.assert_array_equal(found.tokens, want.tokens)
    np.testing.assert_array_equal(found.length, want.length)
    np.testing.assert_array_equal(found.truncated, want.truncated)
    np.testing.assert_array_equal(found.mask, want.mask)
    np.testing.assert_allclose(found.logprob, want.logprob, rtol=0, atol=LOGPROB_TOLERANCE)
    np.testing.assert_allclose(found.entropy, want.entropy, rtol=0, atol=LOGPROB_TOLERANCE)


# ---- no schedule shows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [None, MESH], ids=["1 device", "8 devices"])
@pytest.mark.parametrize(
    "decoding", [FEW, REFILLED, LOCKSTEP], ids=["4 slots", "16 slots", "64 rows at once"]
)
def test_no_schedule_shows_in_the_samples(decoding, mesh):
    """12 of them: slots, refill or none, segments of 1, 5 and 32 steps, devices, and prompts in reverse."""
    want = of()
    assert len(set(want.length.tolist())) > 5 and want.truncated.any()  # ragged
    assert (tiny.engine(FULL, decoding=decoding, stop=STOP).layout(tiny.request(BATCH)).refills) == (
        decoding is not LOCKSTEP
    )
    assert_same(of(decoding=decoding, mesh=mesh), want)
    reverse = of(decoding=decoding, mesh=mesh, batch=tuple(x[::-1] for x in BATCH))
    rows = (np.arange(16)[::-1, None] * G + np.arange(G)).ravel()
    backward = {
        f.name: getattr(reverse, f.name)[rows] for f in dataclasses.fields(reverse) if f.name != "stats"
    }
    stats = {stat: x[rows] for stat, x in reverse.stats.items()}
    assert_same(dataclasses.replace(reverse, stats=stats, **backward), want)


@pytest.mark.slow
def test_the_room_of_the_cache_does_not_show(monkeypatch):
    """It grows with the longest row, and shrinks when that is over: here in steps of 4, 8 and 12 tokens."""
    monkeypatch.setattr("rlvr_jax.rollout.engine._SMALLEST_ROOM", 4)
    decoding, batch = Decoding(slots=4, segment=2), tuple(x[:4] for x in BATCH)
    found, want = of(decoding=decoding, batch=batch), of()
    assert tiny.engine(FULL, decoding=decoding, stop=STOP).traces["resize"] >= 3
    np.testing.assert_array_equal(found.tokens, want.tokens[: 4 * G])
    np.testing.assert_allclose(found.logprob, want.logprob[: 4 * G], rtol=0, atol=LOGPROB_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [None, MESH], ids=["1 device", "8 devices"])
def test_the_last_rows_on_fewer_slots_do_not_show(mesh, monkeypatch):
    """Of groups in lockstep, 64 rows or 8 on each device, which end one after another."""
    monkeypatch.setattr("rlvr_jax.rollout.slots._FEWEST", 1)
    monkeypatch.setattr("rlvr_jax.rollout.slots._FEWER", 2)
    decoding = Decoding(slots=64, segment=3)
    found, want = of(decoding=decoding, mesh=mesh), of()
    assert tiny.engine(FULL, decoding=decoding, stop=STOP, mesh=mesh).traces["gather"] >= 1
    assert_same(found, want)


def test_a_prompt_of_one_token_has_no_prefix_at_all():
    """Beside longer prompts it is masked; alone there is nothing to mask."""
    tokens, _, ids, first = BATCH
    one = np.ones(16, np.int32)
    found = of(batch=(tokens[:, :1], one, ids, first))
    assert_same(found, of(batch=(tokens, one, ids, first)))


def test_each_row_and_position_has_a_noise_of_its_own():
    """Under a model to which all tokens are the same, in slots that many rows pass through."""
    keys = row_keys(0, 0, jnp.repeat(jnp.asarray(BATCH[2]), G), jnp.tile(jnp.arange(G), 16))
    by_position = jax.vmap(lambda key: jax.vmap(lambda p: jax.random.fold_in(key, p))(jnp.arange(T)))(keys)
    data = np.asarray(jax.random.key_data(by_position)).reshape(B * T, -1)
    assert len(np.unique(data, axis=0)) == B * T
    found = of(decoding=FEW, params=tiny.flat())
    heads = {tuple(row[:3]) for row, n in zip(found.tokens.tolist(), found.length, strict=True) if n >= 3}
    assert len(heads) == (found.length >= 3).sum() > B / 2  # 64^3 of them: two alike are no accident


def test_prompts_that_do_not_spread_over_the_shards_are_an_error():
    engine = tiny.engine(FULL, decoding=REFILLED, stop=STOP, mesh=MESH)
    with pytest.raises(ValueError) as error:
        engine.layout(tiny.request(prompts(4)))
    assert str(error.value) == "4 prompts do not spread over 8 shards of the mesh: make them a multiple."


def test_no_push_leaves_anything_of_the_weights_before_it():
    """The same prompts, sampled with other weights in between, against an engine that never saw those."""
    first, second = tiny.decoder()[1], tiny.decoder(seed=1)[1]
    engine = tiny.engine(FULL, decoding=REFILLED, stop=STOP)
    found = {}
    for version, params in ((3, first), (4, second), (5, first)):
        engine.push(params, version)
        found[version] = engine.sample(tiny.request(BATCH))
        np.testing.assert_array_equal(found[version].version, np.full(B, version))
        real = found[version].mask > 0
        scored = np.asarray(scorer()(params, rollout(found[version], BATCH))[Stat.LOGPROB])
        np.testing.assert_allclose(found[version].logprob[real], scored[real], rtol=0, atol=LOGPROB_TOLERANCE)
    assert (found[3].tokens != found[4].tokens).any()
    np.testing.assert_array_equal(found[5].tokens, found[3].tokens)
    np.testing.assert_array_equal(found[5].logprob, found[3].logprob)

    model = tiny.structure(*tiny.decoder())
    fresh = Engine(model, FULL, STOP, decoding=REFILLED, options=tiny.QUICK)
    fresh.push(second, version=4)
    only = fresh.sample(tiny.request(BATCH))
    np.testing.assert_array_equal(found[4].tokens, only.tokens)
    np.testing.assert_array_equal(found[4].logprob, only.logprob)


def test_rows_are_told_once_each_with_all_their_tokens():
    engine, told = tiny.engine(FULL, decoding=REFILLED, stop=STOP), []
    engine.push(tiny.decoder()[1], version=0)
    found = engine.sample(tiny.request(BATCH), on_row=lambda row, tokens: told.append((row, tokens.tolist())))
    want = [(i, found.tokens[i, :n].tolist()) for i, n in enumerate(found.length)]
    assert sorted(told) == want and [row for row, _ in told] != list(range(B))


# ---- parameters of each row --------------------------------------------------------------------------------------


MIXED = [
    {"temperature": 0.0},
    {"temperature": 1.5, "min_p": 0.3},
    {"top_k": 1},
    {"top_p": 0.5, "max_new_tokens": 5},
    {"min_new_tokens": 6},
    {"temperature": 0.01, "min_new_tokens": T, "max_new_tokens": T},
    {"max_new_tokens": 1},
    {},
]


def test_a_row_is_that_of_a_whole_request_with_its_parameters():
    """On 8 devices with refill, each row with parameters other than its neighbours'; the whole requests on one device."""
    names = [f.name for f in dataclasses.fields(RowSampling)]
    kinds = [dataclasses.replace(FULL, **mixed) for mixed in MIXED]
    kind = np.arange(B) * 3 % len(kinds)  # so each group has several
    overrides = {name: np.array([getattr(kinds[k], name) for k in kind]) for name in names}
    found = of(decoding=REFILLED, mesh=MESH, overrides=overrides)
    for k, sampling in enumerate(kinds):
        rows = kind == k
        whole = of(overrides={name: np.full(B, getattr(sampling, name)) for name in names})
        np.testing.assert_array_equal(found.tokens[rows], whole.tokens[rows], err_msg=str(MIXED[k]))
        np.testing.assert_array_equal(found.length[rows], whole.length[rows])
        np.testing.assert_array_equal(found.truncated[rows], whole.truncated[rows])
        np.testing.assert_allclose(
            found.logprob[rows], whole.logprob[rows], rtol=0, atol=LOGPROB_TOLERANCE * (100 if k == 5 else 1)
        )  # logits over a temperature of 0.01 are 100 times as large, and so is their rounding


def test_a_limit_of_its_own_cuts_a_row_where_it_would_have_gone_on():
    limit = 1 + np.arange(B) % T
    free, found = of(), of(overrides={"max_new_tokens": limit})
    inside = np.arange(T) < limit[:, None]
    np.testing.assert_array_equal(found.tokens, np.where(inside, free.tokens, 0))
    np.testing.assert_array_equal(found.length, np.minimum(free.length, limit))
    np.testing.assert_array_equal(found.truncated, (free.length > limit) | free.truncated)
    np.testing.assert_array_equal(found.mask, inside & (free.mask > 0))


@pytest.mark.parametrize("temperature", [1.0, 0.002, 0.0])
def test_no_stop_token_before_the_least_length_and_the_policy_is_the_scorers(temperature):
    """At 0.002 a stop token is often so likely that the others' probabilities beside it are no float32 numbers."""
    found = of(Sampling(temperature=temperature, min_new_tokens=7, max_new_tokens=T))
    stops = np.isin(found.tokens, STOP)
    assert not stops[:, :7].any() and found.length.min() == 8 and not found.truncated.all()
    rows, used = rollout(found, BATCH), temperature or 1.0
    logits = np.asarray(tiny.dense()(tiny.decoder()[1], rows.prompt, rows.prompt_length, rows.tokens))
    logp = tiny.log_softmax(logits / used)
    chosen = np.take_along_axis(logp, found.tokens[..., None], -1)[..., 0]
    # The stored numbers are of the whole vocabulary, stop tokens with it; logits / T round T times as coarsely.
    np.testing.assert_allclose(found.logprob, chosen * found.mask, rtol=0, atol=LOGPROB_TOLERANCE / used)
    others = np.delete(logits, STOP, axis=-1).max(-1)
    if temperature < 1:  # the best of what may be drawn; at 0.002 a token worse by 0.04 has a chance of e^-20
        near = (
            np.take_along_axis(logits, found.tokens[..., None], -1)[..., 0] > others - 20 * temperature - 1e-5
        )
        assert near[:, :7].all()
        assert (logits.max(-1)[:, :7] - others[:, :7] > 0.22).any()  # e^-110, below every float32 number


# ---- one draw ----------------------------------------------------------------------------------------------------


def kept_by_min_p(z, min_p):
    """In float64, from the definition."""
    p = np.exp(np.asarray(z, np.float64))
    return p >= min_p * p.max(-1, keepdims=True)


@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.3, 0.99])
def test_min_p_keeps_what_a_float64_sampler_keeps(min_p):
    z = np.random.default_rng(3).normal(0, 2, (50, V)).astype(np.float32)
    how = RowSampling.of(Sampling(min_p=min_p), len(z))
    found = z >= np.asarray(jax.jit(threshold)(z.T, how))[:, None]
    np.testing.assert_array_equal(found, kept_by_min_p(z, min_p))
    assert found.any(1).all()


@pytest.mark.parametrize("position", [2, 3])
def test_draws_under_min_p_and_a_least_length_have_a_float64_samplers_frequencies(position):
    count, size = 20_000, 24
    z = np.random.default_rng(5).normal(0, 1, size).astype(np.float32)
    stop = np.isin(np.arange(size), [int(z.argmax()), 0])
    how = RowSampling.of(Sampling(temperature=0.7, min_p=0.1, min_new_tokens=3), count)
    keys = row_keys(0, 0, jnp.arange(count), jnp.zeros(count, jnp.int32))
    at = jnp.full(count, position)
    tokens = np.asarray(jax.jit(draw)(jnp.tile(z, (count, 1)).T, keys, at, how, jnp.asarray(stop))[0])
    may = np.where(stop & (position < 3), -np.inf, np.float64(z) / 0.7)
    p = np.exp(may) * kept_by_min_p(may, 0.1)
    p /= p.sum()
    tiny.assert_frequencies(tokens, p)


def test_nothing_without_mass_is_drawn_however_sums_round(monkeypatch):
    """A parallel sum, which a GPU may make, adds in a tree: it can round up where nothing is added."""
    random = np.random.default_rng(0)
    mass = (random.exponential(size=(500, 256)) * (random.random((500, 256)) < 0.5)).astype(np.float32)
    monkeypatch.setattr(
        jnp,
        "cumsum",
        jax.jit(lambda x, axis: jax.lax.associative_scan(jnp.add, x, axis=axis), static_argnames="axis"),
    )
    up_to = np.asarray(jnp.cumsum(mass, axis=-1))
    row, at = np.nonzero((mass == 0) & (np.diff(up_to, axis=1, prepend=0) > 0))
    assert len(row) > 500
    uniform = (up_to[row, at - 1] / up_to[row, -1]).astype(np.float32)  # just where it rounded up
    found = np.asarray(jax.jit(_invert)(jnp.asarray(mass[row]), jnp.asarray(uniform)))
    assert (mass[row, found] > 0).all()
    assert (np.abs(found - at) < 20).mean() > 0.99
    last = np.asarray(
        jax.jit(_invert)(jnp.asarray(mass), jnp.ones(500))
    )  # never drawn, and still no accident
    assert (mass[np.arange(500), last] > 0).all()


# ---- what is computed on the way ---------------------------------------------------------------------------------


def test_other_statistics_are_the_scorers():
    sampling = dataclasses.replace(FULL, statistics=("entropy", "self_certainty"))
    found = of(sampling, batch=prompts(4))
    assert set(found.stats) == {Stat.ENTROPY, Stat.SELF_CERTAINTY}
    want = scorer(want=(Stat.LOGPROB, Stat.ENTROPY, Stat.SELF_CERTAINTY))(
        tiny.decoder()[1], rollout(found, prompts(4))
    )
    for stat, stored in found.stats.items():
        np.testing.assert_allclose(
            stored, np.asarray(want[stat]) * found.mask, rtol=0, atol=LOGPROB_TOLERANCE
        )
    assert (found.stats[Stat.SELF_CERTAINTY][found.mask > 0] > 0).all()


# ---- strings that end a response ---------------------------------------------------------------------------------


PIECES = ("a", "b", "c", "ab", "ca", "bc a")


class Letters:
    """A tokenizer whose tokens are a few letters each."""

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return "".join(PIECES[i % len(PIECES)] for i in ids if i not in STOP)


STRINGS = ("abca", "cc")


@pytest.mark.parametrize("segment", [1, 32])
def test_the_token_that_completes_a_string_is_the_last(segment):
    """Against the same noise without strings, cut by a plain loop. No statistics are asked for beside."""
    free = of()
    sampling = dataclasses.replace(FULL, stop=STRINGS, statistics=())
    decoding = Decoding(slots=16, segment=segment)
    model = tiny.structure(*tiny.decoder())
    engine = Engine(model, sampling, STOP, tokenizer=Letters(), decoding=decoding, options=tiny.QUICK)
    engine.push(tiny.decoder()[1], version=0)
    told = []
    found = engine.sample(tiny.request(BATCH), on_row=lambda row, tokens: told.append((row, len(tokens))))

    ended, spanning, behind = np.zeros(B, bool), 0, 0
    want = free.length.copy()
    for i, row in enumerate(free.tokens.tolist()):
        for n in range(1, free.length[i] + 1):
            text = Letters().decode(row[:n], skip_special_tokens=True)
            if any(s in text for s in STRINGS):
                want[i], ended[i] = n, True
                spanning += not any(s in PIECES[row[n - 1] % len(PIECES)] for s in STRINGS)
                behind += not text.endswith(STRINGS)
                break
    assert ended.sum() > 10 and spanning == ended.sum() and behind > 0  # no token has a whole string in it
    assert (ended & (want < free.length)).sum() > 5
    inside = np.arange(T) < want[:, None]
    np.testing.assert_array_equal(found.length, want)
    np.testing.assert_array_equal(found.truncated, free.truncated & ~ended)
    np.testing.assert_array_equal(found.tokens, np.where(inside, free.tokens, 0))
    np.testing.assert_array_equal(found.mask, inside)
    np.testing.assert_allclose(
        found.logprob, np.where(inside, free.logprob, 0), rtol=0, atol=LOGPROB_TOLERANCE
    )
    assert found.stats == {} and np.isnan(found.entropy).all()
    assert sorted(told) == list(enumerate(want.tolist()))


# ---- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Decoding(slots=-1), "decoding.slots is 0 (what suits the platform) or more, got -1."),
        (lambda: Decoding(segment=0), "decoding.segment is 1 step or more, got 0."),
        (
            lambda: Sampling(min_p=1.0),
            "sampling.min_p is a share of the highest probability in [0, 1), got 1.0.",
        ),
        (
            lambda: Sampling(max_new_tokens=3, min_new_tokens=4),
            "sampling.min_new_tokens is in 0..max_new_tokens=3, got 4.",
        ),
        (
            lambda: Sampling(statistics=("entropy", "surprise")),
            "sampling.statistics holds names of logprob, logit, entropy, self_certainty, collision, got surprise.",
        ),
        (
            lambda: Sampling(stop=("x", "")),
            "sampling.stop is a list of strings that are not empty, got ('x', '').",
        ),
        (
            lambda: RowSampling.of(FULL, 4, {"stop": np.zeros(4)}),
            "no row overrides stop; rows have temperature, top_k, top_p, min_p, max_new_tokens, min_new_tokens.",
        ),
        (
            lambda: RowSampling.of(FULL, 4, {"max_new_tokens": np.array([1, 2, 13, 4])}),
            "a row's max_new_tokens=13 is more than sampling.max_new_tokens=12, for which there is room: raise that.",
        ),
        (
            lambda: RowSampling.of(FULL, 2, {"temperature": np.array([1.0, -1.0])}),
            "sampling.temperature is >= 0 (0: greedy), got -1.0.",
        ),
        (
            lambda: Engine(tiny.structure(*tiny.decoder()), Sampling(stop=("x",)), STOP),
            "strings that end a response, and tools, are read as text: give a tokenizer.",
        ),
    ],
)
def test_what_cannot_be_is_an_error(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message


def test_rows_have_the_requests_parameters_where_they_have_none_of_their_own():
    sampling = Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, max_new_tokens=9, min_new_tokens=2)
    found = RowSampling.of(sampling, 2, {"top_k": np.array([5, 6])})
    assert {f.name: getattr(found, f.name).tolist() for f in dataclasses.fields(found)} == {
        "temperature": [0.5, 0.5],
        "top_k": [5, 6],
        "top_p": pytest.approx([0.9, 0.9]),
        "min_p": pytest.approx([0.1, 0.1]),
        "max_new_tokens": [9, 9],
        "min_new_tokens": [2, 2],
    }
    assert not Sampling(min_p=0.1).is_on_policy and not Sampling(min_new_tokens=1).is_on_policy
