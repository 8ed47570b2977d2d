"""Token statistics against float64 NumPy, values and hand-derived gradients; and what is never held in memory."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.sharding import make_mesh, named, replicated
from rlvr_jax.stats import dense_stats, logits_of, token_stats
from rlvr_jax.types import Stat

B, T, D, V = 2, 3, 5, 22
ALL = tuple(Stat)


def inputs(vocab=V, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(B, T, D)), jnp.float32)
    head = jnp.asarray(scale * rng.normal(size=(vocab, D)), jnp.float32)
    return hidden, head, jnp.asarray(rng.integers(0, vocab, (B, T)), jnp.int32)


def slow(hidden, head, targets, temperature=1.0, softcap=None):
    """Every statistic of every token, and its gradients in hidden and head, by loops in float64.

    With z' = hidden @ head.T, z = cap(z') / temperature, p = softmax(z), y the target:
        d log p_y / dz = e_y - p            d (temperature z_y) / dz = temperature e_y     d H / dz = -p (log p + H)
        d (log sum e^z - mean z) / dz = p - 1/V                  d sum p^2 / dz = 2 p (p - sum p^2)
        dz / dz' = (1 - tanh^2(z' / cap)) / temperature
    """
    hidden, head, targets = np.asarray(hidden, float), np.asarray(head, float), np.asarray(targets)
    vocab = len(head)
    value = {s: np.zeros(targets.shape) for s in ALL}
    to_hidden = {s: np.zeros(targets.shape + hidden.shape) for s in ALL}
    to_head = {s: np.zeros(targets.shape + head.shape) for s in ALL}
    for b, t in np.ndindex(targets.shape):
        raw = head @ hidden[b, t]
        z = raw if softcap is None else softcap * np.tanh(raw / softcap)
        slope = (1.0 if softcap is None else 1 - np.tanh(raw / softcap) ** 2) / temperature * np.ones(vocab)
        y, picked = targets[b, t], np.eye(vocab)[targets[b, t]]
        logp = z / temperature - np.log(np.exp(z / temperature).sum())
        p, entropy = np.exp(logp), -(np.exp(logp) * logp).sum()
        found = {
            Stat.LOGIT: (z[y], temperature * picked),
            Stat.LOGPROB: (logp[y], picked - p),
            Stat.ENTROPY: (entropy, -p * (logp + entropy)),
            Stat.SELF_CERTAINTY: (-logp.mean() - np.log(vocab), p - 1 / vocab),
            Stat.COLLISION: ((p**2).sum(), 2 * p * (p - (p**2).sum())),
        }
        for s, (x, dz) in found.items():
            value[s][b, t] = x
            to_hidden[s][b, t, b, t] = head.T @ (dz * slope)
            to_head[s][b, t] = np.outer(dz * slope, hidden[b, t])
    return value, to_hidden, to_head


@pytest.mark.parametrize("chunk", [1, 5, 8, 22, 100], ids=lambda c: f"chunk={c}")
@pytest.mark.parametrize(
    "softcap, temperature", [(None, 1.0), (3.0, 0.6)], ids=["plain", "capped and tempered"]
)
def test_values_and_gradients_match_the_dense_formulas(chunk, softcap, temperature):
    """22 ids in chunks of 1, 5 and 8 (do not divide), 22, and one larger than the vocabulary. Logits reach +-10, so float32
    is right to about 1e-6 in z, 2e-6 after the division by 0.6, and gradients multiply it by head and hidden, up to 5."""
    hidden, head, targets = inputs()
    value, to_hidden, to_head = slow(hidden, head, targets, temperature, softcap)

    @jax.jit
    def run(hidden, head, cotangent):
        def stacked(hidden, head):
            kw = {"chunk": chunk, "temperature": temperature, "softcap": softcap}
            found = token_stats(hidden, head, targets, {*ALL}, **kw)
            return jnp.stack([found[s] for s in ALL])

        out, pull = jax.vjp(stacked, hidden, head)
        return out, jax.vmap(pull)(cotangent)

    weight = np.random.default_rng(9).normal(size=(B, T)).astype(np.float32)
    each = np.stack([np.eye(len(ALL))[i][:, None, None] * weight for i in range(len(ALL))]).astype(np.float32)
    out, (got_hidden, got_head) = run(hidden, head, each)
    for i, s in enumerate(ALL):
        np.testing.assert_allclose(out[i], value[s], rtol=1e-5, atol=5e-6, err_msg=s)
        expected = (
            np.einsum("bt,btxyd->xyd", weight, to_hidden[s]),
            np.einsum("bt,btvd->vd", weight, to_head[s]),
        )
        np.testing.assert_allclose(got_hidden[i], expected[0], rtol=1e-4, atol=2e-5, err_msg=s)
        np.testing.assert_allclose(got_head[i], expected[1], rtol=1e-4, atol=2e-5, err_msg=s)


@pytest.mark.parametrize("stat", ALL)
def test_one_statistic_alone_is_the_same(stat):
    """Only the moments it needs are carried; the others may not matter."""
    hidden, head, targets = inputs()
    found = token_stats(hidden, head, targets, {stat}, chunk=7, temperature=0.6)
    assert set(found) == {stat} and found[stat].dtype == jnp.float32
    expected = slow(hidden, head, targets, 0.6)[0][stat]
    np.testing.assert_allclose(found[stat], expected, rtol=1e-5, atol=5e-6)
    assert token_stats(hidden, head, targets, set()) == {}


@pytest.mark.parametrize("softcap, temperature", [(None, 1.0), (3.0, 0.6)])
def test_dense_stats_of_logits_at_hand_are_the_same(softcap, temperature):
    hidden, head, targets = inputs()
    value, to_hidden, _ = slow(hidden, head, targets, temperature, softcap)

    def dense(hidden):
        logits = logits_of(hidden, head, softcap=softcap).reshape(B * T, V)
        found = dense_stats(logits.T, targets.reshape(-1), {*ALL}, temperature=temperature)
        return jnp.stack([found[s].reshape(B, T) for s in ALL])

    slopes = jax.jit(jax.jacrev(dense))(hidden)
    for i, s in enumerate(ALL):
        np.testing.assert_allclose(dense(hidden)[i], value[s], rtol=1e-5, atol=5e-6, err_msg=s)
        np.testing.assert_allclose(slopes[i], to_hidden[s], rtol=1e-4, atol=2e-5, err_msg=s)


def test_by_hand():
    """Logits (log 3, 0): p = (3/4, 1/4); at temperature 1/2, p = (9/10, 1/10)."""
    hidden, head = jnp.ones((1, 1, 1)), jnp.asarray([[np.log(3.0)], [0.0]], jnp.float32)
    target = jnp.zeros((1, 1), jnp.int32)
    warm, cold = (token_stats(hidden, head, target, {*ALL}, temperature=t) for t in (1.0, 0.5))
    np.testing.assert_allclose(warm[Stat.LOGPROB], np.log(0.75), rtol=1e-5)
    np.testing.assert_allclose(cold[Stat.LOGPROB], np.log(0.9), rtol=1e-5)
    np.testing.assert_allclose(warm[Stat.LOGIT], np.log(3), rtol=1e-6)
    np.testing.assert_allclose(cold[Stat.LOGIT], np.log(3), rtol=1e-6)  # raw: no temperature
    np.testing.assert_allclose(warm[Stat.ENTROPY], np.log(4) - 0.75 * np.log(3), rtol=1e-5)
    np.testing.assert_allclose(warm[Stat.SELF_CERTAINTY], np.log(4) - np.log(3) / 2 - np.log(2), rtol=1e-4)
    np.testing.assert_allclose(warm[Stat.COLLISION], 10 / 16, rtol=1e-5)
    np.testing.assert_allclose(cold[Stat.COLLISION], 82 / 100, rtol=1e-5)


@pytest.mark.parametrize("chunk", [3, 22])
def test_confident_tokens_keep_their_precision(chunk):
    """Logits of 1000 + (20, 0, ..., 0): the entropy is 1e-6 and -log p 5e-8. The sum 1 + 5e-8 is known to an ulp, 1e-7, where
    differences of numbers near 1000 know nothing below 1e-4."""
    z = np.zeros((V, 1), np.float32)
    z[5] = 20.0
    hidden, target = jnp.ones((1, 1, 1)), jnp.full((1, 1), 5)
    for offset in (0.0, 1000.0):
        found = token_stats(
            hidden, jnp.asarray(z + offset), target, {Stat.LOGPROB, Stat.ENTROPY}, chunk=chunk
        )
        rest = (V - 1) * np.exp(-20.0)
        np.testing.assert_allclose(found[Stat.ENTROPY], rest * 21, rtol=0, atol=1e-7)
        np.testing.assert_allclose(found[Stat.LOGPROB], -rest, rtol=0, atol=1e-7)
        assert found[Stat.LOGPROB] <= 0


def test_an_untempered_entropy_would_be_far_off():
    hidden, head, targets = inputs()
    at = {
        t: token_stats(hidden, head, targets, {Stat.ENTROPY}, temperature=t)[Stat.ENTROPY] for t in (0.5, 1.0)
    }
    assert np.abs(at[0.5] - at[1.0]).max() > 0.3
    np.testing.assert_allclose(
        at[0.5], slow(hidden, head, targets, 0.5)[0][Stat.ENTROPY], rtol=1e-5, atol=5e-6
    )


def test_ids_beyond_sixteen_bits_are_found():
    vocab, ids = 70_001, jnp.asarray([[32_767, 32_768, 65_535], [65_536, 69_999, 70_000]])
    head = jnp.arange(vocab, dtype=jnp.float32)[:, None] / vocab
    for chunk in (8192, 70_001):
        found = token_stats(jnp.ones((2, 3, 1)), head, ids, {Stat.LOGIT}, chunk=chunk)
        np.testing.assert_array_equal(found[Stat.LOGIT], np.asarray(head)[np.asarray(ids), 0])


def test_a_target_outside_the_vocabulary_is_no_number():
    """Not the statistic of some other token."""
    hidden, head, targets = inputs()
    found = token_stats(hidden, head, jnp.full_like(targets, V), {Stat.LOGPROB}, chunk=5)
    assert np.isnan(found[Stat.LOGPROB]).all()


def test_half_precision_inputs_give_float32_statistics_and_gradients_as_exact_as_their_type():
    """256 chunks: were the gradient of `hidden` rounded to bfloat16 after each, its error would grow to 1.6 %; an ulp of
    bfloat16 is 0.4 to 0.8 %, so the norm of the rounding errors is near 0.2 %."""
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(4, 8, 64)), 0.4 * rng.normal(size=(4096, 64))
    targets = jnp.asarray(rng.integers(0, 4096, (4, 8)))
    half = [jnp.asarray(x, jnp.bfloat16) for x in (hidden, head)]
    full = [x.astype(jnp.float32) for x in half]

    @jax.jit
    def run(hidden, head):
        found = token_stats(hidden, head, targets, {*ALL}, chunk=16)
        return found[Stat.LOGPROB].sum(), found

    (_, found), grads = jax.value_and_grad(run, (0, 1), has_aux=True)(*half)
    (_, exact), exact_grads = jax.value_and_grad(run, (0, 1), has_aux=True)(*full)
    for s in ALL:
        assert found[s].dtype == jnp.float32
        np.testing.assert_allclose(found[s], exact[s], rtol=1e-4, atol=1e-4, err_msg=s)
    for got, expected in zip(grads, exact_grads, strict=True):
        assert got.dtype == jnp.bfloat16
        error = np.linalg.norm(np.asarray(got, np.float32) - expected) / np.linalg.norm(expected)
        assert error < 0.004


def shapes_in(jaxpr) -> set[tuple[int, ...]]:
    """Shapes of everything in a jaxpr and in those inside it (scan, remat, jit)."""
    found = {
        v.aval.shape for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars) if hasattr(v.aval, "shape")
    }
    for equation in jaxpr.eqns:
        found |= {v.aval.shape for v in (*equation.invars, *equation.outvars) if hasattr(v.aval, "shape")}
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found |= shapes_in(inner)
    return found


def is_whole_vocabulary(shape, rows, vocab):
    """At least as many elements as [B, T, V], however they are laid out."""
    return np.prod(shape) >= rows * vocab


@pytest.mark.parametrize("chunk", [7, 101])
def test_no_array_over_batch_length_and_vocabulary_exists(chunk):
    """In the jaxpr of value and gradient, with primes for every axis so that no other product is as large by accident."""
    b, t, d, vocab = 5, 11, 3, 1009

    def total(hidden, head, targets):
        return sum(v.sum() for v in token_stats(hidden, head, targets, {*ALL}, chunk=chunk).values())

    def dense(hidden, head, targets):
        logits = logits_of(hidden, head).reshape(b * t, vocab)
        return sum(v.sum() for v in dense_stats(logits.T, targets.reshape(-1), {*ALL}).values())

    args = jnp.ones((b, t, d)), jnp.ones((vocab, d)), jnp.zeros((b, t), jnp.int32)
    shapes = {
        f: shapes_in(jax.make_jaxpr(jax.value_and_grad(f, (0, 1)))(*args).jaxpr) for f in (total, dense)
    }
    assert any(is_whole_vocabulary(s, b * t, vocab) for s in shapes[dense]), (
        "the search finds what it looks for"
    )
    assert not [s for s in shapes[total] if is_whole_vocabulary(s, b * t, vocab)]
    held = max(s[-1] for s in shapes[total] if s[:2] == (b, t) and len(s) == 3)
    assert chunk // 2 < held <= chunk, "the search looks inside the scan"


def gathered(function, mesh, hidden, head):
    """Value and gradient for a head that is split over `tensor`, and the elements that each collective hands a device."""
    whole, rows = replicated(mesh), named(mesh, ("vocab", None))
    step = jax.jit(
        jax.value_and_grad(function, (0, 1)), in_shardings=(whole, rows), out_shardings=(whole, (whole, rows))
    )
    compiled = step.lower(hidden, head).compile()
    moved = re.findall(
        r" = (.*) (?:all-gather|all-to-all|collective-permute)(?:-start)?\(", compiled.as_text()
    )
    sizes = [
        np.prod([int(n) for n in shape.split(",")])
        for text in moved
        for shape in re.findall(r"\[([\d,]+)\]", text)
    ]
    return compiled(jax.device_put(hidden, whole), jax.device_put(head, rows)), sizes


@pytest.mark.parametrize("vocab, chunk", [(1024, 256), (9496, 1024), (1000, 300)])
def test_a_sharded_head_is_not_gathered(vocab, chunk):
    """8 shards; the chunks divide the vocabulary in the first case only (9496 = 8 * 1187, as 151936 = 128 * 1187)."""
    hidden, head, targets = inputs(vocab)

    def total(hidden, head):
        found = token_stats(hidden, head, targets, {Stat.LOGPROB, Stat.ENTROPY}, chunk=chunk)
        return sum(v.sum() for v in found.values())

    (value, grads), sizes = gathered(total, make_mesh(1, 1, 8), hidden, head)
    assert not [n for n in sizes if n > head.size // 8], "more than a shard was collected"
    expected, expected_grads = jax.jit(jax.value_and_grad(total, (0, 1)))(hidden, head)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for a, b in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)  # sums over 9496 ids in two orders


def test_contiguous_chunks_would_gather_the_head():
    """The control: the same search finds the gather that a plain reshape into chunks costs."""

    def contiguous(hidden, head):
        add = lambda acc, rows: (acc + jnp.exp(logits_of(hidden, rows)).sum(-1), None)  # noqa: E731
        return jnp.log(jax.lax.scan(jax.checkpoint(add), jnp.zeros((B, T)), head.reshape(4, 256, D))[0]).sum()

    _, sizes = gathered(contiguous, make_mesh(1, 1, 8), *inputs(1024, scale=0.1)[:2])
    assert max(sizes) > 1024 * D // 8


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            {"temperature": 0.0},
            "temperature=0.0 has no softmax; score greedy samples at 1.0 (the sampler's convention).",
        ),
        (
            {"temperature": -1.0},
            "temperature=-1.0 has no softmax; score greedy samples at 1.0 (the sampler's convention).",
        ),
        ({"chunk": 0}, "chunk is how many vocabulary entries are held at a time, 1 or more; got 0."),
    ],
)
def test_errors(fields, text):
    hidden, head, targets = inputs()
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        token_stats(hidden, head, targets, {Stat.LOGPROB}, **fields)
