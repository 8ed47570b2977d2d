"""Maths answers against references: which are the same, where they stand, how the records are read."""

import json
import time

import pytest

from rlvr_jax import registry
from rlvr_jax.rollout.workers import Prepares
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.expressions import LARGEST_POWER_OF_TEN, is_bounded, read
from rlvr_jax.tasks.final_answer import after_hashes, after_reasoning, boxed, final_answer
from rlvr_jax.tasks.latex import canonical, number, plain
from rlvr_jax.tasks.maths import Math
from rlvr_jax.tasks.records import RecordError
from rlvr_jax.tasks.splits import SAMPLES


def verdict(gold, completion, **record):
    return Math().verify({"answer": gold, **record}, completion).reason


RIGHT = [
    ("7425000", "7 425 000"),
    ("1000.99", "1 000,99"),
    ("1000.99", "$1000.99 whatever"),
    ("1000.99", "so the number is 10 which is 1,000.99\u20ac"),
    ("-10/9", r"-\frac{10}{9}"),
    (r"$\{1,2\}$", r"$\{2,1\}$"),
    (r"$28\%$", "0.28"),
    (r"$28\%$", "$28$ pct"),
    ("$1/3$", r"$\frac{1}3 $"),
    ("$1/3$", r"$\frac1{3}$"),
    ("3", r"\boxed{3.0}"),
    (r"\frac{1}{2}", r"\boxed{0.5}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    (r"2\sqrt{3}", r"\boxed{3.464}"),
    (r"(1,2)\cup(3,4)", r"\boxed{(3,4)\cup(1,2)}"),
    (r"x\le 3", r"\boxed{(-\infty,3]}"),
    (r"(-\infty,3]", r"\boxed{x\le 3}"),
    (r"1\frac{1}{2}", r"\boxed{1.5}"),
    (r"\frac{3}{2}", r"\boxed{1 \frac{1}{2}}"),
    (r"\frac{3}{2}", r"\boxed{1 1/2}"),
    ("5", r"\boxed{x=5}"),
    ("x=5", r"\boxed{5}"),
    ("90", r"\boxed{90^\circ}"),
    (r"90^\circ", r"\boxed{90 \text{ degrees}}"),
    (r"90^\circ", r"\boxed{90 degrees}"),
    ("10", r"\boxed{10 \text{ cm}^2}"),
    ("10", r"\boxed{10 cm^2}"),
    ("10", r"\boxed{10 m^2}"),
    (r"10\text{ m}^2", r"\boxed{10}"),
    ("50", r"\boxed{50\%}"),
    ("0.5", r"\boxed{50\%}"),
    (r"50\%", r"\boxed{0.5}"),
    (r"50\%", r"\boxed{\frac12}"),
    (r"\text{even}", r"\boxed{even}"),
    (r"\text{even}", r"\boxed{\text{Even}}"),
    (r"\text{(A)}", r"\boxed{A}"),
    ("A", r"\boxed{\textbf{(A)}}"),
    ("C", "The answer is (C)."),
    ("1,000,000", r"\boxed{1000000}"),
    ("1000000", r"\boxed{1,000,000}"),
    ("1000000", r"\boxed{10^6}"),
    ("2,3", r"\boxed{3,2}"),
    ("2,3", r"\boxed{2 \text{ and } 3}"),
    ("2,3", r"\boxed{\{2,3\}}"),
    ("2,3", r"\boxed{x=2 \text{ or } x=3}"),
    (r"\pm 2", r"\boxed{2,-2}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{bmatrix}1\\2\end{bmatrix}}"),
    ("(x+1)^2", r"\boxed{x^2+2x+1}"),
    ("2^{10}", r"\boxed{1024}"),
    ("5!", r"\boxed{120}"),
    (r"\binom{5}{2}", r"\boxed{10}"),
    ("3+4i", r"\boxed{4i+3}"),
    ("-5+12i", r"\boxed{(2+3i)^2}"),
    ("y=2x+1", r"\boxed{2x-y+1=0}"),
    ("y=2x+1", r"\boxed{2x+1}"),
    (r"\$5", r"\boxed{5 \text{ dollars}}"),
    ("12:30", r"\boxed{12:30 \text{ pm}}"),
    ("3:4", r"\boxed{\frac34}"),
    ("1011_2", r"\boxed{1011}"),
    (r"\infty", r"\boxed{\infty}"),
    (r"\text{all real numbers}", r"\boxed{\text{all real numbers}}"),
    (r"\frac{\pi}{2}", r"\boxed{\pi/2}"),
    (r"\frac{\pi}{2}", r"\boxed{1.5708}"),
    ("e^2", r"\boxed{e^2}"),
    ("0", r"\boxed{0}"),
    ("0", r"\boxed{-0}"),
    ("7", "Therefore the final answer is 7. I hope it is correct."),
    ("7", "#### 7"),
    ("7", "The answer is 8. #### 7"),
    ("7", "<answer>7</answer>"),
    ("7", r"<answer>\boxed{7}</answer>"),
    ("7", r"maybe \boxed{8}. No wait. \boxed{7}"),
    ("7", "**Answer:** 7"),
    ("7", "Answer: $7$ apples"),
    ("7", r"<think>hm</think>\boxed{7}"),
    ("7", "So x = 7"),
    (r"\frac13", r"\boxed{0.3333}"),
    (r"\frac13", r"\boxed{0.33333333}"),
    (r"\sqrt{2}", r"\boxed{1.4142}"),
    (r"\pi", r"\boxed{3.1416}"),
    ("2x+3", r"\boxed{3+2x}"),
    ("a^2-b^2", r"\boxed{(a-b)(a+b)}"),
    (r"\sin^2 x", r"\boxed{1-\cos^2 x}"),
    (r"\log_2 8", r"\boxed{3}"),
    (r"\frac{1}{\sqrt{2}}", r"\boxed{\frac{\sqrt2}{2}}"),
    ("|x|", r"\boxed{\sqrt{x^2}}"),
    ("[1,2]", r"\boxed{1\le x\le 2}"),
    ("(1,2)", r"\boxed{1<x<2}"),
    ("(1,2)", r"\boxed{x=1,y=2}"),
    (r"6\text{ and }8", r"\boxed{8, 6}"),
    (r"15\mbox{ cm}^2", r"\boxed{15}"),
    (r"\text{Thursday}", "Thursday"),
    (r"\text{Thursday}", "The answer is Thursday."),
    (r"\text{Thursday}", "It falls on a Friday, so the answer is Thursday."),
    (r"4.5\times10^{3}", r"\boxed{4500}"),
    (r"\frac{3}{4}", r"\boxed{.75}"),
    ("16", r"\boxed{2^4}"),
    (r"\frac{a}{b}", r"\boxed{a/b}"),
    ("1", r"\boxed{\sin^2 x+\cos^2 x}"),
    ("36", r"\boxed{\text{36 square units}}"),
    ("-3", "\\boxed{\u22123}"),
    (r"\sqrt3", "\\boxed{\u221a3}"),
    ("x^2", "\\boxed{x\xb2}"),
    ("4", "$2+2=4$"),
    ("4", "We get $2+2=4$, as required."),
    ("8", "The answer is $2^3$"),
    ("-2", "x = - 2"),
    ("(3,-1)", r"\boxed{(x,y)=(3,-1)}"),
    ("(3,-1)", r"\boxed{x=3,\ y=-1}"),
    (r"\frac{5}{3}", r"\boxed{1.\overline{6}}"),
    ("1.6", r"\boxed{1.6\text{ miles}}"),
    ("17", r"\boxed{\textbf{17}}"),
    ("10:00", r"\boxed{10:00}"),
    ("2/3", r"\boxed{\frac{4}{6}}"),
    ("120", r"\boxed{120 mph}"),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{2}\text{ hour}}"),
    ("1", "1."),
    ("12", "Answer: 12."),
    ("12", "12 is the answer"),
    ("12", "**12**"),
    ("12", r"$\mathbf{12}$"),
    ("12", r"Answer: \boxed{12}."),
    ("5", "The value is $x=5$."),
    ("1", r"\boxed{1} \text{ or } \boxed{1}"),
    (r"$3.6 \mathrm{~km}$", r"$\boxed{3.6}$"),
    (r"$10 \mathrm{~km} / \mathrm{h}$", r"\boxed{10}"),
    (r"$10 \text{ km/h}$", r"\boxed{10}"),
    ("$108 dm^{2}$", "$108$"),
    (r"$108 \mathrm{dm}^{2}$", r"\boxed{108}"),
    ("$33.6$ yuan", r"\boxed{33.6}"),
    (r"$50^{\circ} \mathrm{C}$", r"\boxed{50}"),
    (r"$10\frac{2}{3}$ hours", r"\boxed{\frac{32}{3}}"),
    (r"$\text{two days and eight hours}$", r"$\boxed{\text{two days and eight hours}}$"),
    (r"$x \in (-\infty, 0]$", r"\boxed{(-\infty,0]}"),
    ("$a<0$", r"\boxed{(-\infty,0)}"),
    ("$4:1:2$", r"\boxed{4:1:2}"),
    (r"$1.2 \times 10^3$", r"\boxed{1200}"),
    (r"$1.2 \times 10^3$", "1.2e3"),
    (r"\frac{\sqrt{3}+1}{2}", r"\boxed{\frac{1}{2}+\frac{\sqrt{3}}{2}}"),
    (r"2\pi", "\\boxed{2\u03c0}"),
    (r"\{x \mid x > 3\}", r"\boxed{\{x \mid x > 3\}}"),
    (r"\{x \mid x > 3\}", r"\boxed{(3,\infty)}"),
    (r"(3,\infty)", r"\boxed{\{x \mid x > 3\}}"),
    ("x>3", r"\boxed{\{x : x > 3\}}"),
    (r"\mathbb{R}", r"\boxed{(-\infty,\infty)}"),
    (r"(-\infty,\infty)", r"\boxed{\mathbb{R}}"),
    (r"\emptyset", r"\boxed{\varnothing}"),
    (r"\text{no solution}", r"\boxed{\text{No solution}}"),
    (r"x \ne 2", r"\boxed{x \neq 2}"),
    (r"(-\infty,2)\cup(2,\infty)", r"\boxed{x \neq 2}"),
    ("1 < x < 3", r"\boxed{x \in (1,3)}"),
    ("1 < x < 3", r"\boxed{3 > x > 1}"),
    (r"x<1 \text{ or } x>3", r"\boxed{(-\infty,1)\cup(3,\infty)}"),
    (r"(-\infty,1)\cup(3,\infty)", r"\boxed{x<1 \text{ or } x>3}"),
    (r"y=\frac{1}{2}x+3", r"\boxed{x-2y+6=0}"),
    ("f(x)=x^2", r"\boxed{x^2}"),
    ("f(x)=x^2", r"\boxed{f(x)=x^2}"),
    ("a_n=2n-1", r"\boxed{2n-1}"),
    (r"-\frac{1}{2}", r"\boxed{\frac{-1}{2}}"),
    (r"-\frac{1}{2}", r"\boxed{-0.5}"),
    (r"\frac{-1}{2}", r"\boxed{-1/2}"),
    (r"3\frac{1}{4}", r"\boxed{\frac{13}{4}}"),
    ("10", r"\boxed{10.0}"),
    (r"100\%", r"\boxed{100}"),
    ("25%", r"\boxed{\frac{1}{4}}"),
    (r"\frac{1}{4}", r"\boxed{25\%}"),
    ("2,4", r"\boxed{(2,4)}"),
    ("(2,4)", r"\boxed{2,4}"),
    (r"2 \text{ and } 4", r"\boxed{x_1=2, x_2=4}"),
    ("A", "The answer is A"),
    (r"\text{B}", "Answer: B"),
    ("D", r"\boxed{\text{(D)}}"),
    ("-1", r"\boxed{\text{-1}}"),
    ("7", "The answer is 7 (seven)."),
    ("7", r"answer is \(7\)."),
    ("7", r"\[x=7\]"),
    ("7", "\\[\n\\boxed{7}\n\\]"),
    ("x^2-1", "$$ (x-1)(x+1) $$"),
    (r"\frac{1}{3}", "1/3"),
    (r"\frac{1}{3}", r"$0.\overline{3}$"),
    (r"\frac{1}{3}", r"0.\dot{3}"),
    (r"0.\overline{27}", r"\boxed{\frac{3}{11}}"),
    (r"\sqrt[3]{2}", r"\boxed{2^{1/3}}"),
    (r"\sqrt[3]{2}", r"\boxed{2^{\frac13}}"),
    (r"\ln 2", r"\boxed{\ln(2)}"),
    (r"e^{i\pi}", r"\boxed{-1}"),
    ("i", r"\boxed{\sqrt{-1}}"),
    (r"\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}", r"\boxed{\begin{pmatrix} 0.5 \\ 3 \end{pmatrix}}"),
    (r"\langle 1,2\rangle", r"\boxed{(1,2)}"),
    (r"\vec{i}+2\vec{j}", r"\boxed{\vec{i}+2\vec{j}}"),
    ("20!", r"\boxed{20!}"),
    (r"\frac{5!}{2}", r"\boxed{60}"),
    (r"\sin\frac{\pi}{6}", r"\boxed{\frac12}"),
    (r"\tan^{-1}(1)", r"\boxed{\arctan 1}"),
    ("2^{n+1}", r"\boxed{2\cdot 2^n}"),
    ("n(n+1)/2", r"\boxed{\frac{n^2+n}{2}}"),
    (r"\binom{n}{2}", r"\boxed{\frac{n(n-1)}{2}}"),
    (r"\lfloor n/2\rfloor", r"\boxed{\lfloor \frac{n}{2}\rfloor}"),
    ("p=5,q=2", r"\boxed{(5,2)}"),
    ("(5,2)", r"\boxed{p=5, q=2}"),
    ("x=1,y=2", r"\boxed{y=2,x=1}"),
    ("1 and 2", r"\boxed{2, 1}"),
    ("Yes", r"\boxed{\text{yes}}"),
    (r"\text{True}", "true"),
    ("6", r"\boxed{6 \text{ (mod } 7)}"),
    ("3", r"\boxed{3 \pmod{7}}"),
    ("5", r"$\boxed5$"),
    ("5", r"\boxed 5"),
    ("05", r"\boxed{5}"),
    ("1,2,3", "1, 2, 3"),
    ("1;2;3", r"\boxed{1,2,3}"),
    (r"\$1.50", r"\boxed{1.5}"),
    ("1.50", r"\$1.50"),
    (r"12 \text{ cm}", "12cm"),
    ("12", r"12\,\text{cm}"),
    ("12", r"\boxed{12\, \mathrm{cm^2}}"),
    ("12", r"\boxed{12\ \mathrm{units}}"),
    (r"36\pi", r"\boxed{36\pi \text{ cm}^3}"),
    (r"36\pi", r"\boxed{36\pi\ \text{square units}}"),
    (r"2\sqrt{5}", r"\boxed{2\sqrt{5} \text{ units}}"),
    (r"2\sqrt{5}", r"\boxed{2\sqrt{5} units}"),
    ("x+y", r"\boxed{y+x}"),
    ("x y", r"\boxed{yx}"),
    (r"\frac12", r"\boxed{\frac{1}{2}}. This is it."),
    ("7", "**Final Answer**: 7"),
    ("7", "Final answer\n\n7"),
    ("7", "### Final Answer\n$7$"),
]
"""Reference and answer; some of them were false negatives of checkers in use."""

