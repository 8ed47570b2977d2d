"""The prompt stream: exact resume, honest counters, identity of repeated prompts."""

import dataclasses
import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.models.tokenizer import render, word_tokenizer
from rlvr_jax.rollout import prompts
from rlvr_jax.rollout.prompts import PromptStream, evaluation_batches
from rlvr_jax.tasks import Reason, Task, Verdict
from rlvr_jax.tasks.mixture import Mixture
from rlvr_jax.tasks.records import converted
from rlvr_jax.tasks.sources import read_records
from rlvr_jax.tasks.tfds_builder import build

LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
SEVEN = tuple(f"{first} b c" for first in LETTERS[:7])


@dataclasses.dataclass(frozen=True)
class Texts(Task):
    """A task whose prompts are given."""

    name = "texts"
    texts: tuple[str, ...] = SEVEN

    def records(self, split):
        return [{"id": f"{split}-{i}", "text": text} for i, text in enumerate(self.texts)]

    def prompt(self, record):
        return record["text"]

    def verify(self, record, completion):
        return Verdict.of(Reason.WRONG)


def bare(index, where, record):
    return record


@dataclasses.dataclass(frozen=True)
class OnDisk(Texts):
    """The same, read from where `path` says."""

    path: str = ""

    def records(self, split):
        return converted(read_records(self.path, split, ("text",)), bare)


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(LETTERS)


def stream(tokenizer, texts=SEVEN, batch=4, limit=64, **fields):
    return PromptStream(Texts(texts), tokenizer, "train", batch, limit, **fields)


def take(source, count):
    return [next(source) for _ in range(count)]


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        for field in dataclasses.fields(a):
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("stopped_after", range(6))
def test_a_new_stream_continues_exactly_across_epoch_edges(tokenizer, shuffle, stopped_after):
    first = stream(
        tokenizer, seed=3, shuffle=shuffle
    )  # 7 records, batches of 4: an edge in batches 1, 3, 5, 6
    take(first, stopped_after)
    state = json.loads(json.dumps(first.get_state()))
    second = stream(tokenizer, seed=3, shuffle=shuffle)
    take(second, 2)  # where it stood does not matter
    second.set_state(state)
    assert_same(take(first, 8), take(second, 8))
    assert first.get_state() == second.get_state()


