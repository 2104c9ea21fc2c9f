"""Texts that a spreadsheet would take for formulas."""

import csv

import pytest

from fedcohort.report.export import write_csv


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_text_that_begins_like_a_formula_is_escaped(tmp_path, text):
    write_csv(tmp_path / "table.csv", [{"name": text, "other": "a=1"}])
    with (tmp_path / "table.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row == {"name": f"'{text}", "other": "a=1"}


def test_numbers_stay_numbers(tmp_path):
    write_csv(tmp_path / "table.csv", [{"loss": -1.5, "left": None, "cohort": (3, 1), "n": -2}])
    assert (tmp_path / "table.csv").read_text() == "loss,left,cohort,n\n-1.5,,3 1,-2\n"
