"""Every task's verifier on texts such as models write when they go astray: always a verdict, always soon."""

import asyncio
import concurrent.futures
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rlvr_jax.tasks  # noqa: F401  (it registers them)
from rlvr_jax import registry
from rlvr_jax.rollout.judge import judging
from rlvr_jax.tasks import Reason, Verdict
from rlvr_jax.tasks.maths import Math

RUN_PROGRAMS = {"code", "programs"}
"""Tasks that run what a model wrote: their tests are about the sandbox."""
TASKS = sorted(set(registry.names("task")) - RUN_PROGRAMS)
SECONDS = 5.0

PIECES = [
    *(r"\boxed{", r"\boxed{\boxed{", "}", "}}}", "{", "(", ")", "[", "]", r"\{", r"\}", "$", "$$", r"\(", r"\)", r"\[", r"\]"),
    *(r"\frac{1}{2}", r"\frac", r"\dfrac12", r"\sqrt", r"\sqrt{", r"\sqrt[3]{x}", "^", "^{", "_", "^{9^{9^{9}}}", "9^9^9"),
    *("!", "!!", "99999999!", r"\binom{99999999}{5555555}", r"\sum_{k=1}^{99999} k", r"\int_0^1 e^{x^2} dx", r"\prod", r"\lim"),
    *(r"\text{", r"\text{ even }", r"\text{ and }", r"\mathrm{cm}^2", r"\%", "%", r"\$", "^\\circ", r"\pi", r"\infty", "e", "i"),
    *(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{", r"\end{", "&", "\\\\", "\\", r"\left(", r"\right]", r"\cup", r"\in"),
    *("1", "18", "-3", "0.5", ".5", "1,234", "1{,}234", "1e999999", "7" * 80, "9" * 400, "1/0", "1/2", "2 1/2", "50%", "0x1F"),
    *("x", "y", "x=", "y_1", "x^2", "+", "-", "*", "/", "=", "<", r"\le", r"\pm", ",", ";", ":", "|", "'", '"', "~", "@"),
    *("The answer is ", "Final answer: ", "Answer: ", "#### ", "**", "I hope it is correct.", "so", "not ", "or", "A", "(C)", "B."),
    *("<think>", "</think>", "<answer>", "</answer>", "<result>", "</result>", "<search>", "<", "UP", "DOWN", "DONE", "knight"),
    *("\n", "\n\n", " ", "\t", "\x00", "\x1b[0m", "\u200b", "\u202e", "\ufffd", "\U0001f600", "\u0661\u0662", "\u221a2", "\u00bd"),
    *("\u2212", "\u00d7", "\u7b54\u6848\u662fC", "\u0627\u0644", "\ud7a3", "a\u0301", "{" * 60, "}" * 60, "(" * 40, "[1," * 30, "\\" * 60),
]  # fmt: skip


def texts(seed, count):
    """Texts of 1 to 24 pieces, some of them once more in a box."""
    rng = random.Random(seed)
    for _ in range(count):
        text = rng.choice(("", " ")).join(rng.choices(PIECES, k=rng.randint(1, 24)))
        yield rng.choice(("{}", "{}", r"\boxed{{{}}}", "The answer is ${}$.", "<answer>{}</answer>")).format(
            text
        )


GOLDS = [
    "18",
    r"\frac{x^2+1}{2}",
    "[-2,7]",
    "x^2+y^2=1",
    r"\{1,2,3\}",
    r"\begin{pmatrix}1\\2\end{pmatrix}",
    "x>3",
    r"\text{even}",
]


def records(name, task):
    """One record of the task, and for maths an answer of each kind."""
    record = task.records("test")[0]
    return [record | {"answer": gold} for gold in GOLDS] if name == "math" else [record]


def hardest(name, count, seed):
    """The slowest of `count` verdicts, in CPU seconds, with its text. All of them have to be verdicts."""
    task = registry.build("task", name)
    some = records(name, task)
    worst = (0.0, "")
    for index, text in enumerate(texts(f"{name} {seed}", count)):
        start = time.process_time()
        verdict = task.verify(some[index % len(some)], text)
        answer = task.answer(some[index % len(some)], text)
        worst = max(worst, (time.process_time() - start, text))
        assert isinstance(verdict, Verdict) and (answer is None or isinstance(answer, str))
        assert verdict.reason is not Reason.ERROR, text
    return worst


@pytest.mark.parametrize("name", TASKS)
def test_any_text_has_a_verdict_soon(name):
    seconds, text = hardest(name, -(-300 // len(TASKS)), seed=0)
    assert seconds < SECONDS, text


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_eighteen_thousand_texts_have_verdicts_soon(name):
    seconds, text = hardest(name, 6000 if name == "math" else -(-12_000 // (len(TASKS) - 1)), seed=1)
    print(f"{name}: slowest verdict {seconds:.2f} s of CPU")
    assert seconds < SECONDS, text


ANY_TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=12).map("".join)
SEARCH = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


@settings(SEARCH, max_examples=60)
@given(ANY_TEXT, st.sampled_from(GOLDS))
def test_any_text_at_all_is_judged_as_maths(text, gold):
    verdict = Math().verify({"answer": gold}, text)
    assert verdict.reason in (Reason.CORRECT, Reason.WRONG, Reason.UNPARSABLE)


@pytest.mark.slow
def test_two_thousand_texts_of_any_letters_are_judged_by_all():
    """With those before, twenty thousand."""
    judges = [(task, records(task.name, task)) for task in (registry.build("task", name) for name in TASKS)]
    slowest = 0.0

    @settings(SEARCH, max_examples=2000)
    @given(ANY_TEXT, st.sampled_from(judges), st.integers(0, len(GOLDS) - 1))
    def judged(text, judge, which):
        nonlocal slowest
        task, some = judge
        start = time.process_time()
        assert task.verify(some[which % len(some)], text).reason is not Reason.ERROR
        slowest = max(slowest, time.process_time() - start)

    judged()
    print(f"any letters: slowest verdict {slowest:.2f} s of CPU")
    assert slowest < SECONDS


LONG = ["\\boxed{" * 5000, "\\" * 50_000, "$" * 20_000, "{" * 50_000, "\\boxed{" + "9" * 50_000 + "}", "1 " * 30_000, "( " * 30_000,
        "answer is " * 5000, "$x$ and " * 5000, "<answer>" * 5000, "A, " * 10_000, "\\boxed{1}, " * 5000, "not " * 10_000,
        "answer is" + " " * 50_000 + "x", "answer: " + "a" * 50_000, "$x$" + " " * 50_000 + "$y$", "\n" * 50_000, "final " * 9000,
        "\\boxed{" + "\\text{a " * 300 + "}", "\\boxed{" + " " * 900 + "1}", "\\boxed{" + "1 cm " * 190 + "!}", "\\boxed{" + "a_{" * 300 + "}"]  # fmt: skip


@pytest.mark.parametrize("name", ["gsm8k", "math", "multiple_choice", "question_answering"])
def test_a_long_text_is_judged_soon_too(name):
    task = registry.build("task", name)
    record = task.records("test")[0]
    start = time.process_time()
    for text in LONG:
        assert not task.verify(record, text).correct
    assert time.process_time() - start < SECONDS


SAME_EVERYWHERE = [
    ("18", r"\boxed{9+9}", Reason.CORRECT),
    (r"\frac{1}{2}", r"\boxed{0.5}", Reason.CORRECT),
    ("(0,1]", r"\boxed{0 < x \le 1}", Reason.CORRECT),
    ("x^2+1", r"\boxed{x^2-1}", Reason.WRONG),
    ("18", r"\boxed{9^{9^{9}}}", Reason.UNPARSABLE),
]


def test_the_same_verdict_in_a_thread_an_event_loop_and_a_process():
    """SIGALRM, which math-verify's own time limits are, works in none of them."""
    task = Math()

    def here():
        return [task.verify({"answer": gold}, text).reason for gold, text, _ in SAME_EVERYWHERE]

    async def judged():
        return here(), await asyncio.to_thread(here)

    expected = [reason for *_, reason in SAME_EVERYWHERE]
    assert here() == expected
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert [f.result() for f in [pool.submit(here) for _ in range(4)]] == [expected] * 4
    assert asyncio.run(judged()) == (expected, expected)
    with judging(task, workers=1, deadline=20.0) as judge:
        asked = [judge.submit({"answer": gold}, text) for gold, text, _ in SAME_EVERYWHERE]
        assert [verdict.reason for verdict in judge.verdicts(asked)] == expected
