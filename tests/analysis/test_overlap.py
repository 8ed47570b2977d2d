"""Test prompts found in training prompts, against a search that compares all pairs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.analysis.overlap import COMMON, NGRAM, Overlap, ngrams, normal, wording


def windows(text):
    words = text.split()
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)} or {tuple(words)}


def check(test, train, around=(0, 0)):
    overlap = Overlap()
    for i, text in enumerate(test):
        overlap.add_test(f"test {i}", text, around)
    for i, text in enumerate(train):
        overlap.add_train(f"train {i}", text, around)
    return overlap.as_json()


texts = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=NGRAM + 3).map(" ".join), max_size=6)


@given(test=texts, train=texts)
@settings(max_examples=100, deadline=None)
def test_it_finds_what_comparing_all_pairs_finds(test, train):
    found = check(test, train)
    assert found["exact"] == sum(t in train for t in test)
    assert found["ngram"] == sum(any(windows(t) & windows(other) for other in train) for t in test)
    assert all(test[int(b.split()[1])] == train[int(a.split()[1])] for a, b in found["examples"])


def test_a_sentence_in_another_setting_is_found_and_a_shorter_one_is_not():
    words = [f"w{i}" for i in range(40)]
    test, inside = " ".join(words[:20]), " ".join(["other", *words[3 : 3 + NGRAM], "more"])
    assert check([test], [inside])["ngram"] == 1
    assert check([test], [" ".join(["other", *words[3 : 2 + NGRAM], "more"])])["ngram"] == 0


def test_words_that_many_training_prompts_share_are_no_finding():
    phrase = " ".join(f"w{i}" for i in range(NGRAM))
    few, many = ([f"{i} {phrase} {i}" for i in range(n)] for n in (COMMON, COMMON + 1))
    assert check([f"x {phrase} y"], few)["ngram"] == 1
    assert check([f"x {phrase} y"], many)["ngram"] == 0


def test_an_instruction_at_the_end_of_all_prompts_does_not_make_them_alike():
    ask = " ".join(f"i{i}" for i in range(NGRAM - 2))
    test, train = [f"how many? {ask}", f"another one? {ask}"], [f"so how many? {ask}", f"and now? {ask}"]
    assert check(test, train)["ngram"] == 1  # "how many?" and the instruction
    around = wording(test + train)
    assert around == (0, NGRAM - 2)
    assert check(test, train, around)["ngram"] == 0


def test_the_wording_is_what_all_begin_and_end_with():
    assert wording(["a b x c", "a b y z c", "a b c"]) == (2, 1)
    assert wording(["a b", "a b"]) == wording(["a"]) == wording([]) == (0, 0)
    assert wording(["a a", "a a a"]) == (2, 0)  # no word is counted twice


def test_white_space_and_case_do_not_make_two_prompts():
    assert normal(" What\n is\t1 + 1?  ") == normal("WHAT IS 1 + 1?")
    assert normal("1+1") != normal("1 + 1")
    assert len(set(ngrams(["a"] * 50))) == 1 and len(list(ngrams([]))) == 1
    assert np.unique(list(ngrams([str(i) for i in range(30)]))).size == 30 - NGRAM + 1
