import re

import pytest

from fedcohort.errors import StudyError, UnknownNameError
from fedcohort.simulation import RunConfig
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import parse_study, read_study, study_of_runs

TWO_PARTS = """
name = "two"
[base]
dataset = "digits"
selector = ["dp3s", "fedavg"]
seeds = "0..2"
epochs = 5
target = 0.9
[[part]]
name = "one class"
skew = 1
rounds = 30
[[part]]
skew = [0.8, "H"]
rounds = 10
batch_size = ["full", 8]
eval_samples = "all"
target = 0.5
target_on = "test"
seeds = [7]
"""


def test_a_part_is_the_product_of_its_lists_over_the_base():
    study = parse_study(TWO_PARTS, "two.toml")
    one, two = study.parts
    assert (study.name, one.name, two.name) == ("two", "one class", "part 2")
    assert (one.target, two.target) == (Target(0.9), Target(0.5, "test"))
    assert one.configs == tuple(
        RunConfig(dataset="digits", skew="1", selector=selector, rounds=30, epochs=5.0, seed=seed)
        for selector in ("dp3s", "fedavg")
        for seed in range(3)
    )
    assert [(c.skew, c.selector, c.batch_size, c.seed) for c in two.configs] == [
        (skew, selector, batch, 7)
        for skew in ("0.8", "H")
        for selector in ("dp3s", "fedavg")
        for batch in (None, 8)
    ]
    assert all(c.eval_samples is None for c in two.configs)


def test_a_value_has_one_way_to_be_written_in_a_run():
    """Otherwise a study and a command line would not find each other's runs."""
    study = parse_study("[base]\nepochs = 5\nlr = 1\nskew = 1.0\nmomentum = 0", "s.toml")
    (config,) = study.configs
    assert config.key == RunConfig(epochs=5.0, lr=1.0, skew="1", momentum=0.0).key


