"""The command that gives advice."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcohort.cli.advise import read_profiles
from fedcohort.cli.app import app
from fedcohort.errors import FedcohortError


def asked(*arguments):
    done = CliRunner().invoke(app, ["advise", *map(str, arguments)])
    if isinstance(done.exception, FedcohortError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def profiles():
    rng = np.random.default_rng(0)
    return (5 + rng.normal(size=(4, 12)))[np.arange(40) % 4] + 0.05 * rng.normal(size=(40, 12))


def test_all_kinds_of_files_say_the_same(tmp_path, profiles):
    sizes = np.arange(1, 41)
    np.save(tmp_path / "p.npy", profiles)
    np.save(tmp_path / "s.npy", sizes)
    np.savez(tmp_path / "both.npz", profiles=profiles, sizes=sizes)
    names = ",".join(f"f{i}" for i in range(12))
    np.savetxt(tmp_path / "p.csv", profiles, "%.17g", delimiter=",", header=names, comments="")
    np.savetxt(tmp_path / "s.csv", sizes, "%d")
    said = [
        asked("--profiles", tmp_path / "p.npy", "--sizes", tmp_path / "s.npy", "-k", 4),
        asked("--profiles", tmp_path / "both.npz", "-k", 4),
        asked("--profiles", tmp_path / "p.csv", "--sizes", tmp_path / "s.csv", "--cohort", 4),
    ]
    assert said[0] == said[1] == said[2]
    assert "40 clients, cohorts of 4. There seem to be 4 kinds" in said[0]
    assert said[0] != asked("--profiles", tmp_path / "p.npy", "-k", 4)


def test_a_file_may_hold_agreements(tmp_path, profiles):
    def told(**arrays):
        np.savez(tmp_path / "p.npz", profiles=profiles, **arrays)
        return json.loads(asked("--profiles", tmp_path / "p.npz", "-k", 4, "--json"))

    half = np.full(40, 0.5)
    alone, agreed, common = told(), told(agreements=half), told(agreements=half, shared=0.5)
    assert alone["gradient_spread"] is None
    assert agreed["gradient_spread"] > 0.2
    assert agreed["gain"] > 1.2
    assert common["gain"] == 1
    with pytest.raises(FedcohortError, match=r"'shared' of .* must be one number"):
        told(shared=0.5)
    with pytest.raises(FedcohortError, match="must be one number"):
        told(agreements=half, shared=half)
    with pytest.raises(FedcohortError, match="must hold numbers"):
        told(agreements=half.astype(str))


def test_clients_that_promise_privacy_send_no_agreements():
    private = json.loads(asked("--clients", 50, "--skew", 1, "--profile-epsilon", 8, "--json"))
    assert private["gradient_spread"] is None
    assert json.loads(asked("--clients", 50, "--skew", 1, "--json"))["gradient_spread"] > 0.2


def test_a_first_line_of_names_is_no_client(tmp_path):
    rows = "1,2\n3,4\n"
    said = set()
    for name, text in {
        "plain": rows,
        "names": f"a,b\n{rows}",
        "comments": "# all\n# profiles\na,b\n1,2\n# 5,6\n3,4\n",
        "spreadsheet": f"\ufeff{rows}",
        "ends": f"{rows}\n\n",
    }.items():
        path = tmp_path / f"{name}.csv"
        path.write_text(text, "utf-8")
        said.add(read_profiles(path)[0].tobytes())
    assert said == {np.array([[1.0, 2.0], [3.0, 4.0]]).tobytes()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,,3\n4,5,6\n", "cell 2 of line 1 is ''"),
        ("NA,2,3\n4,5,6\n", "cell 1 of line 1 is 'NA'"),
        ("NA,NA,NA\n4,5,6\n", "cell 1 of line 1 is 'NA'"),
        (",,\n4,5,6\n", "cell 1 of line 1 is ''"),
        ("\n1\n2\n", "cell 1 of line 1 is ''"),
        ("a,b\nward-0,1\nward-1,2\n", "cell 1 of line 2 is 'ward-0'"),
        ("ward-0,1\nward-1,2\n", "cell 1 of line 1 is 'ward-0'"),
        ("a,b\n1,2\n3,x\n", "cell 2 of line 3 is 'x'"),
        ("1,2\n\n3,4\n", "cell 1 of line 2 is ''"),
        ("# all\na,b\n1,2\n3,inf\n", "cell 2 of line 4 is 'inf', no finite number"),
        ("nan,nan\n4,5\n", "cell 1 of line 1 is 'nan'"),
        ("1,2\n3\n", "line 2 is of length 1, and those before it of 2"),
        ("1_0\n2\n", "1_0"),
        ("", "no rows"),
        ("a,b\n", "no rows"),
    ],
)
def test_no_line_of_a_table_is_left_out_in_silence(tmp_path, text, words):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(FedcohortError, match=rf"'.*p\.csv' cannot be read \(.*{words}"):
        read_profiles(tmp_path / "p.csv")


def test_json_is_one_document(tmp_path, profiles):
    np.save(tmp_path / "p.npy", profiles)
    said = json.loads(asked("--profiles", tmp_path / "p.npy", "-k", 4, "--dropout", 0.25, "--json"))
    assert said["kinds"] == 4
    assert said["lost"] == 0.25
    assert set(said["distances"]) == {"fedavg", "dp3s", "match"}
    assert "by style" in said["cannot_know"]


def test_a_data_set_is_divided_and_profiled():
    pure = json.loads(asked("--clients", 50, "--skew", 1, "--json"))
    even = json.loads(asked("--clients", 50, "--skew", "iid", "--json"))
    assert pure["clients"] == 50
    assert pure["gain"] > 1.3
    assert "Select with match" in pure["recommendation"]
    assert even["gain"] < 1.1
    assert "Stay with uniform" in even["recommendation"]


def test_over_selection_is_asked_and_lost():
    said = json.loads(asked("--clients", 50, "--over-selection", 1.3, "--json"))
    assert said["k"] == 13
    assert said["lost"] == pytest.approx(3 / 13)


def test_a_file_may_be_asked_of_with_all_that_cohorts_have(tmp_path, profiles):
    np.save(tmp_path / "p.npy", profiles)
    given = ("--profiles", tmp_path / "p.npy", "--over-selection", 1.5)
    said = json.loads(asked(*given, "-k", 4, "--dropout", 0.5, "--json"))
    assert (said["k"], said["lost"]) == (6, 0.5)
    with pytest.raises(FedcohortError, match="between 1 and 40"):
        asked(*given, "-k", 41)


def test_a_file_may_have_more_clients_than_a_run_has_by_default(tmp_path, profiles):
    np.save(tmp_path / "p.npy", np.tile(profiles, (3, 1)))
    assert "120 clients, cohorts of 120" in asked("--profiles", tmp_path / "p.npy", "-k", 120)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("-k and --cohort are the same", ("-k", 3, "--cohort", 3)),
        ("--sizes goes with --profiles", ("--sizes", "s.npy")),
        ("--clients describes a data set", ("--profiles", "p.npy", "--clients", 20)),
        ("cannot be read", ("--profiles", "nowhere.npy")),
        ("Representative gradients", ("--profile", "representative-gradient")),
        ("between 1 and 40", ("--profiles", "p.npy", "-k", 41)),
        ("has no array 'profiles'", ("--profiles", "other.npz")),
        ("cannot be read", ("--profiles", "words.csv")),
        ("cannot be read", ("--profiles", "empty.csv")),
        ("must hold numbers", ("--profiles", "text.npy")),
        ("cannot be read", ("--profiles", "torn.npy")),
        ("cannot be read", ("--profiles", "p.npy", "--sizes", "torn.npz")),
        ("misspelt.npz' for an array 'size': did you mean 'sizes'", ("--profiles", "misspelt.npz")),
        (r"deep.npy' has shape \[1, 40, 12\]: profiles must be", ("--profiles", "deep.npy")),
        (r"none.npy' has shape \[0, 12\]: profiles must be", ("--profiles", "none.npy")),
        (r"sizes has shape \[9\]", ("--profiles", "p.npy", "--sizes", "few.npy")),
        (r"sizes has shape \[9\]", ("--profiles", "few.npz")),
    ],
)
def test_nonsense_is_refused_in_a_sentence(tmp_path, monkeypatch, profiles, words, arguments):
    monkeypatch.chdir(tmp_path)
    np.save("p.npy", profiles)
    np.savez("other.npz", other=profiles)
    np.savez("misspelt.npz", profiles=profiles, size=np.ones(40))
    np.savez("few.npz", profiles=profiles, sizes=np.ones(9))
    np.save("few.npy", np.ones(9))
    np.save("deep.npy", profiles[None])
    np.save("none.npy", profiles[:0])
    np.save("text.npy", np.array(["a"]))
    (tmp_path / "words.csv").write_text("a,b\nc,d\n")
    (tmp_path / "empty.csv").write_text("")
    for name in ("torn.npy", "torn.npz"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(FedcohortError, match=words) as caught:
        asked(*arguments)
    assert "\n" not in str(caught.value)
