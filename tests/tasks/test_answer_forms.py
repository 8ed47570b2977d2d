"""Forms of answers that checkers in use get wrong: what is decoration, what is a number, what is said to be the answer."""

import pytest

from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.gsm8k import GSM8K
from rlvr_jax.tasks.maths import Math
from rlvr_jax.tasks.multiple_choice import chosen

RIGHT = [
    # decoration
    ("5", r"\boxed{\color{red}{5}}"),
    ("42", r"\boxed{\textcolor{blue}{42}}"),
    ("5", r"\boxed{\underline{5}}"),
    ("5", r"\boxed{5\tag{1}}"),
    ("5", r"\boxed{\mathsf{5}}"),
    ("5", r"\boxed{\mathbf 5}"),
    ("5", r"\boxed{{\bf 5}}"),
    (r"\frac{\sqrt{3}}{2}", r"\boxed{\mathbf{\frac{\sqrt{3}}{2}}}"),
    ("185", "185\\"),
    ("5", r"\boxed{=5}"),
    ("3", r"\boxed{\sim 3}"),
    ("5", r"\boxed{\text{The answer is }5}"),
    ("42", "42<|im_end|>"),
    (r"\frac34", r"\boxed\frac{3}{4}"),
    ("12", r"\boxed{12cm}"),
    ("10", r"\boxed{10weeks}"),
    ("9.8", r"\boxed{9.8\,\mathrm{m/s^2}}"),
    # characters
    ("1/3", "\u2153"),
    ("5/2", r"\boxed{2½}"),
    ("2/3", r"\boxed{2⁄3}"),
    ("x^4", r"\boxed{x⁴}"),
    ("10^{-3}", r"\boxed{10⁻³}"),
    ("x_1", r"\boxed{x₁}"),
    (r"\sqrt[3]{2}", r"\boxed{∛2}"),
    ("(1,2)", r"\boxed{（１，２）}"),
    ("-3", "The answer is \u20143."),
    # LaTeX
    ("10^-2", r"\boxed{0.01}"),
    (r"\binom62", r"\boxed{15}"),
    ("15", r"\boxed{{6 \choose 2}}"),
    ("2^6 3^5", r"\boxed{2^6 \cdot 3^5}"),
    ("7", r"\boxed{7 \bmod 10}"),
    ("2", r"$17 \bmod 5 = 2$"),
    (r"0.\bar{3}", r"\boxed{\frac13}"),
    (r"\frac{1\pm\sqrt{17}}{4}", r"\boxed{\frac{1-\sqrt{17}}{4}, \frac{1+\sqrt{17}}{4}}"),
    (
        r"\sum_{n=1}^\infty\frac{1}{n^2}=\frac{\pi^2}{6}",
        r"\boxed{\frac{\pi^2}{6}=\sum_{n=1}^\infty\frac{1}{n^2}}",
    ),
    # values
    (r"\cos 60^\circ", r"\boxed{\frac12}"),
    (r"\cos x", r"\boxed{\sin(90^{\circ}-x)}"),
    ("30", r"\boxed{\arcsin(0.5) = 30^\circ}"),
    (r"\frac{1}{\sqrt{n}}", r"\boxed{\sqrt{1/n}}"),
    (r"\sqrt{ab}", r"\boxed{\sqrt{a}\sqrt{b}}"),
    ("y=2x+3", r"\boxed{f(x)=2x+3}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{(1,2)}"),
    ("9004/9", "1 000 4/9"),
    ("3", r"\boxed{2\frac{3}{2}}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{[[1, 2], [3, 4]]}"),
    (r"\frac32+\frac32 i", r"\boxed{3/2 + 3/2 i}"),
    (r"2\sqrt{3}", r"\boxed{2sqrt3}"),
    ("50/3", r"\boxed{16.666666}"),
    ("-320", "work 2 then -3.2e2"),
    (r"3\sin(2x)", r"\boxed{3 sin(2x)}"),
    (r"\frac{\ln 2}{2}", r"\boxed{(ln 2)/2}"),
    # words
    ("C", r"\boxed{C. x = 42}"),
    (r"\textbf{(A) } 5", r"\boxed{A}"),
    ("True", r"\boxed{\text{Yes}}"),
    ("hello world", "<answer> Hello World </answer>"),
    # where there is no box
    (r"\frac{\sqrt{2}}{2}", r"Thus x = \frac{\sqrt{2}}{2} is the value."),
    (r"2\sqrt{3}", r"So the area is 2\sqrt{3} units."),
]

