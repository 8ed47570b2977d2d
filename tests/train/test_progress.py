"""What is shown of a run, on a terminal and in a log file."""

import io

from rich.console import Console

from rlvr_jax.train.progress import TrainProgress, duration, figures, phases

METRICS = {
    "reward/mean": 0.31234,
    "reward/correct": 0.31,
    "acr/all": 0.25,
    "policy/entropy": 1.2,
    "policy/kl_old": 1.2e-3,
    "policy/clip_fraction": 0.004,
    "length/mean": 38.25,
    "optimizer/grad_norm": 0.512,
    "time/tokens_per_second": 12345.6,
    "time/sample": 0.81,
    "time/update": 1.2,
    "time/step": 2.1,
    "not/shown": 1.0,
}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run(console, steps, seconds, **kwargs):
    clock = Clock()
    with TrainProgress("f_grpo", steps, console=console, clock=clock, **kwargs) as progress:
        for _ in range(steps - progress.done):
            clock.now += seconds
            progress.update(METRICS)
    return progress


def test_the_figures_of_a_step():
    assert figures(METRICS) == {
        "reward": "0.312",
        "pass": "31.0%",
        "ACR": "25.0%",
        "entropy": "1.200",
        "KL old": "1.2e-03",
        "clip": "0.4%",
        "length": "38.2",
        "grad": "0.51",
        "tokens/s": "12,346",
    }
    assert phases(METRICS) == {"sample": "0.81s", "update": "1.20s"}


def test_what_was_not_measured_is_left_out_and_what_has_no_value_is_a_dash():
    assert figures({"policy/kl_ref": float("nan")}) == {"KL ref": "-"}


def test_figures_that_are_too_wide_for_a_terminal_go_on_a_second_row_and_warnings_are_counted():
    out = io.StringIO()
    console = Console(file=out, width=58, force_terminal=True, color_system=None)
    with TrainProgress("f_grpo", 1, console=console) as progress:
        progress.update(METRICS, warnings=2)
    end = out.getvalue().split("1/1")[-1].splitlines()
    assert [word for line in end[1:5] for word in line.split()] == [
        *"reward pass ACR entropy KL old clip length 0.312 31.0% 25.0% 1.200 1.2e-03 0.4% 38.2".split(),
        *"grad tokens/s 0.51 12,346".split(),
    ]
    assert "2 warnings" in out.getvalue()
    assert "  1 warning  0:00 left" in progress.line(METRICS, warnings=1)


def test_without_a_terminal_lines_are_printed_now_and_then():
    out = io.StringIO()
    run(Console(file=out, width=40), steps=10, seconds=4.0, interval=10.0)
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/10", "4/10", "7/10", "10/10"]
    assert lines[0] == (
        "f_grpo 1/10  reward 0.312  pass 31.0%  ACR 25.0%  entropy 1.200  KL old 1.2e-03  clip 0.4%  length 38.2  "
        "grad 0.51  tokens/s 12,346  sample 0.81s  update 1.20s  0:36 left"
    )


def test_on_a_terminal_bar_and_figures_are_shown():
    out = io.StringIO()
    run(Console(file=out, width=100, force_terminal=True, color_system=None), steps=3, seconds=1.0)
    end = out.getvalue().split("3/3")[-1]
    assert "0:00 left" in end
    for text in (*figures(METRICS).items(), "sample 0.81s  update 1.20s"):
        assert all(word in end for word in ([text] if isinstance(text, str) else text))


def test_a_resumed_run_starts_where_it_was():
    out = io.StringIO()
    run(Console(file=out), steps=10, seconds=1.0, done=8, interval=0.0)
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["9/10", "10/10"]


def test_the_time_left_does_not_suffer_from_the_first_steps_compilation():
    clock = Clock()
    progress = TrainProgress("t", 103, console=Console(file=io.StringIO()), clock=clock)
    for seconds in (60.0, 2.0, 2.0):
        clock.now += seconds
        progress.update({})
    assert progress.seconds_left == 200.0


def test_durations():
    assert [duration(s) for s in (0.0, 3.4, 59.6, 123.0, 3723.0)] == [
        "0:00",
        "0:03",
        "1:00",
        "2:03",
        "1:02:03",
    ]
