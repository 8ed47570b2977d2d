"""What TensorBoard, Weights & Biases and MLflow get of a run, read from the files that they leave. Nothing goes to a network."""

import json
import re
import struct
import sys
import time

import numpy as np
import pytest

from rlvr_jax.config import Logging
from rlvr_jax.train.metrics import RolloutRow
from rlvr_jax.train.writers import SAMPLES, Shown, check_services, shown_of, writers

CONFIG = {"seed": 3, "batch": {"prompts": 8, "k": [1, 4]}, "vllm": None}


def shown(step):
    values = np.array([0.0, 0.5, 1.0, 1.0])
    return Shown({"a/b": 0.5 + step}, {"samples/0": f"<b> of {step}"}, {"answers/reward": values})


def write(logging, run, start, stop):
    run.mkdir(exist_ok=True)
    with writers(logging, run, start, CONFIG) as found:
        for step in range(start, stop):
            for writer in found:
                writer.write(step, shown(step))


def row(prompt, sample, reward=1.0):
    return RolloutRow(
        prompt_id=prompt,
        sample=sample,
        prompt=f"p{prompt}",
        completion="\ud800 1 2",
        reward=reward,
        correct=False,
        reason="wrong",
        length=2 + sample,
        truncated=True,
        version=0,
    )


def test_of_a_step_the_first_answers_of_different_prompts_are_shown_and_all_are_counted():
    rows = [row(prompt, sample, None if sample else 0.5) for prompt in range(9, 3, -1) for sample in range(2)]
    got = shown_of({"a": 1.0}, rows, {"warnings/spike": "w"})
    assert list(got.texts) == ["warnings/spike", *(f"samples/{i}" for i in range(SAMPLES))]
    assert got.texts["samples/0"] == (
        "prompt 9, reward 0.5, wrong, 2 tokens, cut at the limit\n\np9\n---\n\ud800 1 2"
    )
    assert got.texts["samples/3"].startswith("prompt 6,")
    assert got.histograms["answers/reward"].tolist() == [0.5] * 6
    assert got.histograms["answers/length"].tolist() == [2, 3] * 6
    assert not shown_of({"a": 1.0}, (), {}).histograms


def events(folder):
    """(step, tag, value) of everything shown and (step, "start", None) of every session, file by file as TensorBoard reads."""
    from tensorboardX.proto.event_pb2 import Event

    out = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(
                data[at + 12 : at + 12 + size]
            )  # length 8, its checksum 4, event, checksum 4
            at += 16 + size
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                held = {
                    "simple_value": lambda v: v.simple_value,
                    "tensor": lambda v: v.tensor.string_val[0].decode(),
                    "histo": lambda v: (v.histo.num, v.histo.sum, sum(v.histo.bucket)),
                }[kind](value)
                out.append((event.step, value.tag, held))
            out += [(event.step, "start", None)] if event.HasField("session_log") else []
    return out


def test_tensorboard_has_scalars_texts_and_histograms_and_is_told_which_steps_are_repeated(tmp_path):
    for start, stop in ((0, 2), (1, 3)):
        write(Logging(), tmp_path, start, stop)
    each = [
        [
            (step, "a/b", 0.5 + step),
            (step, "samples/0/text_summary", f"    <b> of {step}"),
            (step, "answers/reward", (4, 2.5, 4)),
        ]
        for step in range(3)
    ]
    assert events(tmp_path / "tensorboard") == [*each[0], *each[1], (1, "start", None), *each[1], *each[2]]


@pytest.mark.parametrize(
    "name, missing, text",
    [
        ("wandb", "wandb", "the wandb project 'mazes' needs the package wandb"),
        ("mlflow", "mlflow", "the MLflow experiment 'mazes' needs the package mlflow"),
        ("mlflow", "alembic", "the MLflow experiment 'mazes' needs the package alembic"),
    ],
)
def test_a_missing_package_is_one_error_that_says_what_to_install(tmp_path, monkeypatch, name, missing, text):
    check_services(Logging())
    monkeypatch.setitem(sys.modules, missing, None)
    instead = {"wandb": "project", "mlflow": "experiment"}[name]
    with pytest.raises(ModuleNotFoundError) as error:
        check_services(Logging(**{name: "mazes"}))
    assert str(error.value) == (
        f"logging to {text}, which is not installed: pip install 'rlvr_jax[logging]', or leave the {instead} empty."
    )


def wandb_records(path):
    """Of a .wandb file: blocks of 32 KiB with records of a checksum, a size, a kind (1: whole) and a message."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, out = path.read_bytes(), 7, []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1
        if at + 7 + size > len(data):  # half of it is written
            break
        out.append(Record.FromString(data[at + 7 : at + 7 + size]))
        at += 7 + size
    return out


def finished(path):
    """The records of a session, as soon as its last one is there: another process writes them."""
    deadline = time.monotonic() + 60
    while True:
        records = wandb_records(path)
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_wandb_works_without_a_network_and_goes_on_under_the_same_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for hooked in ("exit", "excepthook"):  # it leaves its own in their place
        monkeypatch.setattr(sys, hooked, getattr(sys, hooked))
    for start in (0, 1):
        write(Logging(tensorboard=False, wandb="mazes"), tmp_path / "run", start, start + 1)
    sessions = [finished(p) for p in sorted(tmp_path.rglob("*.wandb"))]
    assert len(sessions) == 2
    runs = [r.run for records in sessions for r in records if r.WhichOneof("record_type") == "run"]
    assert {(r.run_id, r.project, r.display_name) for r in runs} == {
        ((tmp_path / "run" / "wandb_run").read_text().strip(), "mazes", "run")
    }
    config = {u.key: json.loads(u.value_json) for u in runs[0].config.update}
    assert {name: config[name] for name in CONFIG} == CONFIG
    history = [r.history for records in sessions for r in records if r.WhichOneof("record_type") == "history"]
    seen = [
        {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in each.item} for each in history
    ]
    assert [(each["_step"], each["a/b"]) for each in seen] == [(0, 0.5), (1, 1.5)]
    assert sum(seen[1]["answers/reward.values"]) == 4
    texts = sorted(p.read_text() for p in tmp_path.rglob("*.html"))
    assert [re.search("<pre>.*</pre>", text).group() for text in texts] == [
        f"<pre>&lt;b&gt; of {step}</pre>" for step in (0, 1)
    ]


def test_mlflow_keeps_a_run_in_a_database_beside_it_and_goes_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logging = Logging(tensorboard=False, mlflow="mazes")
    for start in (0, 1):
        write(logging, tmp_path / "run", start, 2)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("mazes").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params == {"seed": "3", "batch.prompts": "8", "batch.k": "[1, 4]", "vllm": "None"}
    assert {(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "a/b")} == {
        (0, 0.5),
        (1, 1.5),
    }
    (text,) = (tmp_path / "mlflow_files").rglob("step_000001.txt")
    assert text.read_text() == "<b> of 1"
