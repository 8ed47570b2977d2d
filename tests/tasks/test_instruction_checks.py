"""Every constraint against texts whose verdict follows from its wording, and against the cases of another project."""

import collections
import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.tasks.instruction_checks import CONSTRAINTS, arguments, follows, language_of, variants

AT_LEAST, LESS = "at least", "less than"
TABLE = {
    "keywords:existence": [
        ({"keywords": ["mom", "C++"]}, ["Moments in c++"], ["Moments in C", "C++ alone"]),
    ],
    "keywords:forbidden_words": [
        ({"forbidden_words": ["rock", "C++"]}, ["rocket C+"], ["ROCK!", "a.rock", "in C++ too"]),
    ],
    "keywords:frequency": [
        ({"keyword": "war", "frequency": 2, "relation": AT_LEAST}, ["War and warm"], ["war"]),
        ({"keyword": "war", "frequency": 2, "relation": LESS}, ["war", "peace"], ["War and warm"]),
        ({"keyword": "a.b", "frequency": 1, "relation": AT_LEAST}, ["A.B"], ["axb"]),
    ],
    "keywords:letter_frequency": [
        ({"letter": "T", "let_frequency": 3, "let_relation": AT_LEAST}, ["that T"], ["that"]),
        ({"letter": "#", "let_frequency": 1, "let_relation": LESS}, ["none"], ["#"]),
    ],
    "change_case:capital_word_frequency": [
        (
            {"capital_frequency": 2, "capital_relation": AT_LEAST},
            ["I saw NASA", "COVID-19 in the U.S."],
            ["NASA", "Nasa Is"],
        ),
        ({"capital_frequency": 1, "capital_relation": LESS}, ["none Here"], ["one HERE"]),
    ],
    "change_case:english_capital": [
        (
            {},
            ["THIS IS PLAIN ENGLISH, AND ALL OF IT IS CAPITALS."],
            [
                "THIS IS PLAIN ENGLISH, AND NOt ALL OF IT IS CAPITALS.",
                "DAS IST KEIN ENGLISCH, SONDERN DEUTSCH.",
            ],
        ),
    ],
    "change_case:english_lowercase": [
        (
            {},
            ["this is plain english, and there is no capital in it."],
            [
                "This is plain english, and there is one capital in it.",
                "das ist kein englisch, sondern deutsch.",
            ],
        ),
    ],
    "language:response_language": [
        (
            {"language": "de"},
            ["Das Wetter ist heute sehr schön."],
            ["The weather is lovely.", "123 456", "?!"],
        ),
        ({"language": "hi"}, ["आज मौसम बहुत अच्छा है।"], ["The weather is lovely."]),
    ],
    "length_constraints:number_words": [
        ({"num_words": 3, "relation": AT_LEAST}, ["don't stop", "a b c"], ["one two."]),
        ({"num_words": 3, "relation": LESS}, ["one two."], ["a, b, c", "a-b-c"]),
    ],
    "length_constraints:number_sentences": [
        (
            {"num_sentences": 3, "relation": AT_LEAST},
            ["Dr. Lee left. Why? Nobody knows."],
            ["Dr. Lee left. Why?"],
        ),
        (
            {"num_sentences": 3, "relation": LESS},
            ["It costs 3.5 dollars. Fine.", "no full stop"],
            ["A cat. A dog. A cow."],
        ),
    ],
    "length_constraints:number_paragraphs": [
        (
            {"num_paragraphs": 2},
            ["a\n***\nb", "***\na\n***\nb\n***"],
            ["a\n\nb", "a\n***\n\n***\nb", "a***b***c"],
        ),
    ],
    "length_constraints:nth_paragraph_first_word": [
        (
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Rain"},
            ["Sun.\n\nrain, again.", 'Sun.\n\n"Rain!" she said.'],
            ["Sun.\n\nRains.", "Rain.\n\nSun.", "Sun.\n\nrain\n\nfog", "rain"],
        ),
        ({"num_paragraphs": 1, "nth_paragraph": 3, "first_word": "a"}, [], ["a"]),
        ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "a"}, [], ["b\n\n...a"]),
    ],
    "punctuation:no_comma": [({}, ["no comma"], ["one, two"])],
    "startend:quotation": [({}, [' "all of it" ', '""'], ['"', '"begun', "'single'"])],
    "startend:end_checker": [
        ({"end_phrase": "That is all."}, ["So. THAT IS ALL.", '"That is all."'], ["That is all. Or not."]),
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, ["[name] at [place]"], ["[name]", "[na\nme] [x]"]),
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, ["Bye.\np. s. one more"], ["Bye. PS"]),
        ({"postscript_marker": "P.P.S"}, ["Bye.\nP. P.S two"], ["Bye.\nP.S. one"]),
        ({"postscript_marker": "N.B."}, ["n.b. this"], ["nabo"]),
    ],
    "detectable_format:constrained_response": [
        ({}, ["My answer is yes.", "Well. My answer is maybe."], ["my answer is yes.", "My answer is yes"]),
    ],
    "detectable_format:json_format": [
        (
            {},
            ['{"a": [1]}', '```json\n{"a": 1}\n```', "```\n[]\n```", "9" * 5000],
            ["{'a': 1}", "Here: {}", "[" * 50_000],
        ),
    ],
    "detectable_format:multiple_sections": [
        (
            {"section_spliter": "Section", "num_sections": 2},
            ["Section 1\na\nSection 2\nb"],
            ["SECTION 1 SECTION 2", "Section 1"],
        ),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, ["* a\n  - b", "-a\n*b"], ["* a", "* a\n* b\n* c", "**bold**\n- a"]),
    ],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, ["*a* and *b*", "**a** *b*"], ["*a* and * *", "*a\nb* **c**", "** ** *a*"]),
    ],
    "detectable_format:title": [
        ({}, ["<<A title>>\nText"], ["<A title>", "<<>>", "<< >>", "<<A\ntitle>>", ">>a<<"])
    ],
    "combination:repeat_prompt": [
        ({"prompt_to_repeat": "Say it twice."}, ["say it twice. It."], ["It. Say it twice."]),
    ],
    "combination:two_responses": [
        (
            {},
            ["a\n******\nb", "******\na\n******\nb"],
            ["a", "a******a", "a******b******c", "a******\n******b", "******"],
        ),
    ],
}
CASES = [
    pytest.param(name, given_arguments, text, expected, id=f"{name.split(':')[1]}-{expected}-{text[:20]!r}")
    for name, rows in TABLE.items()
    for given_arguments, yes, no in rows
    for expected, texts in ((True, yes), (False, no))
    for text in texts
]
SOME = {name: arguments("the table", name, rows[0][0]) for name, rows in TABLE.items()}