def test_a_file_without_parts_is_one_part_and_takes_its_name_from_the_file(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text("[base]\nseeds = 3\n")
    study = read_study(path)
    assert study.name == "plain"
    assert [part.name for part in study.parts] == ["plain"]
    assert study.configs == (RunConfig(seed=3),)


def test_a_run_that_two_parts_name_is_one_run():
    text = '[[part]]\nprofile = ["fc1", "gradient"]\n[[part]]\nprofile = "fc1"\nname = "b"'
    study = parse_study(text, "s.toml")
    assert [len(part.configs) for part in study.parts] == [2, 1]
    assert len(study.configs) == 2


def test_a_selector_that_is_spelt_in_two_ways_runs_once():
    spelt = ("match:evenness=free,guard=profiles", "match: guard=profiles,evenness=free", "match:")
    runs = [RunConfig(selector=selector, seed=seed) for selector in spelt for seed in (0, 1)]
    found = study_of_runs([*runs, RunConfig(selector="match", seed=2)]).configs
    assert [(config.selector, config.seed) for config in found] == [
        (spelt[0], 0),
        (spelt[0], 1),
        ("match:", 0),
        ("match:", 1),
        ("match:", 2),
    ]


def test_parts_are_chosen_by_name():
    study = parse_study(TWO_PARTS, "two.toml")
    assert study.only(["part 2"]).configs == study.parts[1].configs
    with pytest.raises(UnknownNameError, match="did you mean 'one class'"):
        study.only(["one clas"])


WRONG = {
    "not toml": ("[base", r"s\.toml is not TOML"),
    "unknown setting": ("[base]\nselektor = 'dp3s'", r"\[base\]: .*'selektor': did you mean 'sel"),
    "unknown in a part": ("[[part]]\n[[part]]\nroundz = 3", r"\[\[part\]\] 2: .*'rounds'"),
    "seed": ("[base]\nseed = 3", r"\[base\]: .*did you mean 'seeds'"),
    "above the tables": ("lr = 0.1\n[base]", r"lr stands above the tables: put it under \[base\]"),
    "unknown table": ("[bass]", r"'bass': did you mean 'base'"),
    "name": ("name = 3", "name must be a text, not 3"),
    "base": ("base = 3", r"base must be a table \[base\]"),
    "part": ("[part]\nlr = 1", r"part must be tables \[\[part\]\]"),
    "part name": ("[[part]]\nname = 3", "its name a text"),
    "same name": ("[[part]]\nname = 'a'\n[[part]]\nname = 'a'", r"\[\[part\]\] 2: .*'a'"),
    "value": ("[base]\nlr = -1", r"\[base\]: lr .*above 0, not -1"),
    "value in a list": ("[base]\nrounds = [3, 0]", r"\[base\]: rounds .* at least 1, not 0"),
    "selector": ("[base]\nselector = ['dp3', 'fedavg']", r"\[base\]: .*did you mean 'dp3s'"),
    "parameter": ("[base]\nselector = 'fedsae:bta=1'", r"\[base\]: .*bta"),
    "skew": ("[[part]]\nskew = 'X'", r"\[\[part\]\] 1: .*X"),
    "init": ("[base]\ninit = 'xavier'", r"\[base\]: init .*xavier-normal"),
    "text": ("[base]\ndataset = 3", r"\[base\]: dataset must be a text, not 3"),
    "truth": ("[base]\nlr = true", r"\[base\]: lr .* not True"),
    "table": ("[base.selector]\na = 1", r"\[base\]: selector must be"),
    "nested": ("[base]\nlr = [[0.1]]", r"\[base\]: lr must be one value or a flat list"),
    "empty": ("[base]\nseeds = []", r"\[base\]: seeds is an empty list"),
    "twice": ("[base]\nselector = ['dp3s', 'dp3s']", r"selector names 'dp3s' twice"),
    "twice in other words": ("[base]\nselector = ['dp3s', 'dp3s:']", "selector names 'dp3s' twice"),
    "twice as numbers": ("[base]\nskew = [1, '1']", r"skew names '1' twice"),
    "seeds": ("[base]\nseeds = '9..0'", r"\[base\]: seeds '9\.\.0' runs backwards"),
    "seeds of words": ("[base]\nseeds = ['a']", r'seeds must be a text such as "0\.\.9"'),
    "half a seed": ("[base]\nseeds = 0.5", r"\[base\]: seed .*whole number"),
    "target": ("[[part]]\ntarget = 2", r"\[\[part\]\] 1: target must be .* at most 1, not 2"),
    "percent": ("[[part]]\ntarget = 90", r"\[\[part\]\] 1: target .* not 90: write 0\.9 for 90 %"),
    "target on": ("[base]\ntarget = 0.5\ntarget_on = 'tests'", r"\[base\]: target_on must be one"),
    "target on above": ("target_on = 'test'\n[base]", r"target_on stands above the tables"),
    "target on nothing": (
        "[[part]]\ntarget_on = 'test'",
        r"\[\[part\]\] 1: target_on has no target",
    ),
    "content": ("[base]\ncontent = 'abc'", r"\[base\]: .*no setting 'content'"),
    "alone": ("[base]\nprofile_delta = 1e-6", r"\[base\]: profile_delta .* give both"),
    "together": ("[base]\nclients = 5\n[[part]]\ncohort = 9", r"\[\[part\]\] 1: cohort .*at most"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_sentence_with_file_and_table(case):
    text, complaint = WRONG[case]
    with pytest.raises(StudyError) as caught:
        parse_study(text, "s.toml")
    said = str(caught.value)
    assert said.startswith("s.toml")
    assert re.search(complaint, said), said
    assert "\n" not in said


def test_what_is_replaced_is_replaced_in_all_parts_and_said_in_the_source():
    plain = parse_study(TWO_PARTS, "two.toml")
    study = parse_study(TWO_PARTS, "two.toml", {"selector": ["match"], "seeds": [3, 4]})
    assert [{(c.selector, c.seed) for c in part.configs} for part in study.parts] == [
        {("match", 3), ("match", 4)}
    ] * 2
    assert [part.target for part in study.parts] == [part.target for part in plain.parts]
    assert study.source.splitlines()[-2:] == ["# selector = ['match']", "# seeds = [3, 4]"]
    assert parse_study(study.source, "two.toml").configs == plain.configs


def test_what_cannot_replace_is_said():
    for replaced, complaint in {
        ("matsch",): "in place of the study's: .*did you mean 'match'",
        ("match", "match"): "in place of the study's: selector names 'match' twice",
    }.items():
        with pytest.raises(StudyError, match=complaint):
            parse_study(TWO_PARTS, "two.toml", {"selector": list(replaced)})
    with pytest.raises(StudyError, match="multiply to 500000 runs"):
        parse_study(TWO_PARTS, "two.toml", {"seeds": list(range(50_000))})


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StudyError, match=r"nothing\.toml"):
        read_study(tmp_path / "nothing.toml")


def test_a_product_that_nobody_meant_is_refused_before_it_is_made():
    lists = [f"{name} = {list(range(1, 101))}" for name in ("clients", "rounds", "eval_every")]
    source = "\n".join(["[base]", "cohort = 1", 'seeds = "0..99"', *lists])
    with pytest.raises(StudyError, match="multiply to 100000000 runs"):
        parse_study(source, "large.toml")


def test_what_applies_only_with_another_setting_may_stand_in_another_table():
    study = parse_study("[base]\nprofile_delta = 1e-6\n[[part]]\nprofile_epsilon = 2", "s.toml")
    assert study.configs == (RunConfig(profile_epsilon=2.0, profile_delta=1e-6),)


def test_words_stand_for_no_value():
    text = "deadline = 'none'\nprofile_layer = 'auto'\nsamples_per_client = 'largest'"
    assert parse_study(f"[base]\n{text}", "s.toml").configs == (RunConfig(),)


def test_a_share_may_be_written_as_a_number():
    assert parse_study("[base]\navailability = 0.7", "s.toml").configs[0].availability == "0.7"
