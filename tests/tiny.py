"""A decoder small enough to compile in a second or two, ragged prompts for it, and what samples and scores with it.

Compiled functions are shared by all tests of a process.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, param_shardings
from rlvr_jax.rollout.engine import Decoding, Engine, structure
from rlvr_jax.rollout.prompts import PromptBatch
from rlvr_jax.rollout.protocol import Request, Samples
from rlvr_jax.rollout.sampling import RowSampling, Sampling
from rlvr_jax.train.packing import Packer, Plan
from rlvr_jax.train.step import Forward, make_score
from rlvr_jax.types import Pass, Rollout, Stat

QUICK = {"xla_backend_optimization_level": 0}
"""Compiler options: the same program, its machine code not polished, which halves the time to compile it."""

CONFIG = ModelConfig(
    vocab_size=64, num_layers=2, dim=16, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=24, max_positions=64
)
NEVER = (10_000,)
"""Stop ids outside every vocabulary here: no row ends early."""

P, G, S, T = 8, 4, 7, 12
"""Prompts, responses to each, prompt tokens and response tokens at the most."""


@functools.cache
def decoder(config=CONFIG, dtype="float32", seed=0):
    """(graphdef, params): every parameter random, norms too, so that logits have a standard deviation of about 1."""
    abstract = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=jnp.dtype(dtype)))
    graphdef, params = nnx.split(abstract)
    random = np.random.default_rng(seed)

    def fill(path, leaf):
        value = 0.3 * random.standard_normal(leaf.shape, np.float32)
        return jnp.asarray(value + ("norm" in jax.tree_util.keystr(path)), leaf.dtype)

    return graphdef, jax.tree.map_with_path(fill, params)


def flat(config=CONFIG):
    """Parameters under which every token is as likely as any other, whatever came before."""
    return jax.tree.map(jnp.zeros_like, decoder(config)[1])


def on_mesh(params, mesh):
    """Parameters laid out as in training."""
    return jax.device_put(params, param_shardings(params, mesh))


def prompts(count=P, width=S, seed=0, vocab=CONFIG.vocab_size):
    """(tokens, length, id, first sample): ragged rows padded on the right with 0, one of them a single token.

    Ids are those of records of a large data set; 0 (the padding) and the highest token also stand inside prompts.
    """
    random = np.random.default_rng(seed)
    length = np.resize(np.array([width, 1, 3, width - 1, 2, 5, 4, width]), count).astype(np.int32)
    tokens = random.integers(0, vocab, (count, width)).astype(np.int32)
    tokens[0, 1], tokens[0, 2] = 0, vocab - 1
    tokens *= np.arange(width) < length[:, None]
    ids = random.permutation(1_000_000)[:count].astype(np.int32)
    return tokens, length, ids, np.zeros(count, np.int32)


@functools.cache
def engine(
    sampling,
    stop=NEVER,
    config=CONFIG,
    dtype="float32",
    mesh=None,
    decoding=Decoding(),  # noqa: B008  (frozen)
):
    """The sampler of a decoder; on a mesh, where given, with rows spread over it."""
    model = structure(*decoder(config, dtype))
    return Engine(model, sampling, stop, decoding=decoding, mesh=mesh, options=QUICK)


FULL = Sampling(max_new_tokens=T)


def request(batch=None, group=G, seed=0, step=0, **overrides) -> Request:
    tokens, length, ids, first = map(np.asarray, prompts() if batch is None else batch)
    return Request(
        batch=PromptBatch(
            tokens=tokens,
            length=length,
            prompt_id=ids,
            occurrence=np.zeros(len(ids), np.int32),
            valid=np.ones(len(ids), bool),
            records=({},) * len(ids),
        ),
        first_sample=first,
        group_size=group,
        seed=seed,
        step=step,
        overrides=overrides,
    )


def sample(
    sampling=FULL, batch=None, params=None, seed=0, step=0, group=G, overrides=None, **which
) -> Samples:
    """Samples as NumPy arrays."""
    params = decoder(which.get("config", CONFIG))[1] if params is None else params
    rows = {
        f.name: getattr(sampling, f.name) for f in dataclasses.fields(RowSampling)
    }  # one engine for many of them
    count = group * len((prompts() if batch is None else batch)[1])
    rows = {name: np.full(count, value) for name, value in rows.items()} | (overrides or {})
    mesh, asked = which.get("mesh"), request(batch, group, seed, step, **rows)
    whole = dataclasses.replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, min_new_tokens=0)
    sampler = engine(whole, **which)
    if mesh is None:
        sampler.push(params, version=0)
        return sampler.sample(asked)
    with jax.set_mesh(mesh):
        sampler.push(on_mesh(params, mesh), version=0)
        return sampler.sample(asked)


def rollout(samples, batch=None, group=G, reward=None, mask=None) -> Rollout:
    """What is trained on: samples with a reward for each, by default 1 for an even last token."""
    tokens, length, ids, _ = prompts() if batch is None else batch
    last = samples.tokens[np.arange(len(samples.tokens)), samples.length - 1]
    reward = np.asarray(last % 2 == 0, np.float32) if reward is None else reward
    return Rollout(
        prompt=np.repeat(tokens, group, axis=0),
        prompt_length=np.repeat(length, group),
        tokens=samples.tokens,
        length=samples.length,
        mask=np.asarray(samples.mask if mask is None else mask, np.float32),
        reward=reward,
        correct=(reward > 0).astype(np.float32),
        prompt_id=np.repeat(ids, group),
        truncated=samples.truncated,
    )


def plan(rows, group=G, micro=1, shards=1, live=None) -> Plan:
    """How all rows of a rollout are computed, or the live ones."""
    count, length = np.asarray(rows.tokens).shape
    packer = Packer(count // group, group, length, micro_batches=micro, shards=shards)
    live = np.ones(count, bool) if live is None else live
    return packer.plan(np.asarray(rows.length), live, np.shape(rows.prompt)[1])


@functools.cache
def scorer(
    temperature=1.0, want=(Stat.LOGPROB, Stat.ENTROPY), share=G, dtype="float32", config=CONFIG, chunk=24
):
    """The jitted forward of the trainer: (params, rollout) -> statistics."""
    forward = Forward(decoder(config, dtype)[0], temperature, chunk)
    score = jax.jit(make_score(forward, Pass.NEW, set(want)), compiler_options=QUICK)

    def scored(params, rows):
        return {stat: x for (_, stat), x in score(params, rows, plan(rows, share)).items()}

    return scored


@functools.cache
def dense(share=G):
    """(params, prompt, prompt_length, tokens) -> logits [B, T, V]: all of them at once, as nothing in training does."""

    def logits(params, prompt, length, tokens):
        model = nnx.merge(decoder()[0], params)
        prefix = model.prefill(prompt[::share, :-1], length[::share] - 1)
        last = jnp.take_along_axis(prompt, length[:, None] - 1, axis=1)
        hidden = model.hidden(jnp.concatenate([last, tokens[:, :-1]], axis=1), prefix)
        return jnp.einsum("btd,vd->btv", hidden, model.head(), precision="highest")

    return jax.jit(logits, compiler_options=QUICK)


def keep_gradient():
    """An optimiser that changes nothing, and whose state is the last gradient."""
    return optax.GradientTransformation(
        init=lambda params: jax.tree.map(jnp.zeros_like, params),
        update=lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
    )


def assert_frequencies(tokens, p):
    """Draws of a distribution, by chi-square; nothing is drawn that has no mass."""
    count = len(tokens)
    counts = np.bincount(tokens, minlength=len(p))
    assert (counts[p == 0] == 0).all()
    often = count * p > 5  # where chi-square is a good approximation
    statistic = ((counts - count * p)[often] ** 2 / (count * p)[often]).sum()
    assert statistic < often.sum() + 5 * np.sqrt(2 * often.sum())


def log_softmax(z):
    """In float64, over the last axis."""
    z = np.asarray(z, np.float64)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))
