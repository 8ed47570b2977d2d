"""The notebook runs from top to bottom, and its tiny model learns."""

import pathlib
import re

import pytest

NOTEBOOK = pathlib.Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebook machinery, not of ours
def test_quickstart_runs_and_learns(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(
        out.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs
    )
    found = re.search(r"first five steps ([\d.]+), of the last five ([\d.]+)", printed)
    assert found, printed
    first, last = map(float, found.groups())
    # Four mazes, 64 answers a step: ten steps' worth of noise in the difference is below 0.1.
    assert last > first + 0.1
