import httpx
import pytest

from gpuplane.doors.bodies import limited

LIMIT = 1000


async def reader(scope, receive, send):
    """Reads its body whole, as Django does, before it answers."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def chunks(size):
    for _ in range(size // 100):
        yield b"x" * 100


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(lambda: b"x" * LIMIT, 200, id="at the limit"),
        pytest.param(lambda: b"x" * (LIMIT + 1), 413, id="declared above"),
        pytest.param(lambda: chunks(LIMIT), 200, id="streamed at the limit"),
        pytest.param(lambda: chunks(LIMIT * 2), 413, id="streamed above"),
    ],
)
async def test_limited(content, want):
    transport = httpx.ASGITransport(limited(reader, limit=LIMIT))
    async with httpx.AsyncClient(transport=transport, base_url="http://gpuplane") as http:
        answer = await http.post("/", content=content())

    assert answer.status_code == want
    if want == 413:
        assert answer.json()["title"] == "Request Entity Too Large" or answer.json()["status"] == 413
