"""vLLM behind `Sampler`: what it is asked for, what it answers, and, where an environment has it, the real one."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tiny

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.names import HEAD
from rlvr_jax.rollout.sampling import RowSampling, Sampling
from rlvr_jax.rollout.vllm import VllmSampler, as_samples, check_arrived, row_seed, sampling_params
from rlvr_jax.types import Stat

STOP = (7, 11)
FEW = Sampling(max_new_tokens=4)

# ---- what is asked for ---------------------------------------------------------------------------------------------


def test_a_seed_is_a_function_of_a_responses_identity():
    base = (3, 5, 100, 2)
    seeds = {row_seed(*base)} | {row_seed(*(x + (i == k) for i, x in enumerate(base))) for k in range(4)}
    assert len(seeds) == 5 and row_seed(*base) == row_seed(*base)
    assert row_seed(0, 1, 23, 0) != row_seed(0, 12, 3, 0)


def test_seeds_fit_into_63_bits_and_hardly_ever_meet_in_the_lowest_32():
    """torch's generator on a CPU is seeded with the lowest 32 bits; among 20 000, 0.05 pairs are expected to meet there."""
    seeds = [
        row_seed(0, step, prompt, sample) for step in range(5) for prompt in range(500) for sample in range(8)
    ]
    assert all(0 <= s < 2**63 for s in seeds) and max(seeds) > 2**62
    assert len({s % 2**32 for s in seeds}) >= len(seeds) - 2


def asked(sampling, rows=2, **overrides):
    values = {name: np.asarray(value) for name, value in overrides.items()}
    return sampling_params(sampling, RowSampling.of(sampling, rows, values), STOP)


def test_a_row_stops_at_our_ids_alone_and_gives_its_tokens_log_probability():
    for row in asked(Sampling(max_new_tokens=9)):
        assert row["stop_token_ids"] == [7, 11] and row["ignore_eos"] is True
        assert row["max_tokens"] == 9 and row["logprobs"] == 0 and row["detokenize"] is False


def test_without_a_cut_vllm_divides_by_the_temperature():
    warm, greedy = asked(Sampling(), temperature=[0.5, 0.0])
    assert (warm["temperature"], greedy["temperature"]) == (0.5, 0.0)
    assert (warm["top_k"], warm["top_p"], warm["min_p"], warm["min_tokens"]) == (0, 1.0, 0.0, 0)


@pytest.mark.parametrize("cut", [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.25}, {"min_new_tokens": 3}])
def test_with_a_cut_the_logits_are_tempered_already(cut):
    row, _ = asked(Sampling(temperature=0.5, **cut))
    assert row["temperature"] == 1.0
    theirs = {"min_new_tokens": "min_tokens"}
    assert {theirs.get(k, k): v for k, v in cut.items()}.items() <= row.items()
    assert asked(Sampling(temperature=0.0, **cut))[0]["temperature"] == 0.0


def test_rows_whose_log_probabilities_would_be_wrong_are_refused():
    with pytest.raises(ValueError, match=r"rows with temperatures \[0\.5, 0\.75\]: .* here 0\.5"):
        asked(Sampling(temperature=0.5, top_k=5), temperature=[0.5, 0.75])
    with pytest.raises(
        ValueError, match="rows with top_k, top_p, min_p or min_new_tokens: .* set one of them"
    ):
        asked(Sampling(), top_k=[0, 5])
    with pytest.raises(
        ValueError, match=r"sampling\.temperature=0\.005: vLLM takes it for 0\.01; set that, or 0"
    ):
        asked(Sampling(temperature=0.005))


def test_what_cannot_be_done_is_said_at_once():
    options = {"python": sys.executable, "max_prompt_tokens": 8}
    with pytest.raises(ValueError, match="stop holds the ids that end a response, at least one"):
        VllmSampler(tiny.CONFIG, Sampling(), (), **options)
    with pytest.raises(ValueError, match=r"sampling\.stop=\['x'\]: vLLM gets and gives token ids alone"):
        VllmSampler(tiny.CONFIG, Sampling(stop=("x",)), STOP, **options)


# ---- what comes back -----------------------------------------------------------------------------------------------


