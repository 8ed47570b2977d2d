"""Answers between tags: <think> reasoning </think> <answer> conclusion </answer>."""

import dataclasses
import re

from rlvr_jax.tasks.base import Part, Reason, Verdict

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
ANSWER_FORMAT = (
    "Reason between <think> and </think>, then give the answer alone between <answer> and </answer>."
)


def last_answer(text: str) -> str | None:
    """What stands between the last <answer> that is closed and its </answer>; `None` where there is none."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end].strip() if start >= 0 else None


def is_well_formed(text: str) -> bool:
    """Whether the text is one <think>...</think> and then one <answer>...</answer>, white space around them apart.

    The opening <think> may be missing, since chat templates of reasoning models write it into the prompt.
    """
    stripped = text.strip()
    stripped = stripped if stripped.startswith("<think>") else f"<think>{stripped}"
    if any(stripped.count(tag) != 1 for tag in _TAGS) or not stripped.endswith("</answer>"):
        return False
    return (
        re.fullmatch(r"<think>[^<]*(?:<(?!/think>)[^<]*)*</think>\s*<answer>.*", stripped, re.DOTALL)
        is not None
    )


@dataclasses.dataclass(frozen=True)
class Points:
    """What an answer is worth for what it says, and for how it is written."""

    correct: float
    wrong: float
    unparsable: float
    well_formed: float
    ill_formed: float

    def verdict(self, reason: Reason, completion: str, format_reward: float) -> Verdict:
        """The verdict for `reason`, of which the format is a part where `format_reward`, its weight, is not 0.

        Whether an answer is correct does not depend on its format.
        """
        said = {Reason.CORRECT: self.correct, Reason.WRONG: self.wrong}.get(reason, self.unparsable)
        if not format_reward:
            return Verdict(said, reason is Reason.CORRECT, reason)
        written = self.well_formed if is_well_formed(completion) else self.ill_formed
        parts = (Part("answer", said, 1.0), Part("format", written, format_reward))
        return Verdict(said + format_reward * written, reason is Reason.CORRECT, reason, parts)


POINTS = {
    "binary": Points(correct=1.0, wrong=0.0, unparsable=0.0, well_formed=1.0, ill_formed=0.0),
    "logic_rl": Points(correct=2.0, wrong=-1.5, unparsable=-2.0, well_formed=1.0, ill_formed=-1.0),
}
"""`logic_rl`: the rewards of Logic-RL (arXiv:2502.14768), whole with a format weight of 1."""
