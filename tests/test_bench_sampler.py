"""`rlvr-jax bench sampler`: what it says it timed is what was done."""

import dataclasses
import importlib.util
import json
import sys
import time

import numpy as np
import pytest
import tiny

from rlvr_jax.cli import main
from rlvr_jax.models.export import export
from rlvr_jax.models.tokenizer import word_tokenizer
from rlvr_jax.rollout.bench import limits, measure, ours, peer, process
from rlvr_jax.rollout.bench.report import report
from rlvr_jax.rollout.bench.workload import PRESETS, SamplerBench, Workload
from rlvr_jax.rollout.engine import Decoding, structure
from rlvr_jax.rollout.sampling import Sampling
from rlvr_jax.rollout.slots import occupancy, plan

SIZES = ("--prompts", "4", "--group", "4", "--prompt-tokens", "5", "--new-tokens", "6", "--repeats", "1")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The tiny model as a Hugging Face directory."""
    folder = tmp_path_factory.mktemp("bench") / "model"
    words = word_tokenizer(f"w{i}" for i in range(tiny.CONFIG.vocab_size - 3))
    export(tiny.decoder()[1], tiny.CONFIG, words, folder, eos=(2,))
    return folder


# ---- what is asked for -------------------------------------------------------------------------------------------


def test_a_long_tail_is_log_normal_with_median_48_and_at_most_the_longest():
    many = dataclasses.replace(PRESETS["long-tail"], prompts=10_000)
    length = many.row_lengths()
    assert length.min() >= 1 and length.max() == 256
    # 160000 draws: the median of exp(N) is off by 48 * 1.25 / 400 = 0.15; shares by less than 0.002
    assert abs(np.median(length) - 48) <= 1
    assert abs((length == 256).mean() - 0.047) < 0.003  # N > log(256 / 48) = 1.674
    assert abs((length < 17.66).mean() - 0.159) < 0.02  # N < -1; lengths are whole numbers
    np.testing.assert_array_equal(many.row_lengths(), length)
    assert (many.row_lengths(seed=1) != length).any()


def test_options_change_a_preset_and_those_that_are_not_given_do_not():
    bench = SamplerBench(preset="long-tail", group=2, lengths="fixed")
    assert bench.workload == Workload(8, 2, 256, 256, "fixed")
    assert SamplerBench(preset="distinct-64").workload == PRESETS["distinct-64"]


# ---- ours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [0, 4])
def test_each_row_has_its_length_and_the_slots_are_counted(slots):
    workload = Workload(4, 4, 5, 9, "long-tail")
    length = np.arange(16, dtype=np.int32) % 9 + 1
    asked = dataclasses.replace(
        ours.request(workload, tiny.CONFIG.vocab_size, 0),
        overrides={"min_new_tokens": length, "max_new_tokens": length},
    )
    engine = ours.TimedEngine(
        structure(*tiny.decoder()),
        Sampling(max_new_tokens=9),
        stop=tuple(range(0, 64, 6)),  # so many that rows would end early
        decoding=Decoding(slots=slots),
        options=tiny.QUICK,
    )
    engine.push(tiny.decoder()[1], version=0)
    np.testing.assert_array_equal(engine.sample(asked).length, length)
    found = engine.time(asked)
    assert (found.tokens, found.prompt_tokens, found.used) == (length.sum(), 20, length.sum())
    assert found.steps == found.slot_steps / (slots or 16) and found.steps >= 9
    # the schedule, played through without a model
    assert found.occupancy == pytest.approx(occupancy(length, plan(4, 4, slots, 1, "cpu")), rel=1e-6)
    assert 0 < found.prefill_seconds < found.seconds


def test_the_work_of_a_step_is_that_of_its_products():
    """By hand for the tiny model: 2 layers, 16 wide, 4 heads and 2 key heads of 4, an MLP of 24, 64 tokens."""
    model = structure(*tiny.decoder())
    work = limits.work_of_step(model, plan(4, 4, 0, 1, "cpu"), prompt=5, own=3.0)
    matrices = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24
    assert work.layer_flops == 16 * 2 * (2 * matrices + 2 * 2 * 16 * (5 + 3))
    assert work.head_flops == 16 * 2 * 16 * 64
    norms = 2 * 16
    weights, cache = 2 * (matrices + norms) + 64 * 16, 2 * 2 * 8 * (4 * 5 + 16 * 3)
    assert work.bytes == 4 * (weights + cache)


def test_a_step_takes_as_long_as_its_products_or_its_reading():
    machine = limits.Machine(layer_flops=10.0, head_flops=5.0, bytes=2.0)
    assert machine.seconds(limits.Step(layer_flops=20.0, head_flops=15.0, bytes=4.0)) == 5
    assert machine.seconds(limits.Step(layer_flops=20.0, head_flops=15.0, bytes=12.0)) == 6


# ---- transformers.generate ---------------------------------------------------------------------------------------


def test_generate_writes_each_batch_until_its_longest_row(directory, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(peer, "_AT_ONCE", 2)
    shapes = []
    forward = transformers.LlamaForCausalLM.forward

    def counted(self, input_ids=None, **how):
        shapes.append(tuple(input_ids.shape))
        return forward(self, input_ids=input_ids, **how)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", counted)
    tokens = np.arange(20, dtype=np.int32).reshape(4, 5)
    length = np.array([2, 1, 3, 6], np.int32)
    run = peer.loaded(peer.Job(directory, "float32", "cpu", tokens, length))
    shapes.clear()  # the short batch that warms it up
    start = time.perf_counter()
    seconds = run(0).seconds
    assert 0 < seconds <= time.perf_counter() - start
    assert shapes == [(2, 5), (2, 1), (2, 5), *[(2, 1)] * 5]


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Speeds of the machine in moments instead of seconds."""
    monkeypatch.setattr(limits, "_READ", 2**16)
    monkeypatch.setattr(limits, "_SECONDS", 0.0)


