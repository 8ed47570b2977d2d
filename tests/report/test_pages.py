"""The report of runs: what it reads of them, what is drawn, and the page in a browser."""

import collections
import json
import pathlib
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from tiny_task import WORDS

from rlvr_jax.cli import main
from rlvr_jax.configfile import parse, to_yaml
from rlvr_jax.distributed import put
from rlvr_jax.models.tokenizer import word_tokenizer
from rlvr_jax.objective.objective import Objective
from rlvr_jax.report import answers, maps
from rlvr_jax.report.curves import gradient_norm, spikes
from rlvr_jax.report.figures import smooth
from rlvr_jax.report.heads import head, objective_name
from rlvr_jax.report.page import Section, render, sections
from rlvr_jax.report.runs import bands, configs_apart, read_runs
from rlvr_jax.rollout.collect import decode
from rlvr_jax.sharding import make_mesh, row_sharding
from rlvr_jax.train import credits
from rlvr_jax.train.credits import CreditRow, CreditWriter, credited, pieces
from rlvr_jax.train.evaluate import EVALUATIONS
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, MetricsWriter, RolloutRow, RolloutWriter, read_rows
from rlvr_jax.train.rundir import open_run
from rlvr_jax.types import BatchSpec, Rollout, Stats

GROUPS, GROUP, LENGTH = 8, 4, 6
CONFIG = {
    "steps": 3,
    "task": {"name": "maze", "size": 9},
    "sampling": {"max_new_tokens": LENGTH},
    "batch": {"prompts": GROUPS, "group_size": GROUP},
}
TOKENIZER = word_tokenizer(WORDS)


def rollout(step: int) -> Rollout:
    """Answers of which about half are right; the third token of each was not sampled by the policy."""
    random = np.random.default_rng(step)
    rows = GROUPS * GROUP
    length = random.integers(1, LENGTH + 1, rows).astype(np.int32)
    mask = (np.arange(LENGTH) < length[:, None]) & (np.arange(LENGTH) != 2)
    reward = random.integers(0, 2, rows).astype(np.float32)
    reward[:GROUP], reward[GROUP : 2 * GROUP] = 0, 1
    return Rollout(
        prompt=random.integers(3, 9, (rows, 5)).astype(np.int32),
        prompt_length=np.full(rows, 4, np.int32),
        tokens=random.integers(3, 20, (rows, LENGTH)).astype(np.int32),
        length=length,
        mask=mask.astype(np.float32),
        reward=reward,
        correct=reward,
        prompt_id=np.repeat(np.arange(GROUPS, dtype=np.int32) + GROUPS * step, GROUP),
        truncated=length == LENGTH,
    )


def taught(made: Rollout, count: int, objective: Objective) -> tuple[CreditRow, ...]:
    """What is kept of such a batch, its rows spread over 8 devices."""
    spec = BatchSpec(groups=GROUPS, group_size=GROUP, length=LENGTH, num_prompts=3 * GROUPS)
    found, _, _ = objective.credit(
        jax.tree.map(jnp.asarray, made), Stats(values={}), spec, objective.init(spec)
    )
    spread = put(found, row_sharding(make_mesh()))
    return credited(TOKENIZER, made, np.zeros(len(made.reward), int), spread, GROUP, count)


