import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcohort.cli.app import app
from fedcohort.cli.select import select_once
from fedcohort.errors import BrokenSelectorError, InvalidInputError


def test_profiles_come_from_any_file_that_advise_reads(tmp_path):
    profiles, sizes = np.random.default_rng(0).normal(size=(9, 3)), np.arange(1, 10)
    np.save(tmp_path / "p.npy", profiles)
    np.save(tmp_path / "n.npy", sizes)
    np.savetxt(tmp_path / "p.csv", profiles, delimiter=",")
    np.savez(tmp_path / "both.npz", profiles=profiles, sizes=sizes)
    chosen = [
        select_once(tmp_path / name, 4, "match", 0, given)
        for name, given in {
            "p.npy": tmp_path / "n.npy",
            "p.csv": tmp_path / "n.npy",
            "both.npz": None,
        }.items()
    ]
    assert len({(*cohort.ids, *cohort.weights) for cohort in chosen}) == 1


def test_a_cohort_is_a_line_of_ids_or_a_document_with_weights_too(tmp_path):
    np.save(tmp_path / "p.npy", np.random.default_rng(0).normal(size=(9, 3)))
    np.save(tmp_path / "n.npy", np.arange(1, 10))
    asked = ["select", "--profiles", tmp_path / "p.npy", "--sizes", tmp_path / "n.npy", "-k", 4]
    line, document = (
        CliRunner().invoke(app, [*map(str, asked), *more]).stdout for more in ([], ["--json"])
    )
    said = json.loads(document)
    assert line == " ".join(map(str, said["ids"])) + "\n"
    cohort = select_once(tmp_path / "p.npy", 4, "dp3s", 0, tmp_path / "n.npy")
    assert said == {"ids": cohort.ids.tolist(), "weights": cohort.weights.tolist()}
    assert len(set(said["weights"])) > 1


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("p.csv", None, r"p\.csv' cannot be read \(cell 2 of line 1 is ''"),
        ("p.npz", None, r"p\.npz' for an array 'size': did you mean 'sizes'"),
        ("p.npy", "s.npy", r"profiles has shape \[9, 3\] and sizes has shape \[2\]"),
        ("flat.npy", None, r"flat\.npy' has shape \[9\]: profiles must be \[C, Q\]"),
    ],
)
def test_a_file_that_would_shift_clients_is_refused_with_the_place(tmp_path, name, sizes, words):
    profiles = np.random.default_rng(0).normal(size=(9, 3))
    np.save(tmp_path / "p.npy", profiles)
    np.save(tmp_path / "flat.npy", profiles[:, 0])
    np.save(tmp_path / "s.npy", [1, 2])
    np.savez(tmp_path / "p.npz", profiles=profiles, size=np.ones(9))
    (tmp_path / "p.csv").write_text("1,,3\n4,5,6\n7,8,9\n")
    with pytest.raises(InvalidInputError, match=words):
        select_once(tmp_path / name, 2, "match", 0, sizes and tmp_path / sizes)


def test_a_rule_of_ones_own_that_breaks_is_named_with_its_line(tmp_path):
    np.save(tmp_path / "p.npy", np.eye(5))
    rule = tmp_path / "rule.py"
    rule.write_text(
        "from fedcohort import FedAvg\n"
        "class Rule(FedAvg):\n"
        "    def _choose(self, k, rows, rng):\n"
        "        return self.nothing\n"
    )
    with pytest.raises(BrokenSelectorError, match=r"Rule' fails \(AttributeError in line 4 of "):
        select_once(tmp_path / "p.npy", 2, f"{rule}:Rule", 0, None)
