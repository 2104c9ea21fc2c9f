import numpy as np

from fedcohort.cli.select import select_once


def test_profiles_come_from_any_file_that_advise_reads(tmp_path):
    profiles, sizes = np.random.default_rng(0).normal(size=(9, 3)), np.arange(1, 10)
    np.save(tmp_path / "p.npy", profiles)
    np.save(tmp_path / "n.npy", sizes)
    np.savetxt(tmp_path / "p.csv", profiles, delimiter=",")
    np.savez(tmp_path / "both.npz", profiles=profiles, sizes=sizes)
    chosen = select_once(tmp_path / "p.npy", 4, "match", 0, tmp_path / "n.npy")
    assert select_once(tmp_path / "p.csv", 4, "match", 0, tmp_path / "n.npy") == chosen
    assert select_once(tmp_path / "both.npz", 4, "match", 0, None) == chosen
