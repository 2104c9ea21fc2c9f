import base64
import dataclasses
import hashlib
import itertools
import json
import re

import pytest

from fedcohort.errors import StoreError
from fedcohort.report import summarise
from fedcohort.report.html import write_report
from fedcohort.simulation.scores import Target


@pytest.fixture(scope="module")
def page(store, tmp_path_factory):
    path = write_report(store, tmp_path_factory.mktemp("html") / "report.html", 0.3)
    return path.read_text(encoding="utf-8")


def embedded_text(page):
    return re.search(r'<script type="application/json" id="data">(.*)</script>\n<script>', page)[1]


def embedded(page):
    return json.loads(embedded_text(page))


def own_markup(page):
    """Return the page without its scripts."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_nothing_is_loaded_from_outside(page):
    markup = own_markup(page)
    assert not re.search(r"""(src|href|url\()\s*=?\s*["'(]?\s*(https?:)?//""", markup)
    assert "<link" not in markup.replace('<link rel="icon" href="data:,">', "")


def test_the_policy_allows_exactly_the_scripts_in_the_file(page):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'")
    allowed = re.search(r"script-src ([^;]*)", policy)[1].split()
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert allowed == [f"'sha256-{h}'" for h in hashes]
    assert len(allowed) == 3


def test_the_table_holds_the_numbers_of_the_summaries(page, store):
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, flags=re.DOTALL)
    for summary in summarise(store, 0.3):
        row, served = [r for r in rows if f"</span>{summary.label}</th>" in r]
        assert f">{100 * summary.served[0].worst_decile:.1f} %</td>" in served
        assert f"({100 * summary.worst_class.recognised:.1f} %)" in served
        assert f">{summary.gemd:.3f}</td>" in row
        assert f">{100 * summary.train.mean[-1]:.1f} %</td>" in row
        reached = summary.rounds_to_target
        shown = "&gt;4" if reached is None else reached
        assert f'<td class="lead-number" data-value="{summary.arrival}">{shown}</td>' in row


def test_curves_are_embedded_as_they_are_summarised(page, store):
    data = embedded(page)
    for group, summary in zip(data["groups"], summarise(store, 0.3), strict=True):
        assert group["label"] == summary.label
        assert group["train"]["mean"] == pytest.approx(summary.train.mean, abs=5e-5)
        assert group["test"]["high"] == pytest.approx(summary.test.high, abs=5e-5)


def test_a_target_on_test_samples_is_said_and_drawn_on_them(page, store, tmp_path):
    tested = write_report(store, tmp_path / "r.html", Target(0.3, "test")).read_text()
    assert ">Rounds to 30 % training accuracy</h2>" in page
    assert ">Rounds to 30 % test accuracy</h2>" in tested
    assert 'name="part" value="train" checked>' in page
    assert 'name="part" value="test" checked>' in tested
    assert 'name="part" value="train">' in tested
    assert "--target 0.3 --target-on test" in tested
    for text, part in ((page, "train"), (tested, "test")):
        assert embedded(text)["targets"] == [{"score": 0.3, "on": part}]
        assert {group["reached_on"] for group in embedded(text)["groups"]} == {part}


def test_where_nobody_arrives_there_are_scores_and_nobody_is_marked(store, tmp_path):
    some = write_report(store, tmp_path / "s.html", 0.135).read_text("utf-8")
    text = write_report(store, tmp_path / "r.html", Target(0.999, "test")).read_text("utf-8")
    assert "No selector reached 99.9\u00a0% test within 4 rounds</h1>" in text
    for what in ('class="best"', "MB to target", "MB sent until", "interval drawn"):
        assert what in some
        assert what not in text
    summary = summarise(store, 0.3)[0]
    assert f'"number">{100 * summary.test.last:.1f} % <small>test accuracy</small>' in text


def test_runs_that_diverged_are_counted(page, store, copy_runs, tmp_path):
    changed = copy_runs(store)
    changed.db.execute("UPDATE rounds SET train_loss = 1e30, train_score = 0 WHERE round > 2")
    text = write_report(changed, tmp_path / "r.html", 0.3).read_text("utf-8")
    said = "6 of 6 runs diverged, the first from round 3 on: lower the learning rate."
    assert text.count(said) == 2
    assert "runs diverged" not in page


def test_nobody_is_ahead_without_a_score(varied_store, copy_runs, tmp_path):
    gone = copy_runs(varied_store)
    gone.db.execute("UPDATE rounds SET train_score = NULL, train_loss = NULL WHERE round > 0")
    text = own_markup(write_report(gone, tmp_path / "r.html", 0.9).read_text("utf-8"))
    assert "have no score in the end" in text
    assert not re.search("are level|is ahead|is first", text)


def test_a_beginning_is_no_failure(store, copy_runs, tmp_path):
    begun = copy_runs(store, keep=lambda _, record: record.round == 0)
    text = write_report(begun, tmp_path / "r.html", 0.9).read_text("utf-8")
    assert "<h1>No round is finished yet</h1>" in text


def test_it_says_how_it_was_made(page):
    assert "measured on the whole training set" in page
    assert "fedcohort run --dataset digits --skew 1 --clients 20 --cohort 5" in page
    assert "group earth mover’s distance" in page
    assert "<dt>lr</dt><dd>0.3</dd>" in page


