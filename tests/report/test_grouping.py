import dataclasses

from fedcohort.report.grouping import group_runs, panel_title
from fedcohort.simulation import RunConfig

BASE = RunConfig(dataset="mnist", skew="0.8", selector="dp3s")


def names(configs):
    return [(g.panel, g.label) for g in group_runs(configs)]


def test_runs_that_differ_in_the_seed_alone_are_one_group():
    (group,) = group_runs([dataclasses.replace(BASE, seed=seed) for seed in (3, 1, 2, 1)])
    assert [c.seed for c in group.configs] == [1, 2, 3]
    assert (group.panel, group.label) == ("MNIST, ξ = 0.8", "dp3s")


def test_the_usual_setting_keeps_its_plain_name():
    configs = [
        BASE,
        dataclasses.replace(BASE, init="xavier-normal"),
        dataclasses.replace(BASE, profile="gradient"),
        dataclasses.replace(BASE, selector="fedavg"),
    ]
    assert [label for _, label in names(configs)] == [
        "dp3s",
        "dp3s · xavier-normal",
        "dp3s · gradient profiles",
        "fedavg",
    ]
    assert len({panel for panel, _ in names(configs)}) == 1


def test_settings_that_cannot_be_compared_are_panels_of_their_own():
    other = dataclasses.replace(BASE, lr=0.5, batch_size=10)
    assert names([BASE, other]) == [
        ("MNIST, ξ = 0.8, full batch, lr 0.1", "dp3s"),
        ("MNIST, ξ = 0.8, B = 10, lr 0.5", "dp3s"),
    ]


def test_what_is_off_goes_without_saying():
    dropping = dataclasses.replace(BASE, dropout=0.3)
    late = dataclasses.replace(BASE, speed_spread=0.8, over_selection=1.3, server="adam:lr=0.1")
    assert [panel for panel, _ in names([BASE, dropping, late])] == [
        "MNIST, ξ = 0.8",
        "MNIST, ξ = 0.8, dropout 0.3",
        "MNIST, ξ = 0.8, adam:lr=0.1, speeds spread 0.8, 1.3 × asked",
    ]


def test_data_that_were_replaced_are_shown_apart():
    old = RunConfig(dataset="my.npz", skew="natural", selector="fedavg", content="aaaaaaaaaaaaaaaa")
    new = dataclasses.replace(old, content="bbbbbbbbbbbbbbbb")
    assert names([old, new]) == [
        ("my.npz, its own clients, content aaaaaa", "fedavg"),
        ("my.npz, its own clients, content bbbbbb", "fedavg"),
    ]


def test_a_selector_of_ones_own_is_compared_with_the_others():
    own = dataclasses.replace(BASE, selection_content="aaaaaaaaaaaaaaaa")
    assert len({panel for panel, _ in names([BASE, own])}) == 1


def test_two_revisions_of_a_rule_are_told_apart_where_both_were_run():
    new = dataclasses.replace(BASE, selector_revision=2)
    assert [label for _, label in names([BASE, new])] == ["dp3s", "dp3s · revision 2"]
    assert [label for _, label in names([new])] == ["dp3s"]


def test_titles():
    assert panel_title("fashion-mnist", "H") == "Fashion-MNIST, ξ = H"
    assert panel_title("digits", "dirichlet:0.1") == "Digits, Dirichlet(0.1)"
    assert panel_title("digits", "iid") == "Digits, IID"
    assert panel_title("some/folder/mine.npz", "natural") == "mine.npz, its own clients"