@given(
    size=st.integers(1, 11),
    shuffle=st.booleans(),
    processes=st.sampled_from([1, 2, 3]),
    resumed=st.sampled_from([1, 2]),
    stop=st.integers(0, 3),
    policy=st.sampled_from(["cut_left", "drop"]),
    seed=st.integers(0, 3),
)
@settings(max_examples=12, deadline=None)
def test_any_number_of_processes_stops_and_continues_and_sees_every_prompt_once_an_epoch(
    size, shuffle, processes, resumed, stop, policy, seed
):
    words = word_tokenizer(LETTERS)
    texts = tuple(
        " ".join(LETTERS[i : i + 1 + i % 3]) for i in range(size)
    )  # with a limit of 3, some are too long
    batch, more = 6, 2
    common = dict(limit=3, policy=policy, seed=seed, shuffle=shuffle)
    alone = take(stream(words, texts, batch, **common), stop + more)

    def split(count, index):
        return stream(words, texts, batch, process_index=index, process_count=count, **common)

    first = [split(processes, i) for i in range(processes)]
    before = [take(s, stop) for s in first]
    states = [json.loads(json.dumps(s.get_state())) for s in first]
    assert all(state == states[0] for state in states)
    second = [split(resumed, i) for i in range(resumed)]
    for s in second:
        s.set_state(states[-1])
    after = [take(s, more) for s in second]
    for whole, parts in zip(alone, [*zip(*before, strict=True), *zip(*after, strict=True)], strict=True):
        assert len({part.tokens.shape for part in parts}) == 1
        for field in dataclasses.fields(whole):
            pieces = [getattr(part, field.name) for part in parts]
            joined = sum(pieces, ()) if field.name == "records" else np.concatenate(pieces)
            np.testing.assert_array_equal(joined, getattr(whole, field.name))
    kept = [i for i in range(size) if policy == "cut_left" or i % 3 < 2]
    ids = np.concatenate([b.prompt_id for b in alone])
    epochs = ids[: len(ids) // len(kept) * len(kept)].reshape(-1, len(kept))
    assert (np.sort(epochs) == kept).all()
    # Every record was taken once an epoch: kept, or counted.
    taken = second[0].get_state()["position"]["next_index"]
    assert taken == len(ids) + second[0].dropped
    assert abs(second[0].dropped - taken // size * (size - len(kept))) <= size - len(kept)


def test_a_batch_that_does_not_spread_over_the_processes_is_refused(tokenizer):
    for fields, message in (
        ({"process_count": 3}, "batch=4 does not spread over 3 processes: make it a multiple."),
        (
            {"process_count": 2, "process_index": 2},
            "process_index=2: there are 2 processes, the first is 0.",
        ),
    ):
        with pytest.raises(ValueError) as error:
            stream(tokenizer, **fields)
        assert str(error.value) == message


@pytest.mark.parametrize("stopped_after", [0, 1, 5])
def test_a_mixture_continues_exactly_and_its_weights_are_part_of_its_order(tokenizer, stopped_after):
    tasks = tuple(
        Texts(tuple(f"{letter} {other}" for other in LETTERS[:n])) for letter, n in (("a", 3), ("b", 5))
    )

    def mixed(*weights, **fields):
        return PromptStream(Mixture(tasks, weights), tokenizer, "train", 4, 64, **fields)

    first = mixed(3.0, 1.0)
    batches = take(first, stopped_after)
    state = json.loads(json.dumps(first.get_state()))
    again = mixed(3.0, 1.0, process_count=2, process_index=1)
    again.set_state(state)
    for theirs, ours in zip(take(first, 4), take(again, 4), strict=True):
        assert Counter(r["task"] for r in theirs.records) == {"texts": 3, "texts-2": 1}
        assert theirs.records[2:] == ours.records
        batches.append(theirs)
    for label, size in (("texts", 3), ("texts-2", 5)):
        ids = [r["id"] for b in batches for r in b.records if r["task"] == label]
        for start in range(0, len(ids) - size + 1, size):
            assert len(set(ids[start : start + size])) == size
    with pytest.raises(ValueError) as error:
        mixed(1.0, 1.0).set_state(state)
    assert str(error.value) == (
        "the saved position is for the order {'seed': 0, 'shuffle': True, 'weights': [3, 1]}, this stream has "
        "{'seed': 0, 'shuffle': True, 'weights': [1, 1]}; resume with the seed of the run, or start a new run."
    )


def test_records_that_are_read_when_asked_for_are_prompts_too(tokenizer, tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"id": t, "text": t}) + "\n" for t in SEVEN))
    lazy = OnDisk(path=str(build(tmp_path, tmp_path / "out", "seven")))
    assert not isinstance(lazy.records("train"), list)
    listed = OnDisk(path=str(tmp_path))
    streams = [PromptStream(task, tokenizer, "train", 4, 64, seed=5) for task in (lazy, listed)]
    assert streams[0].fingerprint() == streams[1].fingerprint()
    assert_same(*(take(each, 4) for each in streams))


def test_taking_a_state_does_not_move_the_stream(tokenizer):
    watched, plain = stream(tokenizer), stream(tokenizer)
    for _ in range(5):
        watched.get_state()
        assert_same([next(watched)], [next(plain)])


def test_every_epoch_has_every_record_once_in_a_new_order(tokenizer):
    ids = np.concatenate([b.prompt_id for b in take(stream(tokenizer), 7)]).reshape(4, 7)
    assert (np.sort(ids) == np.arange(7)).all()
    assert len({tuple(epoch) for epoch in ids}) == 4
    in_order = np.concatenate([b.prompt_id for b in take(stream(tokenizer, shuffle=False), 7)])
    assert (in_order == np.tile(np.arange(7), 4)).all()


def test_the_seed_is_the_order(tokenizer):
    def order(seed):
        return [tuple(b.prompt_id) for b in take(stream(tokenizer, seed=seed), 7)]

    assert order(0) == order(0) != order(1)


def test_rows_hold_what_rendering_gives_and_lengths_say_what_is_real(tokenizer):
    texts = ("a", "b " * 20, "c d e", "f g")
    batch = next(stream(tokenizer, texts, shuffle=False))
    expected = [render(tokenizer, text) for text in texts]
    assert batch.tokens.shape == (4, 32) and batch.tokens.dtype == np.int32
    assert batch.length.tolist() == [len(ids) for ids in expected]
    assert [row[:n].tolist() for row, n in zip(batch.tokens, batch.length, strict=True)] == expected
    assert [record["text"] for record in batch.records] == list(texts)
    assert batch.valid.all() and (batch.occurrence == 0).all()


