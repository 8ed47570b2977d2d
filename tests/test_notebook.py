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
    # 320 answers on each side: the deviation of the difference is below 0.04, the gain above 0.3.
    assert last > first + 0.1
