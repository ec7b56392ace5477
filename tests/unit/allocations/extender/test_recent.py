import pytest

from allocations.asking import Asks
from allocations.extender import recent
from allocations.extender.recent import recall, remember
from tests.builders import whole


@pytest.fixture(autouse=True)
def _empty():
    recent._known.clear()
    yield
    recent._known.clear()


def test_the_last_word_of_a_pod_counts():
    """CLAIM-4 advisory mode: bind knows what the pod asked for when it was filtered last."""
    remember("u", Asks(whole(1), 1, 30, confined=False))
    remember("u", Asks(whole(2), None, 30, confined=True))
    assert recall("u") == Asks(whole(2), None, 30, confined=True)
    assert recall("v") is None


def test_memory_is_bounded(monkeypatch):
    """The pods asked about longest ago are forgotten first."""
    monkeypatch.setattr(recent, "MOST", 2)
    for uid in ("a", "b", "a", "c"):
        remember(uid, Asks(whole(1), None, 30, confined=True))
    assert [uid for uid in "abc" if recall(uid)] == ["a", "c"]
