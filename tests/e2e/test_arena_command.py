"""The arena, as a user enters it."""

import json
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_selector.py"
RULE = f"{EXAMPLE}:MySelector"
QUICK = ("--condition", "digits-1", "--seeds", "0..1", "--device", "cpu")


def test_a_rule_from_a_file_is_put_beside_the_published_ones(fedcohort, tmp_path):
    done = fedcohort("arena", RULE, *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Check: fedavg, seed 0 in digits-1 ")
    assert "worst-first against each rule" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    written = tmp_path / "fedcohort-arena" / "worst-first"
    assert (written / "arena.png").read_bytes().startswith(b"\x89PNG")
    assert "worst-first" in (written / "rounds.tex").read_text()
    page = (EXAMPLE.parents[1] / "docs" / "arena.md").read_text().splitlines()
    assert done.stderr.splitlines()[-1] in page, "the page shows another end"
    again = fedcohort("arena", RULE, *QUICK, "--json")
    assert "2 of 2 runs are in fedcohort-arena already" in again.stderr
    found = json.loads(again.stdout)
    assert (found["selector"], found["seeds"]) == ("worst-first", [0, 1])
    rules = {rule["rule"] for rule in found["rules"]}
    assert {"fedavg", "match"} <= rules
    assert len(found["standings"]) == len(rules) + 1
    assert all(row["seeds"] == 2 for row in found["pairs"])


def test_the_conditions_are_listed(fedcohort):
    some = fedcohort("arena", "--list", "--condition", "cifar-10")
    assert "cifar-10-H" in some.stdout
    assert "digits-1" not in some.stdout
    wrong = fedcohort("arena", "--list", "--condition", "cifar")
    assert wrong.returncode == 2
    assert "condition 'cifar'" in wrong.stderr
    done = fedcohort("arena", "--list")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    digits = [row for row in rows if row[0].startswith("digits")]
    assert digits[0] == ["digits-1", "80", "%", "test", "100", "10", "18"]
    assert len(digits) == 7
    assert ["mnist-by-writer-natural", "95", "%", "test", "150", "5", "18"] in rows
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "The arena needs a rule"),
        (("matsch",), "There is no selector 'matsch': did you mean 'match'?"),
        (("match", "--condition", "digits-2"), "There is no condition 'digits-2'"),
        (("afl", "--seeds", "0,99"), "There are no published runs with seed 99 in digits"),
        (("nowhere.py:Rule",), "nowhere.py"),
        ((f"{EXAMPLE}:MySelector:share=2",), "share of selector 'worst-first' must be"),
    ],
)
def test_wrong_words_end_with_one_sentence(fedcohort, tmp_path, words, said):
    done = fedcohort("arena", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
