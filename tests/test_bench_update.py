"""`rlvr-jax bench update` and `bench step`: the figures are those of what was computed, and torch's update is the same one."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny

from rlvr_jax.cli import main
from rlvr_jax.models.export import export
from rlvr_jax.models.tokenizer import word_tokenizer
from rlvr_jax.rollout.bench import limits
from rlvr_jax.train.bench import ours, peer, update
from rlvr_jax.train.bench.report import step_report, update_report
from rlvr_jax.train.bench.scaling import variants
from rlvr_jax.train.bench.work import Counts, model_flops, needed
from rlvr_jax.train.bench.workload import PRESETS, Batch, StepBench, UpdateBench

BATCH = Batch(4, 2, 5, 12, "fixed", 0.5)
LENGTH = np.array([3, 12, 1, 7, 12, 2, 5, 4], np.int32)
SIZES = ("--prompts", "4", "--group", "2", "--prompt-tokens", "5", "--new-tokens", "12", "--repeats", "1")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The tiny model as a Hugging Face directory."""
    folder = tmp_path_factory.mktemp("bench") / "model"
    words = word_tokenizer(f"w{i}" for i in range(tiny.CONFIG.vocab_size - 3))
    export(tiny.decoder()[1], tiny.CONFIG, words, folder, eos=(2,))
    return folder


@pytest.fixture(scope="module")
def timed(directory):
    """An update of ragged rows, of which the first half has no credit, in float32; and what its first step gave."""
    bench = UpdateBench(model=directory, dtype="float32")
    program = ours.program_of(bench, BATCH, ours.BY_REWARD)
    rows = ours.rollout_of(BATCH, tiny.CONFIG.vocab_size)
    mask = (np.arange(12) < LENGTH[:, None]).astype(np.float32)
    with jax.set_mesh(program.mesh):
        found = ours.TimedUpdate(program, dataclasses.replace(rows, length=LENGTH, mask=mask))
        return found, found.run()


# ---- what is asked for -------------------------------------------------------------------------------------------


def test_a_share_of_the_groups_has_no_credit_and_the_others_have_some():
    credit = PRESETS["realistic"].credit().reshape(16, 16)
    assert (credit[:6] == 0).all()  # 35 % of 16 groups are 5.6
    assert set(np.unique(credit[6:])) == {-1.0, 1.0} and (np.ptp(credit[6:], axis=1) == 2).all()
    assert (PRESETS["equal"].credit() != 0).all() and set(PRESETS["equal"].row_lengths()) == {128}
    changed = UpdateBench(preset="realistic", group=4, collapsed=0.0).batch
    assert changed == Batch(16, 4, 256, 256, "long-tail", 0.0)


def test_scaling_changes_one_thing_at_a_time_at_the_same_rows():
    found = variants(Batch(8, 8, 64, 128, "long-tail", 0.35))
    assert {each.batch.rows for each in found} == {64}
    assert {each.batch.prompt_tokens + each.batch.new_tokens for each in found} == {192}
    assert [each.value for each in found if each.what == "group size"] == [1, 4, 16]
    for each in found:
        length = each.rollout(64).length
        assert length.max() == each.batch.new_tokens
        # rounded, and the shortest has a token at the least: the mean is off by less than one
        assert abs(1 - length.mean() / each.batch.new_tokens - each.padding) < 1 / each.batch.new_tokens
        assert each.batch.collapsed == (each.value if each.what == "collapsed share" else 0)


# ---- figures -----------------------------------------------------------------------------------------------------


def test_tokens_are_counted_as_they_are_computed(timed):
    mine, _ = timed
    counts = Counts.of(mine.told, mine.live, mine.plan())
    # groups 2 and 3: [12], [2] and [5], [4]. In rows of 12: three, with the two prompts but for their last tokens
    assert (counts.useful, counts.live, counts.padded) == (8 * 5 + LENGTH.sum(), 23, 8 * (5 + 12))
    plan = mine.plan()
    (_, _, prompts), (_, _, rows) = plan.prompts.shape, plan.owner.shape
    assert counts.micro_batches == 1 and rows >= 3 and prompts >= 2
    assert (counts.computed, counts.head) == (4 * prompts + 12 * rows, 12 * rows)


def test_operations_are_those_of_the_products(timed):
    """By hand for the tiny model: 2 layers, 16 wide, 4 heads and 2 key heads of 4, an MLP of 24, 64 tokens."""
    mine, _ = timed
    model = ours.model_of(mine.program)
    matrices = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24)
    assert model_flops(model, 100) == 6 * (matrices + 64 * 16) * 100
    work = needed(model, mine.told, mine.live, 2)
    seen = 2 * sum(range(1, 5))  # two prompts of 4 tokens, each token sees those before it and itself
    seen += sum(4 + i for n in (12, 2, 5, 4) for i in range(1, n + 1))
    assert work.head_flops == 6 * 64 * 16 * 23
    assert work.layer_flops == 6 * (matrices * (2 * 4 + 23) + 2 * 2 * 16 * seen)


