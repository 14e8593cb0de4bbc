"""The notebook for researchers runs from its first cell to its last, and holds the outputs of its own cells."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples/notebook.ipynb"


def outputs(notebook):
    """The kinds of output of each cell of code."""
    return [
        {output.output_type for output in cell.outputs} for cell in notebook.cells if cell.cell_type == "code"
    ]


@pytest.mark.slow
@pytest.mark.loopback
def test_the_notebook_runs_and_shows_what_it_shows_here():
    kept = nbformat.read(NOTEBOOK, 4)
    run = nbformat.read(NOTEBOOK, 4)
    NotebookClient(run, timeout=200, kernel_name="python3").execute()  # raises the error of a cell
    assert outputs(run) == outputs(kept)
    assert {"stream", "execute_result", "display_data"} == set().union(*outputs(run))
