"""The web process that functional tests talk to is the real one."""

import httpx
import redis

from nodes.models import Node
from tests.factories import NodeFactory
from tests.servers.web import LiveApp


def test_the_process_answers_and_shares_the_database(live_app: LiveApp) -> None:
    NodeFactory(gpus=1)
    assert Node.objects.count() == 1
    assert httpx.post(f"{live_app.url}/extender/filter", json={}).status_code in {401, 403}


def test_redis_is_empty_and_real(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    try:
        assert client.dbsize() == 0
        client.set("a", "1")
    finally:
        client.close()


def test_redis_is_emptied_between_tests(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    try:
        assert client.dbsize() == 0
    finally:
        client.close()