# ---- torch -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs(timed, directory):
    pytest.importorskip("transformers")
    job = update.job_of(timed[0], directory, ("float32", "autocast"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer, "_TOKENS", 3 * (5 + 12))  # 3 + 3 + 2 rows
        return peer.loaded(job)(0)


def test_torch_does_the_same_update_with_padding(timed, theirs):
    """float32, sums in another order: the norm of a gradient of 64-term products to 1e-4, as against a whole other model."""
    _, mine = timed
    assert theirs.way.startswith("float32") or theirs.way.startswith("autocast")
    tolerance = 1e-4 if theirs.way.startswith("float32") else 2e-2  # bfloat16 has 8 bits
    assert mine.grad_norm > 0.01
    assert theirs.grad_norm == pytest.approx(mine.grad_norm, rel=tolerance)
    assert theirs.loss == pytest.approx(mine.loss, rel=tolerance, abs=1e-6)


def test_each_way_is_tried_and_one_of_them_taken(theirs):
    assert {way.split(", ")[0] for way in theirs.tried} == {"float32", "autocast"}
    assert theirs.tried[theirs.way] == min(theirs.tried.values())
    assert 0 < theirs.optimizer_seconds < theirs.seconds


# ---- the commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch, timed):
    """Speeds of the machine in moments instead of seconds, and a program that is compiled already."""
    monkeypatch.setattr(ours, "program_of", lambda *asked: timed[0].program)
    monkeypatch.setattr(limits, "_SECONDS", 0.0)
    monkeypatch.setattr(limits, "_READ", 2**16)


def run(capsys, *words):
    """Status, standard output, lines of standard error."""
    status = main(["bench", *words])
    out, err = capsys.readouterr()
    return status, out, err.splitlines()


def test_the_command_prints_what_it_measured(directory, small, capsys, monkeypatch):
    monkeypatch.setattr(update, "torch_is_there", lambda: False)
    words = ("--model", str(directory), "--dtype", "float32", *SIZES, "--collapsed", "0.5", "--parts")
    status, out, err = run(capsys, "update", "--json", *words)
    assert status == 0
    assert "the update beside ours needs torch, which is not installed: only ours is measured." in err
    found = json.loads(out)
    mine, tokens = found["ours"], found["tokens"]
    assert found["batch"] == dataclasses.asdict(Batch(4, 2, 5, 12, "fixed", 0.5)) and "torch" not in found
    assert (tokens["useful"], tokens["live"]) == (8 * 17, 4 * 12)
    assert mine["tokens_per_second"] == pytest.approx(8 * 17 / mine["seconds"])
    assert mine["seconds"] == pytest.approx(mine["plan_seconds"] + mine["device_seconds"])
    assert found["limit"]["share"] == pytest.approx(found["limit"]["seconds"] / mine["seconds"])
    best = max(found["limit"]["layer_flops_per_second"], found["limit"]["head_flops_per_second"])
    weights = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24) + 64 * 16
    assert mine["mfu"] == pytest.approx(6 * weights * 8 * 17 / (best * mine["seconds"]))
    assert set(found["parts"]) == {"forward", "head", "optimizer", "sums", "layers"}
    assert len(update_report(found).renderables) == 2


def test_a_step_is_that_of_the_loop(directory, small, capsys):
    sizes = ("--prompts", "4", "--group", "2", "--prompt-tokens", "5", "--new-tokens", "12", "--repeats", "1")
    status, out, _ = run(capsys, "step", "--json", "--model", str(directory), "--dtype", "float32", *sizes)
    assert status == 0
    found = json.loads(out)
    assert set(found["phases"]) == {"sample", "verify", "score", "credit", "update"}
    assert 0 < sum(found["phases"].values()) <= found["seconds"]
    limit = found["limit"]
    assert limit["seconds"] == pytest.approx(limit["sample_seconds"] + limit["update_seconds"])
    assert limit["share"] == pytest.approx(limit["seconds"] / found["seconds"])
    assert found["batch"] == dataclasses.asdict(
        StepBench(None, prompts=4, group=2, prompt_tokens=5, new_tokens=12).batch
    )
    assert len(step_report(found).renderables) == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (("update", "--repeats", "0"), "repeats is 1 or more, got 0."),
        (("step", "--repeats", "0"), "repeats is 1 or more, got 0."),
        (
            ("update", "--peer-rows", "65"),
            "peer_rows is 0 (all) to the 64 rows of the batch, got 65.",
        ),
        (
            ("update", "--collapsed", "1"),
            "collapsed is a share of the groups, at least 0 and below 1, got 1.0.",
        ),
        (("step", "--fast"), "bench step has no option '--fast': see rlvr-jax bench step --help."),
        (
            ("update", "--scaling", "--prompts", "2"),
            "16 rows do not make four or more groups of 16: choose prompts and group so that they do.",
        ),
        (
            ("update", "--prompt-tokens", "9000"),
            "prompts.max_tokens + sampling.max_new_tokens = 9128 is more than the 8192 positions of the model: lower one of "
            "them.",
        ),
    ],
    ids=["repeats", "repeats of a step", "rows of torch", "collapsed", "option", "scaling", "positions"],
)
def test_what_cannot_be_measured_is_one_line(capsys, words, message):
    status, _, err = run(capsys, *words)
    assert status == 2 and err == [f"rlvr-jax: {message}"]
