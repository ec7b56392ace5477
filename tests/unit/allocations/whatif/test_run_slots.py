"""One run a user, four in all."""

import pytest
import redis

from access.errors import TooManyUnderWay, Unavailable
from allocations.whatif.run_slots import KEY, RETRY_SECONDS, RUNS_MOST, RunSlots


@pytest.fixture(params=["redis", "away"])
def turns(request, settings, tmp_path):
    """Turns with Redis there, and away."""
    if request.param == "redis":
        settings.GPUPLANE_REDIS_URL = request.getfixturevalue("redis_url")
    else:
        settings.GPUPLANE_REDIS_URL = f"unix://{tmp_path}/nobody-listens.sock"
    return RunSlots()


def test_a_user_has_one(turns):
    """VIEW-4 a second run of the same user is refused while the first goes on, and no longer."""
    with turns.taken(7):
        with pytest.raises(TooManyUnderWay) as caught, turns.taken(7):
            raise AssertionError("a second turn")
        assert caught.value.retry_after_seconds == RETRY_SECONDS
        with turns.taken(8):
            assert turns.running == 2
    with turns.taken(7):
        assert turns.running == 1
    assert turns.running == 0


def test_there_are_four(turns):
    """VIEW-4 a fifth user is refused while four runs go on."""
    held = [turns.taken(user) for user in range(RUNS_MOST)]
    for turn in held:
        turn.__enter__()
    with pytest.raises(Unavailable), turns.taken(99):
        raise AssertionError("a fifth turn")
    held.pop().__exit__(None, None, None)
    with turns.taken(99):
        assert turns.running == RUNS_MOST
    for turn in held:
        turn.__exit__(None, None, None)
    assert turns.running == 0


def test_a_run_that_fails_gives_its_turn_back(turns):
    with pytest.raises(ValueError, match="boom"), turns.taken(7):
        raise ValueError("boom")
    with turns.taken(7):
        assert turns.running == 1


def test_one_a_user_holds_across_web_processes(settings, redis_url):
    """VIEW-4 another process refuses the same user, and forgets them by itself where the first one died."""
    settings.GPUPLANE_REDIS_URL = redis_url
    one, other = RunSlots(), RunSlots()
    with one.taken(7):
        with pytest.raises(TooManyUnderWay), other.taken(7):
            raise AssertionError("a second turn")
        assert other.running == 0
        client = redis.Redis.from_url(redis_url)
        assert 0 < client.pttl(f"{KEY}7") <= 15_000
        client.set(f"{KEY}7", "another's by now")
    assert client.get(f"{KEY}7") == b"another's by now"
    client.close()