WRONG = [
    ("$(1,2)$", "$(2,1)$"),
    ("$[0,1)$", "$[0,1]$"),
    (r"2\sqrt{3}", r"\boxed{3.46}"),
    ("x=5", r"\boxed{y=5}"),
    ("50", r"\boxed{0.5}"),
    (r"\text{even}", r"\boxed{\text{odd}}"),
    ("A", r"\boxed{B}"),
    ("2,3", r"\boxed{2}"),
    ("2", r"\boxed{2,3}"),
    ("2", r"\boxed{-2}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}2\\1\end{pmatrix}}"),
    ("(x+1)^2", r"\boxed{x^2+1}"),
    ("11", r"\boxed{1011_2}"),
    ("1011_2", r"\boxed{1011_3}"),
    (r"\frac{\pi}{2}", r"\boxed{90^\circ}"),
    ("7", r"\boxed{7} or \boxed{8}"),
    ("7", "The answer is seven"),
    ("7", r"<think>\boxed{7}"),
    ("0.333", r"\boxed{1/3}"),
    (r"\frac13", r"\boxed{0.333}"),
    (r"\frac13", r"\boxed{0.3334}"),
    ("14", r"\boxed{14.0000001}"),
    ("3.14", r"\boxed{\pi}"),
    (r"\pi", r"\boxed{3.14}"),
    ("2x+3", r"\boxed{2y+3}"),
    ("x", r"\boxed{|x|}"),
    ("3", r"\boxed{3\text{ or }4}"),
    ("5", r"\boxed{5x}"),
    ("5x", r"\boxed{5}"),
    ("10", "ten"),
    ("0.25", r"\boxed{25}"),
    ("(2,4)", r"\boxed{(4,2)}"),
    ("[2,4]", r"\boxed{(2,4)}"),
    (r"\ln 2", r"\boxed{\log 2}"),
    (r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}", r"\boxed{I}"),
    ("3", "Answer is 3 apples and 4 oranges"),
]
"""The same; some of them were false positives."""