def test_responses_become_padded_rows():
    found = [
        {"tokens": [4, 0, 7], "logprob": [-1.0, -2.0, -0.5], "truncated": False},
        {"tokens": [5], "logprob": [-3.0], "truncated": True},
    ]
    samples = as_samples(found, 4, version=6)
    np.testing.assert_array_equal(samples.tokens, [[4, 0, 7, 0], [5, 0, 0, 0]])
    np.testing.assert_array_equal(samples.mask, [[1, 1, 1, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(samples.logprob, [[-1, -2, -0.5, 0], [-3, 0, 0, 0]])
    assert samples.length.tolist() == [3, 1] and samples.truncated.tolist() == [False, True]
    assert samples.version.tolist() == [6, 6] and samples.stats == {} and np.isnan(samples.entropy).all()


def test_the_tensor_that_did_not_arrive_is_named_with_its_values():
    sent = {"a.weight": ("00000001", 1.5), HEAD: ("00000002", 2.5)}
    check_arrived(sent, dict(sent), tied=False)
    with pytest.raises(
        ValueError, match=r"vLLM's a\.weight has the sum 1\.25 \(checksum 0000000f\), what was sent has 1\.5"
    ):
        check_arrived(sent, {**sent, "a.weight": ("0000000f", 1.25)}, tied=False)
    check_arrived(sent, {**sent, HEAD: None}, tied=True)
    with pytest.raises(ValueError, match=rf"vLLM's {HEAD} is not there, what was sent has 2\.5"):
        check_arrived(sent, {**sent, HEAD: None}, tied=False)


# ---- the process ---------------------------------------------------------------------------------------------------

STAND_IN = """
import types
from safetensors.numpy import load_file

class Tensor:
    def __init__(self, values): self.values = values
    def __getitem__(self, rows): return Tensor(self.values[rows])
    def numpy(self): return self.values
    detach = float = cpu = lambda self: self

class LLM:
    def __init__(self, model, **options):
        print("started with", options)
        self.logits_processor = types.SimpleNamespace(scale=1.0)
        self.load(model)

    def load(self, weights_path):
        weights = load_file(weights_path + "/model.safetensors")
        self.weights = {n: w for n, w in weights.items() if "norm" in n or "q_proj" not in n}
        for n, w in weights.items():
            if "q_proj" in n:
                self.weights[n.replace("q_proj", "qkv")] = w * SCALE
    packed_modules_mapping = {"qkv": ["q_proj"]}

    def named_parameters(self, remove_duplicate):
        return [(n, Tensor(w)) for n, w in self.weights.items()]

    def apply_model(self, function): return [function(self)]
    def collective_rpc(self, method, kwargs): {"reload_weights": self.load}[method](**kwargs)
    def reset_prefix_cache(self): return True

    def generate(self, prompts, params, use_tqdm):
        for prompt, row in zip(prompts, params):
            if prompt["prompt_token_ids"][0] == 13: raise OverflowError("thirteen")
            tokens = prompt["prompt_token_ids"][-2:] + [row["seed"] % 5]
            found = [{t: types.SimpleNamespace(logprob=-self.logits_processor.scale)} for t in tokens]
            output = types.SimpleNamespace(token_ids=tokens, logprobs=found, finish_reason="stop")
            yield types.SimpleNamespace(outputs=[output])

SamplingParams = dict
"""
"""What `rollout.vllm` uses of vLLM, with responses that say what was asked."""


@pytest.fixture
def stand_in(tmp_path):
    """Makes the interpreter of an environment where vLLM is the one above, its q_proj off by a factor."""

    def made(factor=1):
        package = tmp_path / "vllm"
        package.mkdir()
        (package / "__init__.py").write_text(STAND_IN.replace("SCALE", str(factor)))
        (package / "platforms.py").write_text(
            "import types\ncurrent_platform = types.SimpleNamespace(is_cpu=lambda: False)"
        )
        return interpreter(tmp_path, f'export PYTHONPATH="{tmp_path}"', "")

    return made


def interpreter(folder, before, flags):
    file = folder / "python"
    file.write_text(f'#!/bin/sh\n{before}\nexec "{sys.executable}" {flags} "$@"\n')
    file.chmod(0o755)
    return file


def over_there(python, sampling=FEW, **more):
    return VllmSampler(
        tiny.CONFIG, sampling, STOP, python=python, max_prompt_tokens=7, dtype="float32", **more
    )


def test_an_environment_without_vllm_is_named(tmp_path):
    bare = interpreter(tmp_path, "", "-S")  # nothing that was installed
    with pytest.raises(
        ModuleNotFoundError, match="python cannot import vllm: install it into that environment"
    ):
        over_there(bare)
    with pytest.raises(FileNotFoundError, match="nowhere is no program: python names the interpreter"):
        over_there(tmp_path / "nowhere")


def test_each_row_is_asked_for_with_its_prompt_and_its_seed(stand_in):
    sampler = over_there(stand_in())
    with pytest.raises(ValueError, match="vLLM has no weights of ours: push some first"):
        sampler.sample(tiny.request())
    sampler.push(tiny.decoder()[1], version=4)
    batch = tiny.prompts()
    samples = sampler.sample(tiny.request((*batch[:3], batch[3] + 6), group=2, seed=1, step=9))
    sampler.close()
    for i, row in enumerate(samples.tokens):
        prompt, length, ids = (x[i // 2] for x in batch[:3])
        said = [*prompt[:length][-2:], row_seed(1, 9, int(ids), 6 + i % 2) % 5]
        assert row.tolist() == said + [0] * (4 - len(said)) and samples.length[i] == len(said)
    assert (samples.version == 4).all() and not samples.truncated.any()
    assert (samples.logprob == -samples.mask).all()


def test_logits_are_tempered_once_where_a_part_is_drawn(stand_in):
    sampler = over_there(stand_in(), Sampling(temperature=0.5, top_k=3, max_new_tokens=4))
    for version in (1, 2):
        sampler.push(tiny.decoder()[1], version)
    samples = sampler.sample(tiny.request())
    sampler.close()
    assert (samples.logprob == -2 * samples.mask).all() and (samples.version == 2).all()


def test_weights_that_did_not_arrive_are_not_sampled_with(stand_in):
    sampler = over_there(stand_in(factor=2))
    with pytest.raises(ValueError, match=r"vLLM's model\.layers\.0\.self_attn\.q_proj\.weight has the sum"):
        sampler.push(tiny.decoder()[1], 1)
    with pytest.raises(ValueError, match="vLLM has no weights of ours: push some first"):
        sampler.sample(tiny.request())
    sampler.close()


def test_what_fails_over_there_fails_here(stand_in):
    sampler = over_there(stand_in())
    sampler.push(tiny.decoder()[1], 1)
    tokens, *rest = tiny.prompts()
    tokens[0, 0] = 13
    with pytest.raises(
        RuntimeError, match="vLLM: OverflowError: thirteen; its log ends with\n +started with"
    ):
        sampler.sample(tiny.request((tokens, *rest)))
    with pytest.raises(ValueError, match="a prompt has 9 tokens, more than max_prompt_tokens=7; raise that"):
        sampler.sample(tiny.request(tiny.prompts(width=9)))
    sampler._process.kill()
    with pytest.raises(RuntimeError, match="the process of vLLM has ended"):
        sampler.sample(tiny.request())
    sampler.close()


# ---- the real one --------------------------------------------------------------------------------------------------

CONFIG = ModelConfig(
    vocab_size=300,
    num_layers=2,
    dim=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_dim=96,
    max_positions=64,
)
"""vLLM's attention has no smaller heads. Tied, and 300 is no multiple of 64, so its embedding has padding."""

GROUP, WIDTH, PROMPT = 2, 12, 40
TOLERANCE = 1e-4
"""Between two implementations of a whole model in float32."""

CUT = Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, min_new_tokens=4, max_new_tokens=WIDTH)
WHOLE = Sampling(temperature=0.7, max_new_tokens=WIDTH)


@pytest.fixture(scope="module")
def python():
    """An interpreter with vLLM: that of VLLM_PYTHON, or this one."""
    found = os.environ.get("VLLM_PYTHON", sys.executable)
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([found, "-c", probe]).returncode:
        pytest.skip(f"{found} has no vllm: set VLLM_PYTHON to the interpreter of an environment that has it")
    return found


def started(python, sampling):
    """Eager: to compile takes minutes. Small blocks: a prefix cache holds whole ones, of 128 tokens on a CPU."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return VllmSampler(
        CONFIG,
        sampling,
        STOP,
        python=python,
        max_prompt_tokens=PROMPT,
        dtype="float32",
        options={"enforce_eager": True, "block_size": 32},
    )


@pytest.fixture(scope="module")
def whole(python):
    sampler = started(python, WHOLE)
    yield sampler
    sampler.close()


def params(seed=0):
    return tiny.decoder(CONFIG, seed=seed)[1]


BATCH = tiny.prompts(width=PROMPT, vocab=CONFIG.vocab_size)
REQUEST = tiny.request(BATCH, GROUP)


def equal(one, other):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.logprob, other.logprob)


def scored(samples, sampling, seed=0):
    """The trainer's log-probabilities of what was sampled."""
    score = tiny.scorer(sampling.score_temperature, share=GROUP, config=CONFIG)
    found = score(params(seed), tiny.rollout(samples, BATCH, GROUP))[Stat.LOGPROB]
    return np.asarray(found) * samples.mask


@pytest.mark.slow
def test_greedy_tokens_are_our_own(whole):
    whole.push(params(), 1)
    request = tiny.request(BATCH, GROUP, temperature=np.zeros(len(BATCH[1]) * GROUP, np.float32))
    theirs = whole.sample(request)
    greedy = Sampling(temperature=0.0, max_new_tokens=WIDTH)
    ours = tiny.sample(greedy, BATCH, params(), group=GROUP, config=CONFIG, stop=STOP)
    np.testing.assert_array_equal(theirs.tokens, ours.tokens)
    np.testing.assert_array_equal(theirs.length, ours.length)
    np.testing.assert_array_equal(theirs.truncated, ours.truncated)
    np.testing.assert_allclose(theirs.logprob, ours.logprob, atol=TOLERANCE)


@pytest.mark.slow
def test_log_probabilities_are_the_scorers(whole):
    whole.push(params(), 2)
    samples = whole.sample(REQUEST)
    assert (samples.version == 2).all() and samples.tokens.shape == (len(BATCH[1]) * GROUP, WIDTH)
    np.testing.assert_allclose(samples.logprob, scored(samples, WHOLE), atol=TOLERANCE)


@pytest.mark.slow
def test_log_probabilities_are_of_the_whole_vocabulary_where_a_part_is_drawn(python):
    sampler = started(python, CUT)
    sampler.push(params(), 0)
    samples = sampler.sample(REQUEST)
    sampler.close()
    np.testing.assert_allclose(samples.logprob, scored(samples, CUT), atol=TOLERANCE)
    assert not np.isin(samples.tokens[:, :4], STOP).any()


@pytest.mark.slow
def test_a_response_ends_with_its_stop_token(whole):
    whole.push(params(), 0)
    ended = 0
    for step in range(12):
        samples = whole.sample(tiny.request(BATCH, GROUP, step=step))
        for tokens, length, truncated in zip(samples.tokens, samples.length, samples.truncated, strict=True):
            assert np.isin(tokens[: length - 1], STOP).sum() == 0 and (tokens[length:] == 0).all()
            assert truncated == (length == WIDTH and tokens[length - 1] not in STOP)
            ended += not truncated
    assert ended >= 3  # among 192 responses of up to 12 tokens, two of 300 of which stop: about 14


@pytest.mark.slow
def test_equal_identities_give_equal_samples(whole):
    whole.push(params(), 0)
    first = whole.sample(REQUEST)
    equal(first, whole.sample(REQUEST))
    other = whole.sample(tiny.request(BATCH, GROUP, step=1))
    assert (first.tokens != other.tokens).mean() > 0.5
    rows = first.tokens.reshape(-1, GROUP, WIDTH)
    assert (rows[:, 0] != rows[:, 1]).any(-1).all()


@pytest.mark.slow
def test_after_a_push_all_is_as_if_it_had_been_the_first(whole, python):
    """Nothing of the weights before is left: not in a prefix cache, nor in a copy of a tied output matrix."""
    whole.push(params(0), 1)
    before = whole.sample(REQUEST)
    whole.push(params(1), 2)
    after = whole.sample(REQUEST)
    assert (before.tokens != after.tokens).mean() > 0.5 and (after.version == 2).all()
    cold = started(python, WHOLE)
    cold.push(params(1), 2)
    equal(after, cold.sample(REQUEST))
    cold.close()
    whole.push(params(0), 3)
    equal(before, whole.sample(REQUEST))


@pytest.mark.slow
def test_weights_that_are_changed_on_the_way_are_not_sampled_with(whole, monkeypatch):
    whole.push(params(), 1)
    ask = whole._ask

    def damaged(**message):
        if message["job"] == "push":
            (file,) = pathlib.Path(message["directory"]).glob("*.safetensors")
            content = bytearray(file.read_bytes())
            content[-2] ^= 1
            file.write_bytes(content)
        return ask(**message)

    monkeypatch.setattr(whole, "_ask", damaged)
    with pytest.raises(
        ValueError, match=r"vLLM's \S+ has the sum \S+ \(checksum \w+\), what was sent has \S+ \(\w+\)"
    ):
        whole.push(params(), 2)
    with pytest.raises(ValueError, match="vLLM has no weights of ours: push some first"):
        whole.sample(REQUEST)
