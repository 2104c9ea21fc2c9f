"""Reports call a score by its name, whatever a store holds."""

import csv
import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from fedcohort import Results
from fedcohort.report import summarise, to_json
from fedcohort.report.export import export
from fedcohort.report.html import leaders, write_report
from fedcohort.report.table import ResultsTable
from fedcohort.simulation import RoundRecord, RunConfig, Store

JUDGED = {"one": ("regression", "R²"), "labels": ("multilabel", "F1"), "text": ("next-token", None)}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Three tasks, two selectors; regression has no label groups, and so no GEMD."""
    with Store(tmp_path_factory.mktemp("mixed")) as made:
        for name, (task, score) in JUDGED.items():
            for selector, ahead in (("dp3s", 0.0), ("fedavg", 0.1)):
                config = RunConfig(dataset=name, skew="iid", clients=2, cohort=1, selector=selector)
                facts = {
                    "clients": 2,
                    "train_evaluated_on": 10,
                    "device": "CPU",
                    "torch": "2",
                    "task": task,
                } | ({"score": score} if score else {})
                counts = [[], []] if name == "one" else [[3, 1], [2, 2]]
                made.begin(config, facts, {"label_counts": np.array(counts, dtype=np.int64)})
                rounds = [
                    RoundRecord(
                        round=r,
                        train_score=0.2 * r - 0.1 + ahead,
                        test_score=0.2 * r - 0.2,
                        test_loss=2.0 - r / 2,
                        gemd=None if name == "one" or not r else 0.5,
                        cohort=(0,) if r else (),
                    )
                    for r in range(3)
                ]
                made.save({config.key: rounds}, done=True)
        yield made


def table(store):
    console = Console(width=200, file=io.StringIO())
    console.print(ResultsTable(summarise(store, 0.3)))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_the_table_says_the_right_word_and_number(mixed):
    r2, f1, text = table(mixed).split("\n\n")
    assert "train R²" in r2
    assert "rounds to 0.3" in r2
    assert "0.300" in r2
    assert "GEMD" not in r2
    assert "train F1" in f1
    assert "train accuracy" in text
    assert "rounds to 30 %" in text
    assert "test perplexity" in text
    assert f"{math.exp(1):.2f}" in text
    assert "perplexity" not in r2 + f1


def test_json_has_the_score_in_its_keys(mixed):
    found = {r["dataset"]: r for r in to_json(summarise(mixed, 0.3), 0.3)["results"]}
    assert found["one"]["train_r2"] == pytest.approx([0.0, 0.2, 0.4])
    assert found["labels"]["test_f1"] == pytest.approx([-0.2, 0.0, 0.2])
    assert found["text"]["test_accuracy"] == found["labels"]["test_f1"]
    assert "train_accuracy" not in found["one"]
    assert found["text"]["test_perplexity"] == pytest.approx(math.exp(1))
    assert found["labels"]["test_perplexity"] is None
    assert [found[name]["score"] for name in JUDGED] == ["R²", "F1", "accuracy"]


def test_an_export_has_a_column_for_every_score(mixed, tmp_path):
    export(mixed, tmp_path)
    with (tmp_path / "rounds.csv").open(encoding="utf-8") as file:
        rounds = list(csv.DictReader(file))
    scores = [rounds[2][f"train_{word}"] for word in ("r2", "f1", "accuracy")]
    assert float(scores[0]) == pytest.approx(0.3)
    assert scores[1:] == ["", ""]
    assert rounds[-1]["test_accuracy"] == "0.2"
    with (tmp_path / "summary.csv").open(encoding="utf-8") as file:
        assert next(csv.DictReader(file))["final_train_r2"] == "0.3"


def test_python_calls_columns_by_the_score(mixed):
    results = Results.load(mixed.folder)
    assert {"train_r2", "train_f1", "test_accuracy"} <= set(results.rounds.columns)
    assert "final_train_f1" in results.summary(target=0.3)
    assert results.plot(ax=Figure().subplots()).get_ylabel() == "test r2"


def test_the_page_says_the_right_words(mixed, tmp_path):
    page = write_report(mixed, tmp_path / "r.html", 0.3).read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert data["scores"] == ["R²", "F1", "accuracy"]
    assert "final train R²" in page
    assert "final test F1" in page
    assert "test perplexity" in page
    assert "rounds to 0.3" in page
    assert ">–</td>" in page.split("one, IID</h3>")[2].split("</table>")[0], "no GEMD"
    assert "R² is the share" in page


def test_of_one_score_every_heading_speaks(mixed, copy_runs, tmp_path):
    single = copy_runs(mixed, change=lambda c: c if c.dataset == "one" else None)
    page = write_report(single, tmp_path / "r.html", 0.3).read_text(encoding="utf-8")
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "R² by round" in markup
    assert "Rounds to 0.3 training R²" in markup
    assert "accuracy" not in markup.lower()


def test_equal_results_are_level(mixed):
    members = summarise(mixed, 0.3)[:2]
    assert {s.rounds_to_target for s in members} == {2}, "one of them with a better score"
    assert leaders(members) == members
    later = dataclasses.replace(members[1], rounds_to_target=3)
    assert leaders([members[0], later]) == members[:1]
    nobody = [dataclasses.replace(s, rounds_to_target=None) for s in members]
    assert [s.label for s in leaders(nobody)] == ["fedavg"]


def test_a_page_is_small(mixed, tmp_path):
    assert write_report(mixed, tmp_path / "r.html", 0.3).stat().st_size < 150_000