@pytest.mark.parametrize("gold, completion", RIGHT)
def test_the_same_answer(gold, completion):
    assert verdict(gold, completion) is Reason.CORRECT


@pytest.mark.parametrize("gold, completion", WRONG)
def test_another_answer_or_none(gold, completion):
    assert verdict(gold, completion) in (Reason.WRONG, Reason.UNPARSABLE)


@pytest.mark.parametrize(
    "text, answer",
    [
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"$x = \boxed{1}$, $y_2 = \boxed{2}$", "1, 2"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1}. So \boxed{1}", "1"),
        (r"\boxed{3}, \boxed{3}", "3"),
        (r"\boxed{\frac{1}{2}} so", r"\frac{1}{2}"),
        (r"\fbox {7}", "7"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{}", ""),
        (r"\boxed{200}. Final Answer: The final answer is $10,455$. I hope it is correct.", "10,455"),
        (r"\boxed{5} is the answer. The answer is in the box.", "5"),
        ("The answer is 8.\n#### 7 apples\nDone", "7 apples"),
        ("Answer: $1$, $2$ and $3$.", "1, 2, 3"),
        ("The answer is $3$. The answer is $4$ now.", "4"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("The answer is 10, not 11.", "10"),
        ("The solutions are $x=1$ and $x = 2$.", "x=1, x = 2"),
        ("It costs $5 for $x$ apples", "x"),
        ("So we have 3 + 4 = 7 birds, and 2/3 of them fly", "2/3"),
        (r"\frac{3}{4}", r"\frac{3}{4}"),
        ("<think>\\boxed{1}</think> It is <answer>2</answer>.", "2"),
        ("<think>\\boxed{1}", None),
        ("I do not know at all.", None),
        ("", ""),
        (r"\boxed{" + "1" * 2000 + "}", None),
    ],
)
def test_where_the_final_answer_is(text, answer):
    assert final_answer(text) == answer


def test_pieces_of_a_text():
    assert after_reasoning("a</think>b") == "b" and after_reasoning("a") == "a"
    assert after_reasoning("<think>a</think><think>b") is None
    assert after_hashes("x #### 1\n2") == "1" and after_hashes("####") == "" and after_hashes("1") is None
    assert boxed("none") is None
    assert plain(r"\left( \dfrac12 ,\, x \right)") == r"( \frac{1}{2} , x )"
    assert str(number("-1,234.50")) == "-2469/2" and number("1,23") is None and number("2x") is None
    assert canonical(r"\frac{2}{4}") == canonical("0.50") == "0.5"
    assert canonical(r"\frac{1}{3}") == "1/3" and canonical(r"x + \frac12") == r"x+\frac12"


@pytest.mark.parametrize(
    "expression",
    [
        "9^{9^{9}}",
        "9^9^9",
        "9**9**9**9",
        "99999999!",
        "9!!!",
        "(((9!)!)!)!",
        r"\sum_{k=1}^{99999999} k",
        r"\int_0^1 e^{x^2} dx",
        r"\binom{99999999}{5555555}",
        r"\Gamma(999999)",
        "(" * 30 + "1" + ")" * 30,
        "1+" * 160 + "1",
        "(a+b+c+d+e)^{99}",
        r"\tan x + \sin x = x^2",
        r"1 < x^3 + \cos x < 2",
        r"\{" + ",".join(map(str, range(90))) + r"\}",
        r"e^{e^{e^{e^{9}}}}",
    ],
)
@pytest.mark.parametrize("gold", ["18", "[-2,7]", r"(x+1)^2"])
def test_an_expression_that_would_never_end_is_not_evaluated(expression, gold):
    start = time.process_time()
    assert verdict(gold, rf"\boxed{{{expression}}}") in (Reason.WRONG, Reason.UNPARSABLE)
    assert (
        time.process_time() - start < 2
    )  # SymPy needs hours for some of these; the parser's first call is in here too


def test_what_is_too_large_is_right_where_it_is_written_alike():
    assert verdict("9^{9^{9}}", r"\boxed{9^{9^9}}") is Reason.CORRECT
    assert verdict("9^{9^{9}}", r"\boxed{9^{9^8}}") is Reason.UNPARSABLE
    assert verdict(r"\sum_{k=1}^{n} k a_k", r"\boxed{\sum_{k=1}^n a_k k}") is Reason.CORRECT
    assert verdict(r"\sum_{k=1}^{n} k", r"\boxed{\sum_{k=1}^{m} k}") is Reason.WRONG
    assert (
        is_bounded(read(f"10^{{{LARGEST_POWER_OF_TEN - 1}}}"))
        and read(f"10^{{{LARGEST_POWER_OF_TEN + 1}}}") is None
    )


def test_inequalities_turn_round_with_the_sign_of_the_factor():
    assert verdict("2x < 6", r"\boxed{-x > -3}") is Reason.CORRECT
    assert verdict("2x < 6", r"\boxed{-x < -3}") is Reason.WRONG
    assert verdict("2x < 6", r"\boxed{x \le 3}") is Reason.WRONG
    assert verdict(r"\sqrt{x} > y", r"\boxed{2\sqrt{x} > 2y}") is Reason.CORRECT
    assert verdict(r"\sqrt{x} > y", r"\boxed{i\sqrt{x} > iy}") is Reason.WRONG


def test_each_sample_is_small_and_its_licence_is_told():
    licences = (SAMPLES / "LICENSES.md").read_text(encoding="utf-8")
    for name in ("gsm8k", "math", "multiple_choice", "question_answering"):
        assert f"\n## {name}\n" in licences
        assert sum(path.stat().st_size for path in (SAMPLES / name).iterdir()) <= 60 * 1024


def test_a_reference_that_cannot_be_read_gives_no_reward():
    for gold in ("", r"\frac{1}{", r"\text{all} > )"):
        judged = Math().verify({"answer": gold}, r"\boxed{7}")
        assert (judged.reward, judged.correct, judged.reason) == (None, False, Reason.ERROR)
        assert verdict(gold, r"\boxed{}") is Reason.UNPARSABLE
    assert verdict(r"\frac{1}{", r"The answer is $\frac{1}{$.") is Reason.CORRECT


@pytest.mark.parametrize(
    "tolerance, gold, answer, reason",
    [
        ([0.1], "5", "5.05", Reason.CORRECT),
        ([0.1], "5", "5.2", Reason.WRONG),
        ([0.1], r"\sqrt{2}", "1.5", Reason.CORRECT),
        ([1e34, 1e-3], r"7 \times 10^{35}, 0.002", r"7.1 \times 10^{35}, 0.001", Reason.CORRECT),
        ([1e33], r"7 \times 10^{35}", r"7.1 \times 10^{35}", Reason.WRONG),
        ([0.1], "x", "x+0.05", Reason.WRONG),
    ],
)
def test_a_tolerance_is_absolute_and_of_numbers(tolerance, gold, answer, reason):
    assert verdict(gold, rf"\boxed{{{answer}}}", tolerance=tolerance) is reason


def test_the_real_files_are_read_and_their_own_answers_are_right(shared):
    data = shared / "data"
    files = {
        "math_train/train.jsonl.gz": 7500,
        "aime/aime24.jsonl": 30,
        "amc23/test.jsonl": 40,
        "olympiadbench/test.jsonl": 675,
        "math500/test.jsonl": 500,
    }
    for name, count in files.items():
        task = Math(test_path=str(data / name))
        records = task.records("test")
        assert len(records) == len({r["id"] for r in records}) == count
        for record in records[:: max(1, count // 30)]:
            assert task.verify(record, task.demonstration(record)).correct or not record["answer"], record
    solved = Math(test_path=str(data / "math500")).records("test")[:150:3]
    assert sum(Math().verify(r, r["solution"]).correct for r in solved) == len(solved) == 50


def test_the_sample_and_the_prompt():
    task = registry.build("task", "math")
    train, test = task.records("train"), task.records("test")
    assert (len(train), len(test)) == (128, 64) and not {r["id"] for r in train} & {r["id"] for r in test}
    assert task.prompt({"question": "1+1?", "answer": "2"}) == [
        {"role": "user", "content": "1+1?\n\nThink step by step and put the final answer in \\boxed{}."}
    ]
    assert (
        task.answer({}, r"So \boxed{\frac{4}{2}}.") == "2" and task.answer({}, "none at all, I fear") is None
    )
    assert task.demonstration({"answer": "2", "solution": "It is 1+1."}) == "It is 1+1.\n\\boxed{2}"


@pytest.mark.parametrize("name", ["math", "gsm8k"])
def test_a_worker_loads_the_verifier_before_its_clock_runs(name):
    task = registry.build("task", name)
    assert isinstance(task, Prepares) and task.processes > 0
    task.prepare()
    assert read.cache_info().currsize > 0


def write(folder, *lines):
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_fields_of_other_data_sets(tmp_path):
    olympiad = {"question": "Q", "answer": ["$1$,$2$", "$3$"], "error": "1e-1,0.2", "context": "Let x be."}
    path = write(tmp_path, olympiad, {"id": 7, "problem": "P", "answer": 5, "solution": "S"})
    assert Math(path=str(path)).records("train") == [
        {"id": "math-train-0", "question": "Let x be.\nQ", "answer": "$1$,$2$, $3$", "tolerance": [0.1, 0.2]},
        {"id": "7", "question": "P", "answer": "5", "solution": "S"},
    ]
    with pytest.raises(RecordError) as error:
        Math(path=str(path)).records("test")
    assert str(error.value) == f"path={str(path)!r} is one file, of training records: set test_path too."


@pytest.mark.parametrize(
    "line, message",
    [
        ({"answer": "1"}, "there is no text in 'problem' or 'question', but None."),
        ({"problem": " ", "answer": "1"}, "there is no text in 'problem' or 'question', but ' '."),
        ({"problem": "p", "answer": None}, "field 'answer' is None; it has to be a number or LaTeX."),
        ({"problem": "p", "answer": "1", "error": "big"}, "field 'error' is 'big'; it has to be a number."),
    ],
)
def test_a_record_that_is_no_problem_is_named(tmp_path, line, message):
    path = write(tmp_path, {"problem": "p", "answer": "1"}, line)
    with pytest.raises(RecordError) as error:
        Math(path=str(path)).records("train")
    assert str(error.value) == f"{path}, line 2: {message}"
