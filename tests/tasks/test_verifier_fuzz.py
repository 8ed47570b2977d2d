"""Every task's verifier on texts such as models write when they go astray: always a verdict, always soon."""

import asyncio
import concurrent.futures
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings
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
SEARCH = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)

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


BATCH = 10
DRAWN = st.lists(
    st.text(min_size=1, max_size=8) | st.text(min_size=8, max_size=24), min_size=BATCH, max_size=BATCH
)
"""A batch at once, each text one draw: hypothesis takes longer to draw than most verifiers take to judge."""
FRAMES = ("{}", "{}", r"\boxed{{{}}}", "The answer is ${}$.", "<answer>{}</answer>")


def spelled(drawn, glue):
    """The first 256 letters, of which hypothesis draws four in five, stand for pieces, the others for themselves."""
    return glue.join(PIECES[ord(c) % len(PIECES)] if ord(c) < 256 else c for c in drawn)


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


def hardest(name, count):
    """The slowest of `count` verdicts, in CPU seconds, with its text. All of them have to be verdicts."""
    task = registry.build("task", name)
    some = records(name, task)
    judged, worst = 0, (0.0, "")

    # One seed for each task, so that no two of them see the same texts.
    @seed(name)
    @settings(SEARCH, max_examples=-(-count // BATCH))
    @given(DRAWN, st.sampled_from(FRAMES), st.sampled_from(("", " ")))
    def judge(drawn, frame, glue):
        nonlocal judged, worst
        for text in (frame.format(spelled(each, glue)) for each in drawn):
            record = some[judged % len(some)]
            start = time.process_time()
            verdict, answer = task.verify(record, text), task.answer(record, text)
            worst = max(worst, (time.process_time() - start, text))
            assert isinstance(verdict, Verdict) and (answer is None or isinstance(answer, str))
            assert verdict.reason in (Reason.CORRECT, Reason.WRONG, Reason.UNPARSABLE), text
            judged += 1

    judge()
    assert judged >= count
    return worst


@pytest.mark.parametrize("name", TASKS)
def test_any_text_has_a_verdict_soon(name):
    seconds, text = hardest(name, 80 if name == "math" else 30)
    assert seconds < SECONDS, text


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_twenty_thousand_texts_have_verdicts_soon(name):
    seconds, text = hardest(name, 6000 if name == "math" else -(-14_000 // (len(TASKS) - 1)))
    print(f"{name}: slowest verdict {seconds:.2f} s of CPU")
    assert seconds < SECONDS, text


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
