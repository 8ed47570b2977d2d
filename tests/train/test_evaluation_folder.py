"""The folder of an evaluation without a model: whose answers it takes, what it reads back, fingerprints of weights."""

import jax
import numpy as np
import pytest
import tiny

from rlvr_jax.analysis.evaluation import Answers, Evaluation
from rlvr_jax.train.evaluation_folder import (
    EvaluationFolder,
    folder_name,
    read_result,
    settings_apart,
    weights_print,
)

SETTINGS = {"weights": "ab", "task": {"name": "maze"}, "split": "test", "seed": 0, "sampling": {"top_p": 1.0}}


def share(problem, first=0):
    return Answers(
        problem=problem,
        id=f"p{problem}",
        record=f"r{problem}",
        kind=None,
        first=first,
        reasons=("correct", "wrong"),
        lengths=(3, 1),
        truncated=(False, True),
        said=("UP \ud800", None),  # half a character, as a tokenizer may give
        variance=((0.1, 0.2, None), (0.25, None, None)),
        tokens=((4, 5), ()),
    )


def test_answers_come_back_as_they_were(tmp_path):
    with EvaluationFolder(tmp_path / "e", SETTINGS) as folder:
        folder.add([share(0), share(1)])
        folder.add([share(0, first=2)])
    with EvaluationFolder(tmp_path / "e", SETTINGS) as folder:
        assert folder.requests == 2
        assert folder.answers == {0: share(0).then(share(0, first=2)), 1: share(1)}
        found = Evaluation.of([share(0), share(1)], 2, (1,))
        result = folder.finish(found, {**SETTINGS, "policy": "x", "step": None}, "x")
    assert read_result(tmp_path / "e") == read_result(tmp_path / "e" / "evaluation.json") == result
    assert result["problems"][1] == {"problem": 1, "id": "p1", "record": "r1", "right": 1}
    other = {**result, "samples": 4, "sampling": {"top_p": 0.5}}
    assert settings_apart(result, other) == {"samples": ("2", "4"), "sampling.top_p": ("1.0", "0.5")}


def test_a_folder_takes_answers_to_its_own_settings_alone(tmp_path):
    path = tmp_path / "e"
    for _ in range(2):  # made, and opened again
        with EvaluationFolder(path, SETTINGS) as folder:
            assert folder.answers == {}
    other = {**SETTINGS, "seed": 3, "sampling": {"top_p": 0.9}}
    with pytest.raises(ValueError) as error:
        EvaluationFolder(path, other)
    assert str(error.value) == (
        f"{path} is another evaluation, with other\n  sampling.top_p: 1.0 there, 0.9 now\n  seed: 0 there, 3 now\n"
        "Go back to its values, or name another folder with --output."
    )
    assert folder_name(SETTINGS) != folder_name(other) and folder_name(SETTINGS).startswith("maze-test-")
    (tmp_path / "notes.txt").touch()
    for no_folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError) as error:
            EvaluationFolder(no_folder, SETTINGS)
        assert str(error.value) == (
            f"{no_folder} exists and is no evaluation (it has no settings.yaml): name another folder."
        )


def test_what_is_no_result_is_refused(tmp_path):
    with pytest.raises(ValueError) as error:
        read_result(tmp_path)
    assert str(error.value) == f"{tmp_path} has no evaluation.json; name the folder of an evaluation."
    with EvaluationFolder(tmp_path / "e", SETTINGS) as folder:
        folder.add([share(0)])
    with pytest.raises(ValueError) as error:
        read_result(tmp_path / "e")
    assert str(error.value) == (
        f"{tmp_path / 'e'} has no evaluation.json; the evaluation there is not finished: go on with it."
    )
    for text in ("{", "[1]", '{"k": 1}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError) as error:
            read_result(tmp_path / "other.json")
        assert str(error.value) == (
            f"{tmp_path / 'other.json'} is not what `rlvr-jax eval` writes: name the folder of an evaluation."
        )


def test_the_fingerprint_of_weights_is_of_every_bit_and_of_no_mesh():
    _, params = tiny.decoder()
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"))
    with jax.set_mesh(mesh):
        assert weights_print(tiny.on_mesh(params, mesh)) == weights_print(params)
    leaves, structure = jax.tree.flatten(params)
    place = max(range(len(leaves)), key=lambda i: leaves[i].size)

    def changed(change):
        bits = np.array(leaves[place])
        change(bits.reshape(-1))
        return weights_print(
            jax.tree.unflatten(structure, [*leaves[:place], jax.numpy.asarray(bits), *leaves[place + 1 :]])
        )

    def last_bit(x):
        x[5:6].view(np.uint32)[:] ^= 1

    def swap(x):
        x[[0, 1]] = x[[1, 0]]

    assert changed(lambda x: None) == weights_print(params)
    assert len({weights_print(params), changed(last_bit), changed(swap)}) == 3
