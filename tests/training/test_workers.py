import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import scipy.linalg  # noqa: F401  (has a BLAS of its own)
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from fedcohort.training.workers import (
    in_workers,
    limit_workers,
    one_thread_per_operation,
    worker_count,
)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_order_and_each_worker_computes_alone(workers, count):
    workers(count)
    before = torch.get_num_threads()
    found = in_workers(lambda item: (item, torch.get_num_threads()), range(20))
    assert found == [(item, 1) for item in range(20)]
    assert torch.get_num_threads() == before


def test_workers_work_beside_each_other(workers):
    workers(3)
    together = threading.Barrier(3)
    in_workers(lambda _: together.wait(timeout=60), range(3))


def test_a_thread_that_starts_later_has_the_usual_number_of_threads(workers):
    workers(2)
    in_workers(lambda item: item, range(2))
    seen = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [torch.get_num_threads()]


def test_operations_are_split_again_afterwards():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread_per_operation():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if "blas" in library["prefix"]]


def test_products_of_numpy_are_not_split_and_afterwards_are_again():
    with threadpool_limits(2, user_api="blas"):
        usual = blas_threads()
        assert 2 in usual
        with one_thread_per_operation():
            with one_thread_per_operation():
                assert set(blas_threads()) == {1}
            assert set(blas_threads()) == {1}
            with ThreadPoolExecutor(1) as other:
                assert set(other.submit(blas_threads).result()) == {1}
        assert blas_threads() == usual


def test_there_are_as_many_workers_as_somebody_said(monkeypatch, workers):
    workers(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert worker_count() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert worker_count() >= 1
    limit_workers(3)
    assert worker_count() == 3
    limit_workers(0)
    assert worker_count() == 1