def test_without_torch_one_sentence_says_so_and_ours_is_measured(directory, small, monkeypatch, capsys):
    with monkeypatch.context() as gone:
        gone.setitem(sys.modules, "torch", None)
        assert not process.torch_is_there()
    assert process.torch_is_there() == (importlib.util.find_spec("torch") is not None)
    monkeypatch.setattr(measure, "torch_is_there", lambda: False)
    words = ["bench", "sampler", "--json", "--model", str(directory), "--dtype", "float32", *SIZES]
    assert main([*words, "--devices", "2"]) == 0
    out, err = capsys.readouterr()
    said = "transformers.generate needs torch, which is not installed: only our sampler is measured."
    assert err.splitlines().count(said) == 1
    found = json.loads(out)
    assert found["devices"] == 2 and "generate" not in found and found["ours"]["tokens"] == 16 * 6
    assert found["ours"]["tokens_per_second"] == pytest.approx(96 / found["ours"]["seconds"])
    assert found["ours"]["steps"] == 6 and found["ours"]["occupancy"] == 1
    share = found["limit"]["step_seconds"] / found["ours"]["step_seconds"]
    assert found["limit"]["share"] == pytest.approx(share) and share > 0
    assert found["workload"] == dataclasses.asdict(Workload(4, 4, 5, 6, "fixed"))
    assert len(report(found).renderables) == 1


def test_groups_are_timed_at_the_same_rows_and_the_same_prompts():
    class Clock(measure.Clocked):
        """One that shows how often it was read."""

        def __init__(self):
            self.rows, self.prompts = [], []

        def run(self, workload, step):
            self.rows.append((workload.prompts, workload.group, workload.lengths, step))
            return ours.Timed(1.0, 2.0 * len(self.rows), 1, 1, steps=2, used=1, slot_steps=1)

        def prefill(self, workload):
            self.prompts.append((workload.prompts, workload.group))
            return float(len(self.prompts))

    clock, said = Clock(), []
    found = measure.scaling(clock, Workload(4, 8, 5, 6, "long-tail"), 2, said.append)
    assert clock.rows == [(32 // g, g, "fixed", step) for step in range(3) for g in (1, 4, 16)]
    assert clock.prompts == 3 * [(4, 1), (4, 4), (4, 16)]
    # the first reading of each is thrown away; the median of two is their mean
    assert [(r["group"], r["step_seconds"], r["prefill_seconds"]) for r in found] == [
        (1, 5.5, 5.5),
        (4, 6.5, 6.5),
        (16, 7.5, 7.5),
    ]
    assert len(said) == 6 and said[0].startswith("groups of 1, 1/2: step 4000.0 ms")


@pytest.mark.parametrize(
    "words, message",
    [
        (("--repeats", "0"), "repeats is 1 or more, got 0."),
        (("--devices", "0"), "devices is 1 or more, got 0."),
        (("--devices", "9"), "devices is at most the 8 that JAX has here, got 9."),
        (("--prompt-tokens", "1"), "prompt_tokens is 2 or more, got 1."),
        (("--fast",), "bench sampler has no option '--fast': see rlvr-jax bench sampler --help."),
        (
            ("--prompt-tokens", "60"),
            "prompt_tokens + new_tokens = 66 is more than the 64 positions of the model: lower one of them.",
        ),
        (
            ("--prompts", "3", "--scaling", "--no-compare"),
            "12 rows do not make groups of 16: choose prompts and group so that they do.",
        ),
    ],
    ids=["repeats", "no device", "devices", "prompt", "option", "positions", "groups"],
)
def test_what_cannot_be_measured_is_one_line(directory, small, capsys, words, message):
    assert main(["bench", "sampler", "--model", str(directory), *SIZES, *words]) == 2
    assert capsys.readouterr().err.splitlines() == [f"rlvr-jax: {message}"]