def test_lengths_do_not_depend_on_the_padding_id(tokenizer):
    same = word_tokenizer(LETTERS)
    same.pad_token = same.eos_token
    special = word_tokenizer(LETTERS)
    special.pad_token = "c"  # a token that prompts really contain
    plain = take(stream(tokenizer), 4)
    assert_same(plain, take(stream(same), 4))
    assert_same(plain, take(stream(special), 4))


def test_a_repeated_prompt_is_numbered_within_its_batch(tokenizer):
    batch = next(stream(tokenizer, ("a", "b"), batch=5, shuffle=False))
    assert batch.prompt_id.tolist() == [0, 1, 0, 1, 0]
    assert batch.occurrence.tolist() == [0, 0, 1, 1, 2]


def test_equal_texts_of_two_records_stay_two_prompts(tokenizer):
    batch = next(stream(tokenizer, ("a b", "a b"), batch=2, shuffle=False))
    assert (batch.tokens[0] == batch.tokens[1]).all()
    assert batch.prompt_id.tolist() == [0, 1]
    assert batch.occurrence.tolist() == [0, 0]


@pytest.mark.parametrize(
    "length, limit, width",
    [(1, 64, 16), (16, 64, 16), (17, 64, 32), (33, 64, 64), (200, 320, 256), (257, 320, 320)],
)
def test_few_widths(length, limit, width):
    assert prompts.bucket(length, limit) == width


def test_all_widths_up_to_a_limit_are_few_and_wide_enough():
    for limit in range(1, 300):
        widths = {prompts.bucket(n, limit): n for n in range(1, limit + 1)}
        assert all(width >= longest for width, longest in widths.items())
        assert len(widths) <= 6 and max(widths) < limit + 16


def around_the_limit(tokenizer, limit=6):
    """Three texts with one token less than the limit, exactly as many, and two more."""
    extra = len(render(tokenizer, "a")) - 1
    return tuple(" ".join(LETTERS[: n - extra]) for n in (limit - 1, limit, limit + 2))


def test_policy_error_names_the_record_the_limit_and_the_ways_out(tokenizer):
    source = stream(tokenizer, around_the_limit(tokenizer), batch=3, limit=6, shuffle=False)
    with pytest.raises(ValueError) as error:
        next(source)
    assert str(error.value) == (
        "prompt 2 (train-2) has 8 tokens, more than prompts.max_tokens=6; "
        "raise the limit, or set prompts.too_long to 'drop' or 'cut_left'."
    )


def test_policy_drop_skips_and_counts_also_after_a_resume(tokenizer):
    texts = around_the_limit(tokenizer)
    source = stream(tokenizer, texts, batch=4, limit=6, policy="drop", shuffle=False)
    assert next(source).prompt_id.tolist() == [0, 1, 0, 1]
    assert (source.dropped, source.cut) == (1, 0)
    again = stream(tokenizer, texts, batch=4, limit=6, policy="drop", shuffle=False)
    again.set_state(source.get_state())
    assert_same([next(source)], [next(again)])
    assert source.dropped == again.dropped == 3


def test_policy_cut_left_keeps_the_end_and_the_first_special_token_and_counts(tokenizer):
    texts = around_the_limit(tokenizer)
    source = stream(tokenizer, texts, batch=3, limit=6, policy="cut_left", shuffle=False)
    batch = next(source)
    assert batch.length.tolist() == [5, 6, 6]
    full = render(tokenizer, texts[2])
    assert full[0] == tokenizer.bos_token_id
    assert batch.tokens[2, :6].tolist() == [full[0], *full[-5:]]
    assert (source.dropped, source.cut) == (0, 1)
    without = word_tokenizer(LETTERS)
    without.bos_token = None
    row = next(stream(without, texts, batch=3, limit=6, policy="cut_left", shuffle=False)).tokens[2]
    assert row[:6].tolist() == render(without, texts[2])[-6:]


def test_dropping_everything_is_an_error_and_not_an_endless_search(tokenizer, monkeypatch):
    with pytest.raises(ValueError) as error:
        next(stream(tokenizer, limit=1, policy="drop"))
    assert str(error.value) == (
        "7 prompts of 'train' in a row have more than prompts.max_tokens=1 tokens and were dropped; "
        "raise the limit."
    )
    monkeypatch.setattr(prompts, "PATIENCE", 3)
    with pytest.raises(ValueError, match="^3 prompts of 'train' in a row"):
        next(stream(tokenizer, limit=1, policy="drop"))


