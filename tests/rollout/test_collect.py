"""From samples to a rollout: masks from lengths, verdicts by reason, broken rows out of the loss."""

import dataclasses

import numpy as np
import pytest

from rlvr_jax.models.tokenizer import word_tokenizer
from rlvr_jax.rollout.collect import collect
from rlvr_jax.rollout.prompts import PromptEncoder
from rlvr_jax.rollout.protocol import Samples
from rlvr_jax.tasks import Reason, Task, Verdict
from rlvr_jax.types import Stat

WORDS = tuple("abcdef")
PAD, BOS, EOS, A, B, C, D, E, F = range(9)


@dataclasses.dataclass(frozen=True)
class Letters(Task):
    """Answers are judged by their first word: the record's own letter is right, the other reasons have theirs."""

    def records(self, split):
        return [{"id": letter, "letter": letter} for letter in "ab"]

    def prompt(self, record):
        return f"{record['letter']} c"

    def verify(self, record, completion):
        others = {"d": Reason.UNPARSABLE, "e": Reason.TIMEOUT, "f": Reason.ERROR}
        first = completion.split()[0] if completion else "d"
        return Verdict.of(Reason.CORRECT if first == record["letter"] else others.get(first, Reason.WRONG))


def batch(tokenizer):
    task = Letters()
    encoder = PromptEncoder(task, tokenizer, 16, "error")
    rows = [(i, encoder.encode(i, r), r) for i, r in enumerate(task.records("train"))]
    return encoder.batch(rows, valid=2)


def samples(rows, length=5, logprob=-1.0, entropy=0.5):
    """What a sampler returns for given responses; one that does not end with EOS is truncated."""
    tokens = np.array([row + [0] * (length - len(row)) for row in rows], np.int32)
    inside = np.arange(length) < np.array([[len(row)] for row in rows])
    full = lambda value: np.where(inside, np.float32(value), np.float32(0))  # noqa: E731
    return Samples(
        tokens=tokens,
        length=np.array([len(row) for row in rows], np.int32),
        mask=inside.astype(np.float32),
        truncated=np.array([row[-1] != EOS for row in rows]),
        logprob=full(logprob),
        stats={Stat.ENTROPY: full(entropy)},
        version=np.zeros(len(rows), np.int32),
    )


ROWS = [[A, B, EOS], [B, A, C, C, C], [EOS], [D, EOS], [B, EOS], [E, EOS], [F, EOS], [A, PAD, EOS]]
"""Two groups of four, answers to "a" and to "b"."""
REASONS = ["correct", "truncated", "unparsable", "unparsable", "correct", "timeout", "error", "wrong"]


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS)


def test_each_response_is_judged_for_its_own_prompt_and_reasons_are_counted_apart(tokenizer):
    found = collect(Letters(), tokenizer, batch(tokenizer), samples(ROWS))
    assert [v.reason.value for v in found.verdicts] == REASONS
    np.testing.assert_array_equal(found.rollout.reward, [r == "correct" for r in REASONS])
    np.testing.assert_array_equal(found.rollout.correct, found.rollout.reward)
    np.testing.assert_array_equal(found.rollout.prompt_id, [0] * 4 + [1] * 4)
    np.testing.assert_array_equal(found.rollout.prompt[:, :3], [[BOS, A, C]] * 4 + [[BOS, B, C]] * 4)
    np.testing.assert_array_equal(found.rollout.prompt_length, [3] * 8)
    for reason in Reason:
        share = found.metrics[f"verdict/{reason.value}"]
        assert (share.total, share.count) == (REASONS.count(reason.value), 8), reason


def test_special_tokens_are_no_part_of_a_completion(tokenizer):
    found = collect(Letters(), tokenizer, batch(tokenizer), samples(ROWS))
    assert found.completions == ("a b", "b a c c c", "", "d", "b", "e", "f", "a")