def figures(made: Rollout, step: int) -> dict[str, float]:
    """A line of metrics.jsonl."""
    groups = made.reward.reshape(-1, GROUP)
    told = {"reward/mean": made.reward.mean(), "reward/correct": made.correct.mean()}
    told |= {"verdict/correct": made.correct.mean(), "verdict/wrong": 1 - made.correct.mean()}
    told |= {"acr/all": (np.ptp(groups, axis=1) == 0).mean(), "acr/all_wrong": (groups.max(1) == 0).mean()}
    told |= {"acr/all_right": (groups.min(1) == 1).mean(), "length/mean": made.length.mean()}
    told |= {"length/truncated": made.truncated.mean(), "policy/entropy": 1 - step / 10, "loss": 0.1 * step}
    told |= {
        "policy/clip_fraction": 0.01 * step,
        "optimizer/grad_norm": 1.0 + step,
        "optimizer/learning_rate": 1e-3,
    }
    told |= {
        "time/step": 4.0 + step,
        "time/sample": 1.0,
        "time/update": 2.0,
        "time/tokens_per_second": 50.0 + step,
    }
    return {name: float(value) for name, value in told.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> pathlib.Path:
    """The directory of a run of three steps, written as training writes it."""
    folder = tmp_path_factory.mktemp("report") / "first"
    open_run(folder, to_yaml(parse(CONFIG | {"run_dir": str(folder)})))
    with (
        MetricsWriter(folder, 0) as metrics,
        RolloutWriter(folder, 0) as rollouts,
        CreditWriter(folder, 0) as credit,
    ):
        for step in range(3):
            made = rollout(step)
            metrics.write(step, figures(made, step))
            rollouts.write(step, [answer(made, i) for i in range(GROUPS * GROUP)])
            credit.write(step, taught(made, 2, Objective()))
    rate = {"value": 0.5, "low": 0.4, "high": 0.6}
    rows = [{"step": s, "pass_at_k": {"1": rate, "4": rate | {"value": 0.55 + s / 100}}} for s in (0, 3)]
    _write(folder / EVALUATIONS, rows)
    return folder


def answer(made: Rollout, i: int) -> RolloutRow:
    """A line of rollouts.jsonl."""
    texts = decode(TOKENIZER, made.tokens[i : i + 1], made.length[i : i + 1])
    right = bool(made.correct[i])
    return RolloutRow(
        prompt_id=int(made.prompt_id[i]),
        sample=int(i) % GROUP,
        prompt=decode(TOKENIZER, made.prompt[i : i + 1], made.prompt_length[i : i + 1])[0],
        completion=texts[0],
        reward=float(made.reward[i]),
        correct=right,
        reason="correct" if right else "wrong",
        length=int(made.length[i]),
        truncated=bool(made.truncated[i]),
        version=0,
    )


@pytest.fixture(scope="module")
def three(run) -> list[pathlib.Path]:
    """That run; one that differs by its seed, with larger figures; and one of another objective, 20 steps long."""
    other, longer = run.parent / "other_seed", run.parent / "another"
    for folder in (other, longer):
        shutil.copytree(run, folder)
    _change(other, seed=1)
    _change(longer, steps=20, objective={**_config(run)["objective"], "aggregate": {"name": "token_mean"}})
    rows = read_rows(run / METRICS)
    _write(other / METRICS, [row | {"reward/mean": row["reward/mean"] + 0.25} for row in rows])
    norms = [100.0 if step == 12 else 1.0 for step in range(20)]
    _write(
        longer / METRICS,
        [rows[step % 3] | {"step": step, "optimizer/grad_norm": norms[step]} for step in range(20)],
    )
    return [run, other, longer]


def _config(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())


def _change(folder, **fields):
    (folder / "config.yaml").write_text(yaml.safe_dump(_config(folder) | fields))


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- what is kept of a run ---------------------------------------------------------------------------------------


def test_what_is_kept_of_a_token_is_grpos_credit():
    """By hand: (r - mean) / (std + eps), the standard deviation that of a sample; None where the policy did not sample."""
    made = rollout(1)
    kept = taught(made, 6, Objective())
    assert len(kept) == 6 and len({row.prompt_id for row in kept}) == 3
    for best, worst in zip(kept[::2], kept[1::2], strict=True):
        assert (best.prompt_id, best.reward, worst.reward) == (worst.prompt_id, 1.0, 0.0)
    for row in kept:
        rewards = made.reward[made.prompt_id == row.prompt_id]
        wanted = (row.reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        texts = [answer(made, i) for i in np.flatnonzero(made.prompt_id == row.prompt_id)]
        assert ("".join(row.tokens), row.reward, row.prompt) in {
            (a.completion, a.reward, a.prompt) for a in texts
        }
        for t, each in enumerate(row.credit):
            assert each is None if t == 2 else each == pytest.approx(wanted, rel=6e-4)  # four digits are kept
    assert taught(made, 0, Objective()) == ()


def test_a_token_of_a_pass_has_the_weight_of_that_pass():
    """AR weighs tokens by their probability; here a pass of weight 1/2 and one of 1/4 make 3/4 of the advantage."""
    halves = np.array([[0.5] * LENGTH, [0.25] * LENGTH])
    assert credits._signed(np.full(LENGTH, 2.0), halves, np.ones(LENGTH), 3) == (1.5, 1.5, 1.5)


def test_pieces_join_to_the_text_and_a_split_character_comes_whole():
    class Bytes:
        def decode(self, ids):
            return bytes(ids).decode("utf-8", "replace")

    text = "a é 漢字 \U0001f600 b"
    found = pieces(Bytes(), list(text.encode()))
    assert "".join(found) == text and len(found) == len(text.encode())
    assert found[:4] == ["a", " ", "", "é"]
    assert "".join(pieces(Bytes(), list(text.encode()[:-4]))).startswith(
        "a é 漢字 "
    )  # cut within a character
    words = TOKENIZER("a b c").input_ids
    assert "".join(pieces(TOKENIZER, words)) == TOKENIZER.decode(words)


def test_groups_are_read_as_they_were_sampled(run):
    (data,) = read_runs([run])
    counted = collections.defaultdict(list)
    for row in read_rows(run / ROLLOUTS):
        counted[row["step"], row["prompt_id"]].append(row["correct"])
    assert {(g.step, g.prompt_id): (g.right, g.answers) for g in data.sampled.groups} == {
        key: (sum(each), len(each)) for key, each in counted.items()
    }
    by_step = collections.Counter(g.step for g in data.sampled.groups if g.flat)
    for row in data.metrics:
        assert row["acr/all"] == pytest.approx(by_step[row["step"]] / 8)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"is no run \(it has no config.yaml\): name the run_dir of a training."
    ):
        read_runs([tmp_path])


# ---- what is drawn -----------------------------------------------------------------------------------------------


def test_runs_of_other_seeds_are_one_band_and_what_differs_between_bands_is_listed(three):
    found = bands(read_runs(three))
    assert [[run.name for run in band.runs] for band in found] == [["first", "other_seed"], ["another"]]
    rows = dict(configs_apart(found))
    assert rows["steps"] == ["3", "20"] and rows["objective.aggregate.name"][1] == "'token_mean'"
    assert not any(key.startswith(("seed", "run_dir")) for key in rows)


def test_a_band_goes_from_its_lowest_to_its_highest_seed(three):
    found = bands(read_runs(three[:2]))
    first = np.array([row["reward/mean"] for row in found[0].runs[0].metrics])
    (figure,) = [f for s in sections(found) for f in s.figures if f.name == "curve-reward-mean"]
    low, high, mean = (np.array(trace["y"]) for trace in figure.data)
    np.testing.assert_allclose(low, first, atol=1e-4)
    np.testing.assert_allclose(high, first + 0.25, atol=1e-4)
    np.testing.assert_allclose(mean, first + 0.125, atol=1e-4)


def test_the_running_mean_is_that_of_what_is_there():
    values = np.arange(7.0) ** 2
    wanted = [values[max(0, i - 1) : i + 2].mean() for i in range(7)]
    np.testing.assert_allclose(smooth(values, 3), wanted)
    assert smooth(np.array([5.0]), 3).tolist() == [5.0]


def test_a_spike_is_marked_and_what_was_before_it_decides(three):
    values = np.array([100.0, *[1.0] * 9, 3.5, 2.9, *[10.0] * 60, 31.0])
    slow = [i for i, v in enumerate(values) if i >= 5 and v > 3 * np.median(values[max(0, i - 50) : i])]
    assert np.flatnonzero(spikes(values)).tolist() == slow and 10 in slow and 11 not in slow and 0 not in slow
    figure = gradient_norm(bands(read_runs(three)))
    assert figure is not None
    marked = [trace for trace in figure.data if trace["name"] == "outlier"]
    assert [trace["x"] for trace in marked] == [[12]] and marked[0]["y"] == [100.0]
    assert "at most 100, outliers 1" in figure.note


def test_the_map_has_a_cell_for_each_group(run):
    (data,) = read_runs([run])
    figure = maps.collapse_map(data, 0)
    assert figure is not None
    cells = [z for row in figure.data[0]["z"] for z in row if z is not None]
    assert sorted(cells) == sorted(g.right / g.answers for g in data.sampled.groups)
    for i in range(3):  # what collapsed stands at the ends of each column
        column = [row[i] for row in figure.data[0]["z"]]
        assert column == sorted(column)


def test_rewards_and_phases_add_up(run):
    (data,) = read_runs([run])
    rewards, times = maps.reward_histograms(data, 0), maps.phase_times(data, 0)
    assert rewards is not None and times is not None
    np.testing.assert_allclose(np.sum([t["y"] for t in rewards.data], axis=0), 1, atol=1e-4)
    total = [row["time/step"] for row in data.metrics]
    np.testing.assert_allclose(np.sum([t["y"] for t in times.data], axis=0), total, rtol=1e-3)


def test_best_worst_newest_and_first_answers_are_shown(run):
    (data,) = read_runs([run])
    shown = answers.telling(data.credit)
    assert {why for each in shown for why in each.why.split(", ")} >= {"newest", "first"}
    rewards = [row["reward"] for row in data.credit]
    assert {each.reward for each in shown} >= {min(rewards), max(rewards)}
    strongest = max(token.strength for each in shown for token in each.tokens)
    assert strongest == 1.0


def test_an_objective_is_named_after_the_preset_it_is_near_to(run):
    plain = _config(run)["objective"]
    assert objective_name(plain) == "grpo"
    assert objective_name({**plain, "clip": {**plain["clip"], "high": 0.25}}) == "grpo with clip.high=0.25"


def test_what_a_run_has_no_data_for_is_a_line(run, tmp_path):
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (data,) = read_runs([tmp_path])
    found = sections(bands([data]))
    assert not any(section.figures for section in found)
    assert all(isinstance(section, Section) and section.lines[0].startswith("No data: ") for section in found)
    page = render([data])
    assert page.count("No data: ") == len(found) + 1 and head(data, bands([data])[0]).gains == ()


# ---- the page ----------------------------------------------------------------------------------------------------

DRAWN = """() => [...document.querySelectorAll('.plot')].map(plot => ({
  name: plot.id,
  values: plot.data.map(t => (t.z ? t.z.flat() : t.y).filter(v => v !== null && isFinite(v)).length),
  marks: plot.querySelectorAll('.scatterlayer path, .barlayer path, .heatmaplayer image').length,
}))"""
LIGHT = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 765"
INK = "getComputedStyle(document.querySelector('.xtick text')).fill.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 765"
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium; skips without it."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the Debian package chromium, which is not here")
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright (extra `test`)")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser, path, width):
    """(the page in light, what it complained of, what it asked for beside itself)."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda r: asked.append(r.url) if not r.url.startswith(("data:", "blob:")) else None)
    page.goto(path.as_uri())
    return page, told, [url for url in asked if url != path.as_uri()]


@pytest.mark.parametrize("count", [1, 3])
def test_the_page_is_whole_in_a_browser_wide_and_narrow_light_and_dark(
    browser, three, count, tmp_path, capsys
):
    output = tmp_path / "page.html"
    assert main(["report", *map(str, three[:count]), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    page, told, asked = opened(browser, output, 1280)
    drawn = page.evaluate(DRAWN)
    assert len(drawn) >= 15
    for plot in drawn:
        assert plot["marks"] and all(plot["values"]), plot
    assert page.evaluate(WIDTH) == 1280
    assert page.evaluate(LIGHT) > 0.9 and page.evaluate(INK) < 0.5
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 900})
    fits = "[...document.querySelectorAll('.main-svg')].every(svg => svg.clientWidth <= 400)"
    for _ in range(100):  # the page itself allows no waiting for a condition: that would be eval
        if page.evaluate(fits):
            break
        time.sleep(0.1)
    assert page.evaluate(WIDTH) == 400
    assert page.evaluate(LIGHT) < 0.15 and page.evaluate(INK) > 0.5
    assert [plot["name"] for plot in page.evaluate(DRAWN) if not plot["marks"]] == []
    if count > 1:  # a band is put away, and comes back
        shown = (
            "document.getElementById('curve-reward-mean').querySelectorAll('.scatterlayer .js-line').length"
        )
        before = page.evaluate(shown)
        page.click(".legend button")
        assert 0 < page.evaluate(shown) < before
        page.click(".legend button")
        assert page.evaluate(shown) == before
    page.close()
    assert (told, asked) == ([], [])


def test_what_leaves_the_file_is_seen(browser, tmp_path):
    """The check above can fail: a picture from elsewhere is asked for, and complained of."""
    path = tmp_path / "bad.html"
    path.write_text("<script>fail()</script><img src='http://127.0.0.1:9/x.png'>")
    page, told, asked = opened(browser, path, 400)
    page.close()
    assert asked == ["http://127.0.0.1:9/x.png"] and any("fail is not defined" in line for line in told)