def test_other_data_is_refused_on_resume(tokenizer):
    state = stream(tokenizer).get_state()
    for texts in (SEVEN[:6], (*SEVEN[:6], "z")):
        other = stream(tokenizer, texts)
        with pytest.raises(ValueError) as error:
            other.set_state(state)
        assert str(error.value) == (
            f"the data of split 'train' changed: the saved position is for {state['fingerprint']}, this is "
            f"{other.fingerprint()} (size and hash); resume with the data of the run, or start a new run."
        )


def test_another_seed_is_refused_on_resume(tokenizer):
    with pytest.raises(ValueError) as error:
        stream(tokenizer, seed=1).set_state(stream(tokenizer, seed=0).get_state())
    assert str(error.value) == (
        "the saved position is for the order {'seed': 0, 'shuffle': True}, this stream has "
        "{'seed': 1, 'shuffle': True}; resume with the seed of the run, or start a new run."
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"texts": ()}, "split 'train' of Texts has no records; there is nothing to prompt with."),
        ({"batch": 0}, "batch=0: a batch has at least 1 prompt."),
        ({"limit": 0}, "max_prompt_tokens=0: a prompt has at least 1 token."),
        ({"seed": -1}, "seed=-1: the shuffle takes a seed of 32 bits; use 0 to 4294967295."),
    ],
)
def test_impossible_settings_are_refused_at_once(tokenizer, fields, message):
    with pytest.raises(ValueError) as error:
        stream(tokenizer, **fields)
    assert str(error.value) == message


def test_an_unknown_policy_is_refused():
    with pytest.raises(
        ValueError, match="^no long-prompt policy called 'cut'; there are error, drop, cut_left.$"
    ):
        prompts.check_policy("cut")


def test_a_prompt_that_cannot_be_rendered_names_its_record(tokenizer):
    without = word_tokenizer(LETTERS)
    without.bos_token = None
    with pytest.raises(ValueError) as error:
        next(stream(without, ("",), batch=1))
    assert str(error.value) == (
        "prompt 0 (train-0) cannot be rendered: "
        "the prompt '' has no tokens; a response needs at least one to follow."
    )


def evaluation(tokenizer, texts=SEVEN, batch=4, count=None, limit=64, **fields):
    return evaluation_batches(
        Texts(texts), tokenizer, "test", batch, count, max_prompt_tokens=limit, **fields
    )


def test_seven_problems_in_batches_of_four_score_seven(tokenizer):
    first, last = evaluation(tokenizer)
    assert first.valid.tolist() == [True] * 4 and last.valid.tolist() == [True] * 3 + [False]
    assert [b.tokens.shape[0] for b in (first, last)] == [4, 4]
    scored = list(itertools.chain(*(b.prompt_id[b.valid].tolist() for b in (first, last))))
    assert scored == list(range(7))
    assert last.prompt_id.tolist() == [4, 5, 6, 6] and last.occurrence.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("count, batches", [(1, 1), (4, 1), (5, 2)])
def test_the_first_records_are_scored(tokenizer, count, batches):
    parts = evaluation(tokenizer, count=count)
    assert len(parts) == batches
    assert list(itertools.chain(*(b.prompt_id[b.valid].tolist() for b in parts))) == list(range(count))


def test_evaluation_obeys_the_policy(tokenizer):
    texts = around_the_limit(tokenizer)
    with pytest.raises(
        ValueError, match=r"^prompt 2 \(test-2\) has 8 tokens, more than prompts.max_tokens=6;"
    ):
        evaluation(tokenizer, texts, limit=6)
    assert [b.valid.sum() for b in evaluation(tokenizer, texts, limit=6, policy="drop")] == [2]
    assert [b.length.max() for b in evaluation(tokenizer, texts, limit=6, policy="cut_left")] == [6]
    with pytest.raises(ValueError) as error:
        evaluation(tokenizer, limit=1, policy="drop")
    assert str(error.value) == (
        "all 7 prompts of 'test' have more than prompts.max_tokens=1 tokens and were dropped; raise the limit."
    )


@pytest.mark.parametrize("count", [0, 8])
def test_more_problems_than_there_are_is_an_error(tokenizer, count):
    with pytest.raises(ValueError) as error:
        evaluation(tokenizer, count=count)
    assert str(error.value) == f"count={count}: split 'test' has 7 records; ask for 1 to 7."