def test_a_subset_is_stated(store, copy_runs, monkeypatch, tmp_path):
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, eval_samples=50))
    facts = changed.facts
    monkeypatch.setattr(changed, "facts", lambda k: facts(k) | {"train_evaluated_on": 50})
    page = write_report(changed, tmp_path / "r.html", None).read_text()
    assert "fixed stratified subset of 50 training samples; the last round on the whole" in page


def test_all_that_counts_as_bytes_is_named(page):
    said = re.search(r"<strong>Bytes</strong> are (.*?)</p>", page)[1]
    for sent in ("models", "profiles", "label counts", "losses", "updates"):
        assert sent in said


def test_headings_are_in_order(page):
    levels = [int(level) for level in re.findall(r"<h(\d)", own_markup(page))]
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_names_cannot_become_markup(store, copy_runs, tmp_path):
    name = '<img src="x" onerror="alert(1)"></script><b>.npz'
    changed = copy_runs(store, change=lambda c: dataclasses.replace(c, dataset=name))
    page = write_report(changed, tmp_path / "r.html", 0.3).read_text()
    assert "<img" not in own_markup(page)
    assert "&lt;b&gt;.npz" in page
    # Whatever stands in the data, it cannot end their element.
    assert "<" not in embedded_text(page)
    assert embedded(page)["panels"] == ["script><b>.npz, ξ = 1"]


def test_the_same_store_gives_the_same_file(page, store, tmp_path):
    assert write_report(store, tmp_path / "again.html", 0.3).read_text(encoding="utf-8") == page


def test_without_target_and_without_test_data(store, monkeypatch, tmp_path):
    records = store.records
    monkeypatch.setattr(
        store, "records", lambda k: [dataclasses.replace(r, test_score=None) for r in records(k)]
    )
    page = write_report(store, tmp_path / "r.html", None).read_text()
    assert "final test" not in page
    assert "MB to target" not in page


def test_gemd_is_explained_as_it_is_measured(page):
    """By aggregation weights, as fedcohort.metrics.gemd has it."""
    formula = re.search(r'class="formula">(.*?)</p>', page)[1].replace("<sub>", "")
    assert "Σc∈𝒞 wc Pc(j) / Σc∈𝒞 wc − Pg(j)" in formula.replace("</sub>", "")
    assert "aggregation weight of client c" in page
    assert "joint label mixture" not in page


def test_time_is_shown_where_clients_are_slow_or_away(page, store, copy_runs, tmp_path):
    slow = copy_runs(store, change=lambda c: dataclasses.replace(c, speed_spread=0.5))
    timed = own_markup(write_report(slow, tmp_path / "r.html", 0.1).read_text("utf-8"))
    assert '<th scope="col">time to target</th>' in timed
    assert "passes of a client of median speed" in timed
    for summary in summarise(slow, 0.1):
        cell = f'data-value="{summary.time_to_target}">{summary.time_to_target:.1f}</td>'
        assert cell in timed
    for other in (page, write_report(slow, tmp_path / "aimless.html", None).read_text("utf-8")):
        assert "time to target" not in other
        assert "median speed" not in other


def test_a_store_without_rounds_is_refused(store, copy_runs, tmp_path):
    with pytest.raises(StoreError, match="no finished round"):
        write_report(copy_runs(store, keep=lambda *_: False), tmp_path / "r.html", 0.9)
    assert not (tmp_path / "r.html").exists()


def test_a_failed_write_leaves_the_old_file_and_no_other(store, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full_disk(_handle):
        raise OSError("No space left on device")

    monkeypatch.setattr("fedcohort.files.os.fsync", full_disk)
    with pytest.raises(StoreError, match="cannot be written"):
        write_report(store, path, 0.3)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_one_sentence(store, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        write_report(store, tmp_path / "file" / "report.html", 0.3)


def test_cards_are_about_selectors_and_not_their_variants(varied_store, tmp_path):
    page = own_markup(write_report(varied_store, tmp_path / "report.html", 0.1).read_text("utf-8"))
    cards = re.findall(r'<div class="card hero">.*?</div>\s*<p>.*?</p>', page, flags=re.DOTALL)
    assert len(cards) == 2, "one a skew"
    for card in cards:
        assert "kaiming" not in card
        assert "first of 2" in card or "are level" in card


def test_of_many_settings_only_the_data_sets_are_named(store, copy_runs, monkeypatch, tmp_path):
    wide = copy_runs(store, change=lambda c: dataclasses.replace(c, lr=0.1 * (1 + c.seed)))
    listed = own_markup(write_report(wide, tmp_path / "few.html", 0.3).read_text("utf-8"))
    assert "lr 0.2" in listed.split('<p class="lead">')[1].split("In every round")[0]
    monkeypatch.setattr("fedcohort.report.html._MOST_SETTINGS_LISTED", 1)
    short = own_markup(write_report(wide, tmp_path / "many.html", 0.3).read_text("utf-8"))
    lead = short.split('<p class="lead">')[1].split("In every round")[0]
    assert re.search(r"runs in \d settings of Digits", lead)