WRONG = [
    ("2", r"\boxed{2ab}"),
    ("2ab", r"\boxed{2}"),
    ("12xy", r"\boxed{12yz}"),
    (r"\frac12", r"\boxed{\frac12 abc}"),
    ("0", r"$\sum_{k=0}^n(k)$"),
    ("12", "11 6/6"),
    ("73/6", "11 7/6"),
    ("71/6", "11\n5/6"),
    ("7/2", r"\boxed{2\frac{3}{2}}"),
    (r"\ln|x|", r"\boxed{\ln x}"),
    (r"\sqrt{x^2}", r"\boxed{x}"),
    ("y=2x+3", r"\boxed{f(x)=2x+4}"),
    ("g(x)=2x+3", r"\boxed{f(x)=2x+3}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{(2,1)}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{(1,2,3,4)}"),
    (r"\frac{1\pm\sqrt{17}}{4}", r"\boxed{\frac{1+\sqrt{17}}{4}}"),
    ("50/3", r"\boxed{16.666}"),
    ("50/3", r"\boxed{16.666668}"),
    ("C", r"\boxed{D. x = 42}"),
    ("A", r"\boxed{A. B. C. D.}"),
    ("A", r"\boxed{A) B) C)}"),
    ("True", r"\boxed{\text{No}}"),
    ("2", r"\boxed{2}\boxed{}"),
    ("2", r"Thus x = \frac{\sqrt{2}}{2} is the value."),
    (r"\cos 60", r"\boxed{\frac12}"),
]


@pytest.mark.parametrize("gold, completion", RIGHT)
def test_the_same_answer_in_another_form(gold, completion):
    assert Math().verify({"answer": gold}, completion).reason is Reason.CORRECT


@pytest.mark.parametrize("gold, completion", WRONG)
def test_another_answer_in_a_like_form(gold, completion):
    assert Math().verify({"answer": gold}, completion).reason in (Reason.WRONG, Reason.UNPARSABLE)


@pytest.mark.parametrize(
    "gold, completion, correct",
    [
        ("2", "The answer is 1/2", False),
        ("2", r"The answer is $3\times 10^{2}$.", False),
        ("300", r"The answer is $3\times 10^{2}$.", True),
        ("3", "The answer is \u20133.", False),
        ("20", "He pays $5 and she pays $15, so $20.", True),
        ("1000", "In total 1{,}000", True),
        ("18", "She has 18 eggs, where $x$ is her price.", True),
    ],
)
def test_the_last_number_counts_whole(gold, completion, correct):
    assert GSM8K().verify({"answer": gold}, completion).correct is correct


@pytest.mark.parametrize(
    "text, letter",
    [
        ("The answer is a.", "A"),
        ("the answer is c", "C"),
        ("ANSWER IS b", "B"),
        ("the answer is a, b", None),
        (r"\boxed{A. B. C. D.}", None),
        (r"\boxed{B. A cat}", "B"),
        (r"\boxed{B. Vitamin C}", "B"),
        ("the answer is a, b or c.", None),
        ("Answer - b", "B"),
        ("The answer is a decrease in pressure.", None),
        ("A is correct here", "A"),
        ("\\boxed{B}\nFinal answer: D", "D"),
        ("\\boxed{\\langle H\\rangle \\ll \\Delta E}\n\n**Answer: D**", "D"),
        ("\\boxed{C}\n\nSo the answer is a straightforward use of it. Option A is not.", "C"),
        ("the answer is A\n...\nB.", "B"),
        ("A. one\nB. two\nC. three\nTherefore: B", "B"),
        ("\uff08B\uff09", "B"),
    ],
)
def test_how_a_letter_may_be_said(text, letter):
    assert chosen(text) == letter


@pytest.mark.parametrize(
    "text, options, letter",
    [
        ("The final answer is 27 minutes after all.", ["9 minutes", "27 minutes"], "B"),
        ("Definitely paris.", ["London", "Paris"], "B"),
        ("It is not Paris.", ["London", "Paris"], None),
        ("It is 11 units.", ["3", "11"], "B"),
        ("I looked at 2011 and gave up", ["3", "11"], None),
        ("It is 3/4 of it.", ["3", "4"], None),
        ("London or Paris", ["London", "Paris"], None),
    ],
)
def test_an_option_may_be_named_in_a_short_text(text, options, letter):
    assert chosen(text, options, "AB") == letter
