"""Warnings of a run: when, how often, and with which figure; each rule at both sides of its limit."""

import math

import pytest

from rlvr_jax.train.advice import RULES, WINDOW, Watch, warnings_of


def rows(count, **figures):
    """Rows of healthy figures but for those given: a number, or a function of the step. `__` stands for `/`."""
    given = {name.replace("__", "/"): value for name, value in figures.items()}
    return [
        {
            "step": step,
            "policy/entropy": 1.0,
            "optimizer/grad_norm": 1.0,
            "optimizer/updates": 1.0,
            "loss": 0.1,
            **{name: value(step) if callable(value) else value for name, value in given.items()},
        }
        for step in range(count)
    ]


CASES = [
    (
        "collapse",
        dict(acr__all=0.31, acr__all_wrong=0.2, acr__all_right=0.1),
        dict(acr__all=0.29),
        9,
        0.31,
        "easier prompts",
    ),
    ("collapse", dict(acr__all=0.5, acr__all_right=0.4), dict(acr__all=None), 9, 0.5, "harder prompts"),
    (
        "entropy",
        dict(policy__entropy=lambda step: 2.0 if step < 10 else 0.1),
        dict(policy__entropy=lambda step: 2.0 if step < 10 else 0.21),
        19,
        0.1,
        "learning_rate",
    ),
    (
        "mismatch",
        dict(policy__kl_sampler=0.05, policy__kl_old=0.03),
        dict(policy__kl_sampler=0.05, policy__kl_old=0.045),
        9,
        0.02,
        "sampler_correction",
    ),
    ("truncation", dict(length__truncated=0.21), dict(length__truncated=0.2), 9, 0.21, "max_new_tokens"),
    ("timeouts", dict(verdict__timeout=0.02), dict(verdict__timeout=0.009), 9, 0.02, "verification.deadline"),
    ("errors", dict(verdict__error=0.02), dict(verdict__error=0.009), 9, 0.02, "memory_gb"),
    (
        "spike",
        dict(optimizer__grad_norm=lambda step: 11.0 if step == 12 else 1.0),
        dict(optimizer__grad_norm=lambda step: 10.0 if step == 12 else 1.0),
        12,
        11.0,
        "clip_norm",
    ),
    ("not_finite", dict(rollout__nonfinite=0.01), dict(rollout__nonfinite=0.0), 0, 0.01, "float32"),
    (
        "not_finite",
        dict(optimizer__grad_norm=lambda step: math.nan if step == 3 else 1.0),
        dict(optimizer__grad_norm=None, loss=None, optimizer__updates=0.0),
        3,
        0.0,
        "the grad norm is not finite",
    ),
]


@pytest.mark.parametrize("name, bad, good, step, value, words", CASES)
def test_a_rule_warns_once_beyond_its_limit_and_not_below(name, bad, good, step, value, words):
    (warned,) = warnings_of(rows(40, **bad))
    assert (warned.name, warned.step) == (name, step)
    assert warned.value == pytest.approx(value)
    assert words in str(warned)
    assert warnings_of(rows(40, **good)) == []


def test_every_rule_has_a_case():
    assert {case[0] for case in CASES} == {rule.name for rule in RULES}


def test_a_warning_comes_again_only_after_it_was_over():
    # The mean of 10 steps is above 20 % until 2 bad ones of the 10 are left.
    def cut(step):
        return 1.0 if step < 10 or 40 <= step < 50 else 0.0

    assert [w.step for w in warnings_of(rows(60, length__truncated=cut))] == [9, 42]
    # A pause that is shorter than the window does not make it a new one.
    assert len(warnings_of(rows(60, rollout__nonfinite=lambda step: float(step % WINDOW == 0)))) == 1
    assert len(warnings_of(rows(60, rollout__nonfinite=lambda step: float(step % (WINDOW + 1) == 0)))) == 6


def test_active_counts_those_that_are_not_over():
    watch, seen = Watch(), []
    for row in rows(16, rollout__nonfinite=lambda step: float(step == 3), verdict__error=0.5):
        watch.add(row)
        seen.append(watch.active)
    assert seen == [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1]


def test_what_is_not_finite_and_what_metrics_jsonl_has_for_it_are_the_same():
    values = [math.nan, math.inf, None]
    found = [warnings_of(rows(12, optimizer__grad_norm=lambda s, v=v: v if s == 4 else 1.0)) for v in values]
    assert found[0] == found[1] == found[2] != []
