import numpy as np
import pytest
from running import lockstep_of, run

from fedcohort.errors import StoreError
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.kept_models import keep_models, read_model

CONFIG = RunConfig(clients=10, cohort=3, rounds=2)


def test_the_model_that_is_kept_is_the_last_one(tmp_path):
    with Store(tmp_path) as store:
        run([CONFIG], store, keep_models=True)
    lockstep = lockstep_of(CONFIG)
    for _ in range(2):
        lockstep.advance()
    kept, expected = read_model(tmp_path, CONFIG.key), lockstep.models(0)
    assert kept.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(kept[name], values)


def test_a_model_that_is_not_there_or_damaged_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"model of run 'abc' .* run it again"):
        read_model(tmp_path, "abc")
    keep_models(tmp_path, {"abc": {"w": np.ones(3)}})
    assert read_model(tmp_path, "abc")["w"].tolist() == [1, 1, 1]
    (path,) = (tmp_path / "models").iterdir()
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StoreError, match="'abc'"):
        read_model(tmp_path, "abc")
