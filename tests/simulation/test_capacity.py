import numpy as np

from fedcohort.simulation.capacity import affordable_passes, completed_passes


def test_tasks_are_completed_as_far_as_they_can_be_afforded():
    tasks = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    assert completed_passes(tasks, np.array([2.5, 1.5, 0.5])).tolist() == [2.0, 1.0, 0.0]


def test_capacity_follows_fedsaes_system_model():
    clients = np.arange(300)
    draws = np.array([affordable_passes(0, round_, clients) for round_ in range(20)])
    assert (draws >= 0).all()
    # Means are uniform on [5, 10], raised a little by the truncation at 0.
    assert 7.3 < draws.mean() < 7.9
    within = draws.std(axis=0, ddof=1).mean()
    # Spreads are uniform on [μ/4, μ/2], 2.8 on average, lowered a little by the truncation.
    assert 2.4 < within < 3.0


def test_a_clients_capacity_does_not_depend_on_who_else_is_asked():
    alone = affordable_passes(3, 5, np.array([8]))
    assert affordable_passes(3, 5, np.array([2, 8, 9]))[1] == alone[0]
    assert affordable_passes(3, 6, np.array([8])) != alone
