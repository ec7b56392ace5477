"""What is computed of a snapshot when it is first needed."""

import threading

import numpy as np

from allocations.engine.index import Usage
from allocations.engine.plan import plan
from tests.builders import fleet, node, whole


def test_usage_is_computed_once():
    picture = fleet(node("n1", gpus=8))
    first = picture.usage_of(0)
    assert picture.usage_of(0) is first
    assert picture.usage == {0: first}


def test_of_two_that_compute_usage_at_once_both_get_the_one_stored_first(monkeypatch):
    picture = fleet(node("n1", gpus=8))
    both_compute, found, of = threading.Barrier(2, timeout=5), [], Usage.of

    def slow(view, columns):
        both_compute.wait()
        return of(view, columns)

    monkeypatch.setattr(Usage, "of", slow)
    threads = [threading.Thread(target=lambda: found.append(picture.usage_of(0))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]
    assert picture.usage == {0: found[0]}


def test_threads_that_share_a_snapshot_decide_alike():
    """CLAIM-4 the same picture and request give the same decision, whoever works out first what follows from it."""
    picture = fleet(*(node(f"n{number}", gpus=8, taken=set(range(number))) for number in range(6)))
    alone = plan(fleet(*(node(f"n{number}", gpus=8, taken=set(range(number))) for number in range(6))), whole(4))
    begin, found = threading.Barrier(8, timeout=5), []

    def decide():
        begin.wait()
        found.append((plan(picture, whole(4)).grants, picture.usage_of(0), picture.index.row_of_uuid))

    threads = [threading.Thread(target=decide) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {grants for grants, _, _ in found} == {alone.grants}
    assert len({id(usage) for _, usage, _ in found}) == 1
    assert len({id(rows) for _, _, rows in found}) == 1
    assert np.array_equal(found[0][1].free_count, [8, 7, 6, 5, 4, 3])
