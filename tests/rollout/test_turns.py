"""Answers with tool calls in them, from the first token to the loss: what is sampled, what is given, and what ends a row.

A model of random weights calls tools where its vocabulary is made of little else than tags.
"""

import dataclasses
import functools
import json
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny
from tiny import G, prompts, rollout, scorer

from rlvr_jax.rollout import turns as turns_module
from rlvr_jax.rollout.engine import Decoding, Engine
from rlvr_jax.rollout.sampling import Sampling
from rlvr_jax.rollout.tools import Search, Tool, Turns
from rlvr_jax.rollout.workers import Workers
from rlvr_jax.types import Stat

T = 48
BATCH = prompts(16)
B = 16 * G
STOP = (62, 63)
REFILLED, LOCKSTEP = Decoding(slots=16, segment=1), Decoding(slots=B)
LOGPROB_TOLERANCE = 1e-5
"""The acceptance's: logits of order 1, sums of float32 in another order."""

OPEN, CLOSE = 7, 6
"""How many tokens are an opening tag, and how many a closing one: each has many encodings."""
LETTERS = (
    *(
        "<result>",
        "</result>",
        "\n",
        " ",
        ":",
        ".",
        "?",
        "ab",
        *"abcdefghijklmnopqrstuvwxyz",
        *"0123456789[]_VE",
    ),
)


@dataclasses.dataclass(frozen=True)
class Tags:
    """A tokenizer of tags and letters, of which it encodes to the longest, and to the first of equals."""

    name: str = "echo"

    @property
    def pieces(self):
        return (f"<{self.name}>",) * OPEN + (f"</{self.name}>",) * CLOSE + LETTERS

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return "".join(self.pieces[i] for i in ids if i not in STOP)

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        ids, longest = [], sorted(self.pieces, key=len, reverse=True)
        while text:
            piece = next((p for p in longest if text.startswith(p)), "?")
            ids.append(self.pieces.index(piece))
            text = text[len(piece) if text.startswith(piece) else 1 :]
        return ids


def echo(patience=0.0):
    """A tool that answers backwards, raises where the text begins with a to h, and is slow where there is s or t in it.

    Its class is a local one, so it goes to a process by value, which then need not import this module.
    """

    @dataclasses.dataclass(frozen=True)
    class Echo(Tool):
        name = "echo"
        patience: float

        def __call__(self, argument):
            if "a" <= argument[:1] <= "h":
                raise ValueError("no")
            if set("st") & set(argument):
                time.sleep(self.patience)
            return argument[::-1]

    return Echo(patience)


def raises(argument):
    return "a" <= argument[:1] <= "h"


def is_slow(argument):
    return not raises(argument) and bool(set("st") & set(argument))


def echoed(argument, slow=None):
    """What is to be read of it."""
    if raises(argument):
        return "error: ValueError: no"
    return slow if slow and is_slow(argument) else argument[::-1]


@functools.cache
def engine(decoding):
    """One compiled loop for all tools: it knows how many tokens one may give, and nothing else of them."""
    model = tiny.structure(*tiny.decoder())
    turns, sampling = Turns((echo(),), max_result_tokens=16), Sampling(max_new_tokens=T)
    made = Engine(model, sampling, STOP, tokenizer=Tags(), turns=turns, decoding=decoding, options=tiny.QUICK)
    made._workers.close()
    made.push(tiny.decoder()[1], version=0)
    return made


def sample(turns, workers=None, tokenizer=Tags(), decoding=REFILLED, **overrides):  # noqa: B008
    """Calls are made at once in this thread, where there are no workers."""
    made = engine(decoding)
    made.turns, made._tokenizer = turns, tokenizer
    made._workers = workers or Workers(0, turns.deadline)
    return made.sample(tiny.request(BATCH, **overrides))


def replayed(found, answer, max_calls, tokenizer=Tags(), limit=None):  # noqa: B008
    """Each row walked through token by token: where it ends and why, and what its calls were.

    Fails where a given token is not the answer's, or counts as sampled.
    """
    close, limit = f"</{tokenizer.name}>", np.full(B, T) if limit is None else limit
    seen = []
    for row in range(B):
        tokens, mask, most = found.tokens[row].tolist(), found.mask[row], limit[row]
        n, turn, calls, why = 0, 0, [], None
        while why is None:
            assert mask[n] == 1
            n += 1
            text = tokenizer.decode(tokens[turn:n], skip_special_tokens=True)
            call = re.search(rf"<{tokenizer.name}>([^<]*(?:</?result>[^<]*)*){close}\s*$", text)
            if tokens[n - 1] in STOP:
                why = "stop"
            elif close in text and not call:
                why = "no call"
            elif close in text and n < most and len(calls) < max_calls:
                calls.append((n, call[1].strip()))
                given = f"\n<result>{answer(calls[-1][1])}</result>\n"
                ids = tokenizer.encode(given, add_special_tokens=False)
                if len(ids) > 16:  # cut, but closed
                    closing = tokenizer.encode("</result>\n", add_special_tokens=False)
                    ids = ids[: 16 - len(closing)] + closing
                ids = ids[: most - n]
                assert tokens[n : n + len(ids)] == ids and not mask[n : n + len(ids)].any()
                n = turn = n + len(ids)
                why = "in an answer" if n == most else None
            elif close in text:
                why = "call at the end" if n == most else "calls used up"
            elif n == most:
                why = "length"
        assert found.length[row] == n and found.truncated[row] == (why not in ("stop", "no call")), why
        assert not found.tokens[row, n:].any() and not found.mask[row, n:].any()
        seen.append((why, calls))
    return seen