def test_the_table_has_a_yes_and_a_no_for_each_of_the_25_constraints():
    assert set(TABLE) == set(CONSTRAINTS) and len(TABLE) == 25
    for name, rows in TABLE.items():
        assert any(yes for _, yes, _ in rows) and any(no for _, _, no in rows), name


@pytest.mark.parametrize(("name", "given_arguments", "text", "expected"), CASES)
def test_a_text_follows_a_constraint_as_its_wording_says(name, given_arguments, text, expected):
    assert follows(name, arguments("here", name, given_arguments), text) is expected


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_text_follows_nothing(name, text):
    assert not follows(name, SOME[name], text)


def test_a_relation_is_not_reversed_and_counts_from_nought():
    counted = [("keyword", "frequency", "relation"), ("letter", "let_frequency", "let_relation")]
    for (what, number, relation), name in zip(counted, ("frequency", "letter_frequency"), strict=True):
        for count, wanted in itertools.product(range(3), range(4)):
            text = "x " * count + "."
            given_arguments = {what: "x", number: wanted}
            full = f"keywords:{name}"
            assert follows(full, given_arguments | {relation: AT_LEAST}, text) == (count >= wanted)
            assert follows(full, given_arguments | {relation: LESS}, text) == (count < wanted)


def test_the_eight_loose_variants():
    text = "a*\nb*\nc*"
    assert variants(text) == (text, "b*\nc*", "a*\nb*", "b*", "a\nb\nc", "b\nc", "a\nb", "b")
    assert variants("one") == ("one", "")


@pytest.mark.parametrize(
    ("name", "given_arguments", "message"),
    [
        (
            "punctuation:no_coma",
            {},
            "^here: no constraint called 'punctuation:no_coma'. Did you mean 'punctuation:no_comma'?",
        ),
        ("punctuation:no_comma", {"n": 1}, "^here: punctuation:no_comma takes no arguments, got n.$"),
        ("keywords:existence", {"keywords": None}, "^here: keywords:existence takes keywords, got none.$"),
        ("keywords:existence", {"keywords": "mom"}, "argument 'keywords' is a list, got 'mom'.$"),
        (
            "length_constraints:number_words",
            {"num_words": 3, "relation": "at most"},
            "argument 'relation' is one of at least, less than, got 'at most'.$",
        ),
        (
            "length_constraints:number_words",
            {"num_words": "many", "relation": AT_LEAST},
            "argument 'num_words' is a whole number, got 'many'.$",
        ),
    ],
)
def test_arguments_that_do_not_fit_say_so(name, given_arguments, message):
    with pytest.raises(ValueError, match=message):
        arguments("here", name, given_arguments)


def test_arguments_that_are_null_count_as_not_given():
    # the Hugging Face copy of IFEval gives every constraint the arguments of all
    assert arguments("here", "punctuation:no_comma", {"num_words": None}) == {}


def test_all_cases_of_the_other_project_agree(shared):
    lines = (shared / "data" / "reward_cases" / "instructions.jsonl").read_text().splitlines()
    agreed, seen = collections.Counter(), collections.Counter()
    for case in map(json.loads, lines):
        name = case["instruction_id"]
        seen[name] += 1
        agreed[name] += (
            follows(name, arguments(case["id"], name, case["kwargs"]), case["response"]) == case["expected"]
        )
    assert agreed == seen and seen.total() == 59 and len(seen) == 22


def test_languages_of_plain_sentences_in_both_cases():
    sentences = {
        "en": "the train to the coast leaves in an hour",
        "fr": "le train pour la côte part dans une heure",
        "es": "el tren a la costa sale dentro de una hora",
        "it": "il treno per la costa parte tra un'ora",
        "ru": "поезд на побережье отправляется через час",
    }
    for language, sentence in sentences.items():
        assert language_of(sentence) == language_of(sentence.upper()) == language
    assert language_of("12 + 30 = 42") is None


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(), max_size=60) | st.text(alphabet='[]<>*-"`{},. \n1aP\ud800', max_size=60))
def test_any_text_is_judged(text):
    for name, given_arguments in SOME.items():
        assert follows(name, given_arguments, text) in (True, False)


@pytest.mark.parametrize(
    "piece", ["[", "<<", "*", "**", "A. ", "? ", "\n", "a", "{", '"', "```", "P.", "Section ", "1"]
)
def test_long_babble_is_judged_in_under_a_second(piece):
    text = (piece * 20_000)[:20_000]  # the longest answer that is judged
    for name, given_arguments in SOME.items():
        start = time.perf_counter()
        assert follows(name, given_arguments, text) in (True, False)
        assert time.perf_counter() - start < 1, name
