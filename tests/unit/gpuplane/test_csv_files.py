"""What a spreadsheet reads."""

import csv
import io

import pytest

from gpuplane.csv_files import csv_response


@pytest.mark.parametrize(
    ("cell", "want"),
    [
        pytest.param('=HYPERLINK("http://evil")', '\'=HYPERLINK("http://evil")', id="a formula"),
        pytest.param("+1", "'+1", id="plus"),
        pytest.param("-1", "'-1", id="minus as text"),
        pytest.param("@SUM(A1)", "'@SUM(A1)", id="at"),
        pytest.param("\t=1", "'\t=1", id="a tab before it"),
        pytest.param(-1.5, "-1.5", id="a number below zero"),
        pytest.param(0, "0", id="zero"),
        pytest.param(None, "", id="unknown"),
        pytest.param("H100, 80 GB", "H100, 80 GB", id="a name with a comma"),
    ],
)
def test_no_cell_is_a_formula(cell, want):
    """VIEW-6 names come from agents and from users of other teams."""
    answer = csv_response([["name"], [cell]], "x.csv")
    assert list(csv.reader(io.StringIO(answer.content.decode()))) == [["name"], [want]] if want else [["name"], []]
    assert answer["Content-Disposition"] == 'attachment; filename="x.csv"'