def assert_scored(found):
    """Sampled tokens of all turns have the scorer's log-probability of the very ids; given ones have none."""
    scored = np.asarray(scorer(want=(Stat.LOGPROB,))(tiny.decoder()[1], rollout(found, BATCH))[Stat.LOGPROB])
    np.testing.assert_allclose(found.logprob, scored * found.mask, rtol=0, atol=LOGPROB_TOLERANCE)
    assert (found.logprob[found.mask > 0] < 0).all() and not found.entropy[found.mask == 0].any()


def test_an_episode_of_several_turns():
    found = sample(Turns((echo(),), max_calls=2, max_result_tokens=16), seed=1)
    seen = replayed(found, echoed, max_calls=2)
    reasons = {why for why, _ in seen}
    assert reasons >= {"stop", "no call", "in an answer", "calls used up"}
    assert sum(len(calls) == 2 for _, calls in seen) > 5
    assert any(raises(argument) for _, calls in seen for _, argument in calls)  # a tool that raised
    assert_scored(found)
    # The ids are those that were sampled: text has other encodings too, of which most rows are none.
    again = [
        Tags().encode(Tags().decode(row[:n].tolist(), skip_special_tokens=True), add_special_tokens=False)
        for row, n in zip(found.tokens, found.length, strict=True)
    ]
    assert (
        sum(a != row[:n].tolist() for a, row, n in zip(again, found.tokens, found.length, strict=True))
        > B / 2
    )


def test_no_schedule_shows_in_answers_with_calls():
    turns = Turns((echo(),), max_calls=2, max_result_tokens=16)
    one, other = sample(turns), sample(turns, decoding=LOCKSTEP)
    for name in ("tokens", "length", "mask", "truncated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(one.logprob, other.logprob, rtol=0, atol=LOGPROB_TOLERANCE)


def test_processes_share_the_calls_and_all_go_by_the_same_answers(monkeypatch):
    """Two of them, here as threads: each runs the calls of its own rows, and tells the other."""
    alone = sample(Turns((echo(),), max_calls=2, max_result_tokens=16))
    here, meeting, told, calls = threading.local(), threading.Barrier(2, timeout=60), {}, Counter()
    run_call = turns_module.run_call

    def exchanged(own):
        told[here.process] = own
        meeting.wait()
        both = [told[0], told[1]]
        meeting.wait()
        return both

    def counted(*args):
        calls[here.process] += 1
        return run_call(*args)

    def process(number):
        here.process = number
        return engine(REFILLED).sample(tiny.request(BATCH))

    monkeypatch.setattr(turns_module, "mine", lambda row: row % 2 == here.process)
    monkeypatch.setattr(turns_module, "exchanged", exchanged)
    monkeypatch.setattr(turns_module, "run_call", counted)
    with ThreadPoolExecutor(2) as both:
        for found in both.map(process, range(2)):
            for name in ("tokens", "length", "mask", "truncated", "logprob"):
                np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
    assert min(calls[0], calls[1]) > 10


@pytest.mark.parametrize("decoding", [REFILLED, LOCKSTEP], ids=["16 slots", "lockstep"])
def test_where_there_is_no_room_an_answer_is_cut_or_not_asked_for(decoding):
    """Every row that calls has room for 0, 1, 2 .. tokens behind its first call."""
    turns = Turns((echo(),), max_calls=2, max_result_tokens=16)
    free = replayed(sample(turns, decoding=decoding), echoed, max_calls=2)
    limit, room = np.full(B, T), 0
    for row, (_, calls) in enumerate(free):
        if calls:
            limit[row], room = min(T, calls[0][0] + room), (room + 1) % 5
    found = sample(turns, decoding=decoding, max_new_tokens=limit)
    reasons = [why for why, _ in replayed(found, echoed, max_calls=2, limit=limit)]
    assert reasons.count("call at the end") > 2 and reasons.count("in an answer") > 5
    assert_scored(found)


def test_slow_and_failing_tools_are_answers():
    """In processes of their own, while other rows are decoded."""
    turns = Turns((echo(patience=60.0),), max_calls=1, max_result_tokens=16, deadline=1.0)
    with Workers(2, turns.deadline) as workers:
        found = sample(turns, workers)
    seen = replayed(found, lambda text: echoed(text, slow="error: no answer within 1 s"), max_calls=1)
    arguments = [argument for _, calls in seen for _, argument in calls]
    assert any(map(raises, arguments)) and any(map(is_slow, arguments))
    assert any(a and not raises(a) and not is_slow(a) for a in arguments)


def test_a_search_in_a_corpus(tmp_path):
    """Of one document for each letter that a row may ask for."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"{a} 1"}) + "\n" for a in "abcdefghijklmnopqrstuvwxyz"))
    turns = Turns((Search(str(corpus), top=1),), max_calls=1, max_result_tokens=16)
    with Workers(2, 30.0) as workers:
        found = sample(turns, workers, tokenizer=Tags("search"))

    def searched(query):
        """The letter that is asked for most often, of equals the first; "1" is in all documents."""
        words = re.findall(r"\w+", query.lower())
        letters = sorted((w for w in words if re.fullmatch("[a-z]", w)), key=lambda w: (-words.count(w), w))
        if not letters and "1" in words:
            letters = ["a"]
        return f"[1] {letters[0]} 1" if letters else "nothing found"

    seen = replayed(found, searched, max_calls=1, tokenizer=Tags("search"))
    answers = [searched(argument) for _, calls in seen for _, argument in calls]
    assert sum(a != "nothing found" for a in answers) > 2 and "nothing found" in answers
    assert_scored(found)


def test_tools_without_a_tokenizer_are_an_error():
    with pytest.raises(ValueError) as error:
        Engine(tiny.structure(*tiny.decoder()), Sampling(), STOP, turns=Turns((echo(),)))
    assert str(error.value) == "strings that end a response, and tools, are read as text: give a tokenizer."