@pytest.mark.parametrize("pad", ["<pad>", "<eos>"])
def test_masks_come_from_lengths_whatever_the_padding_token_is(tokenizer, pad):
    """With pad == eos an inferred mask would lose the stop token, and one row here holds a sampled padding token."""
    tokenizer = word_tokenizer(WORDS)
    tokenizer.pad_token = pad
    found = collect(Letters(), tokenizer, batch(tokenizer), samples(ROWS))
    want = [[t < len(row) for t in range(5)] for row in ROWS]
    np.testing.assert_array_equal(found.rollout.mask, want)
    np.testing.assert_array_equal(found.rollout.length, [len(row) for row in ROWS])
    np.testing.assert_array_equal(found.rollout.truncated, [row[-1] != EOS for row in ROWS])
    for row, mask in zip(found.rollout.tokens, found.rollout.mask, strict=True):
        assert ((row == EOS) & (mask > 0)).sum() == (EOS in row)


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_a_row_with_a_log_probability_that_is_not_finite_is_masked_and_counted(tokenizer, value):
    given = samples(ROWS)
    given.logprob[0, 2] = given.logprob[5, 0] = value
    given.entropy[0, 2] = np.nan
    given.logprob[6, 4] = value  # under the padding: nobody's log-probability
    found = collect(Letters(), tokenizer, batch(tokenizer), given)
    assert found.rollout.mask.sum(1).tolist() == [0, 5, 1, 2, 2, 0, 2, 3]
    assert found.metrics["rollout/nonfinite"].value() == 2 / 8
    entropy = found.metrics["policy/entropy"]
    assert (entropy.total, entropy.count) == (0.5 * 15, 15)
    assert found.rollout.reward[0] == 1.0  # judged all the same, and no reward is made up
    assert (
        collect(Letters(), tokenizer, batch(tokenizer), samples(ROWS)).metrics["rollout/nonfinite"].value()
        == 0.0
    )


@dataclasses.dataclass(frozen=True)
class Mute(Letters):
    """A verifier that has no word on answers that begin with e or f."""

    nothing: float | None = None

    def verify(self, record, completion):
        verdict = super().verify(record, completion)
        silent = completion[:1] in ("e", "f")
        return dataclasses.replace(verdict, reward=self.nothing) if silent else verdict


@pytest.mark.parametrize("nothing", [None, np.nan, np.inf])
def test_an_answer_without_a_reward_is_taken_out_and_counted(tokenizer, nothing):
    found = collect(Mute(nothing=nothing), tokenizer, batch(tokenizer), samples(ROWS))
    assert found.rollout.mask.sum(1).tolist() == [3, 5, 1, 2, 2, 0, 0, 3]
    assert np.isfinite(found.rollout.reward).all()
    assert found.metrics["rollout/unjudged"].value() == 2 / 8
    assert found.metrics["rollout/nonfinite"].value() == 0
    assert (found.metrics["reward/mean"].total, found.metrics["reward/mean"].count) == (2, 6)


def test_rewards_lengths_and_truncation_are_counted(tokenizer):
    right, wrong = [[A, EOS]] * 4, [[A, C, C, C, C]] * 4
    metrics = collect(Letters(), tokenizer, batch(tokenizer), samples(right + wrong)).metrics
    assert metrics["reward/mean"].value() == metrics["reward/correct"].value() == 0.5
    assert metrics["length/mean"].value() == 3.5
    assert metrics["length/truncated"].value() == 0.5
    assert metrics["policy/entropy"].value() == 0.5


def test_what_was_sampled_is_what_is_trained_however_else_its_text_could_be_encoded():
    """ "ab" is one token to the tokenizer and was sampled as two: the two are kept."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "a": 3, "b": 4, "ab": 5, "c": 6}
    backend = Tokenizer(models.BPE(vocab, [("a", "b")]))
    backend.decoder = decoders.Fuse()
    two_ways = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    sampled = [3, 4, EOS]
    assert two_ways.decode(sampled, skip_special_tokens=True) == "ab"
    assert two_ways("ab")["input_ids"] == [5]
    encoder = PromptEncoder(Letters(), word_tokenizer(WORDS), 16, "error")
    asked = encoder.batch([(0, [BOS, A, C], {"letter": "a"})], valid=1)
    found = collect(Letters(), two_ways, asked, samples([sampled, sampled]))
    np.testing.assert_array_equal(found.rollout.tokens[:, :3], [sampled, sampled])
    np.testing.assert_array_equal(found.rollout.mask.sum(1), [3, 3])
    assert found.completions == ("ab", "ab")
