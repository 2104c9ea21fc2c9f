import threading

import pytest
import torch

from fedcohort.training.workers import Workers


@pytest.mark.parametrize("workers", [Workers(1, 1), Workers(1, 2), Workers(3, 1), Workers(2, 2)])
def test_results_come_in_order_and_each_worker_has_its_threads(workers):
    before = torch.get_num_threads()
    found = workers.map(lambda item: (item, torch.get_num_threads()), range(20))
    assert found == [(item, workers.threads) for item in range(20)]
    assert torch.get_num_threads() == before


def test_workers_work_beside_each_other():
    together = threading.Barrier(3)
    Workers(3, 1).map(lambda _: together.wait(timeout=20), range(3))


def test_a_thread_that_starts_later_has_the_usual_number_of_threads():
    Workers(2, 1).map(lambda item: item, range(2))
    seen = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [torch.get_num_threads()]
