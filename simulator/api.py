"""gpuplane as a cluster sees it: REST, webhooks and extender, over one HTTP client.

Used by `__main__` (registration) and `workload`. Invariants: a call that fails for a temporary reason is repeated a
bounded number of times, with growing, jittered pauses; every call may be made twice.

    ApiFailure
    ├── ServerAway   no usable answer after every attempt; wait for `until_alive` and go on
    └── Refused      a permanent answer: `status` and `detail`
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import httpx
import msgspec
import structlog

from agent.session import backoff

ATTEMPTS: Final = 4
FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 20.0
CHAT_SECONDS: Final = 120.0
"""A request waits for a slot of its model, and is answered as fast as the model is."""
TEMPORARY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
PAGE_SIZE: Final = 1000

log = structlog.get_logger(__name__)


class ApiFailure(Exception):
    """Root of what calls raise."""


class ServerAway(ApiFailure):
    """No usable answer after every attempt."""


class Refused(ApiFailure):
    """A permanent refusal by the server."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class Credentials(msgspec.Struct, frozen=True):
    """The fields of `credentials.json` that are used here."""

    url: str
    api_token: str
    cluster_token: str
    webhooks_token: str
    inventory_token: str


def pause_seconds(attempt: int) -> float:
    """Pause after the `attempt`th failure (1..)."""
    return backoff(attempt, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)


def read_credentials(path: Path) -> Credentials | None:
    """The credentials; None while the file is missing or incomplete."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


async def wait_for_server(path: Path, *, transport: httpx.AsyncBaseTransport | None = None) -> Credentials:
    """Wait for a server that answers `/livez`; its credentials, read anew for each attempt."""
    attempt = 0
    while True:
        credentials = read_credentials(path)
        if credentials is not None and await _is_alive(credentials.url, transport):
            return credentials
        attempt += 1
        if attempt == 1:
            log.info("simulator.waiting", credentials=str(path))
        await asyncio.sleep(min(2.0, pause_seconds(attempt)))


async def _is_alive(url: str, transport: httpx.AsyncBaseTransport | None) -> bool:
    async with httpx.AsyncClient(base_url=url, timeout=5.0, transport=transport) as client:
        try:
            return (await client.get("/livez")).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


class Api:
    """Client of gpuplane. Use as an async context manager."""

    def __init__(self, credentials: Credentials, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport
        self.credentials = credentials
        self._client = httpx.AsyncClient(
            base_url=credentials.url,
            timeout=TIMEOUT_SECONDS,
            transport=transport,
            limits=httpx.Limits(max_connections=8, max_keepalive_connections=8),
        )
        self._models = httpx.AsyncClient(
            base_url=credentials.url,
            timeout=CHAT_SECONDS,
            transport=transport,
            headers={"Authorization": f"Bearer {credentials.api_token}"},
        )
        self._rest = {"Authorization": f"Bearer {credentials.api_token}"}
        self._cluster = {"Authorization": f"Bearer {credentials.cluster_token}"}
        self._webhooks = {"Authorization": f"Bearer {credentials.webhooks_token}"}
        self._inventory = {"Authorization": f"Bearer {credentials.inventory_token}"}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        await self._models.aclose()

    async def until_alive(self) -> None:
        """Wait until the server answers `/livez`."""
        attempt = 0
        while not await _is_alive(self.credentials.url, self._transport):
            attempt += 1
            await asyncio.sleep(pause_seconds(attempt))

    async def put_inventory(self, node: str, body: Mapping[str, Any]) -> None:
        """Register or update the node."""
        await self._call("PUT", f"/api/v1/nodes/{node}/inventory/", self._inventory, body)

    async def agent_token(self, node: str) -> str:
        """Create a token for the node's agent, which revokes earlier ones."""
        asked = {"scope": "agent", "node": node}
        return str((await self._call("POST", "/api/v1/tokens/", self._rest, asked))["token"])

    async def create_claim(self, manifest: Mapping[str, Any]) -> bool:
        """Create a GpuClaim; False where it exists already."""
        return await self._create("claims", manifest)

    async def create_queue(self, manifest: Mapping[str, Any]) -> bool:
        """Create a GpuQueue; False where it exists already."""
        return await self._create("queues", manifest)

    async def create_gang(self, manifest: Mapping[str, Any]) -> bool:
        """Create a GpuGang; False where it exists already."""
        return await self._create("gangs", manifest)

    async def create_model(self, body: Mapping[str, Any]) -> bool:
        """Create a model for inference; False where it exists already."""
        return await self._create("models", body)

    async def chat(self, model: str, *, tokens: int) -> str:
        """Ask a model; its answer. It is asked once: a model that is not ready in time answers 503."""
        body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "hello"}]}
        try:
            answer = await self._models.post("/v1/chat/completions", json=body)
        except httpx.TransportError as error:
            raise ServerAway(str(error) or type(error).__name__) from error
        if answer.is_error:
            raise Refused(answer.status_code, answer.text)
        return str(answer.json()["choices"][0]["message"]["content"])

    async def _create(self, kind: str, manifest: Mapping[str, Any]) -> bool:
        try:
            await self._call("POST", f"/api/v1/{kind}/", self._rest, manifest)
        except Refused as refused:
            if refused.status == httpx.codes.CONFLICT:
                return False
            raise
        return True

    async def claim_names(self) -> set[tuple[str, str]]:
        """(namespace, name) of every GpuClaim."""
        rows = self._list("/api/v1/claims/", {})
        return {(row["metadata"]["namespace"], row["metadata"]["name"]) async for row in rows}

    async def live_allocations(self) -> list[dict[str, Any]]:
        """All live allocations."""
        return [row async for row in self._list("/api/v1/allocations/", {"live": "true"})]

    async def allocations_of_pod(self, pod_uid: str) -> list[dict[str, Any]]:
        """The pod's live allocation, or none."""
        return [row async for row in self._list("/api/v1/allocations/", {"pod_uid": pod_uid, "live": "true"})]

    async def review(self, path: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Send the AdmissionReview of a pod's creation to a webhook; its `response`."""
        meta = pod["metadata"]
        request = {
            "uid": str(uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": meta["name"],
            "namespace": meta["namespace"],
            "operation": "CREATE",
            "userInfo": {"username": f"{meta['namespace']}-user", "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        }
        body = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
        answer = await self._call("POST", path, self._webhooks, body)
        return dict(answer["response"])

    async def extender_filter(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
        """ExtenderFilterResult for the pod on these nodes."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        return dict(await self._call("POST", "/extender/filter", self._cluster, body))

    async def extender_prioritize(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> list[dict[str, Any]]:
        """HostPriorityList for the pod on these nodes."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        return list(await self._call("POST", "/extender/prioritize", self._cluster, body) or [])

    async def extender_bind(self, pod: Mapping[str, Any], node: str) -> str:
        """Bind the pod; the error, empty when it is bound."""
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        answer = await self._call("POST", "/extender/bind", self._cluster, body)
        return str((answer or {}).get("Error") or "")

    async def _list(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Rows of every page."""
        url: str | None = str(httpx.URL(path, params={**query, "page_size": str(PAGE_SIZE)}))
        while url:
            page = await self._call("GET", url, self._rest, None)
            for row in page["results"]:
                yield row
            url = page.get("next")

    async def _call(self, method: str, url: str, headers: Mapping[str, str], body: object) -> Any:
        """The decoded answer. Raises Refused, and ServerAway after the last attempt."""
        content = None if body is None else msgspec.json.encode(body)
        sent = {**headers, "Content-Type": "application/json"} if content is not None else dict(headers)
        why = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = await self._client.request(method, url, content=content, headers=sent)
            except httpx.TransportError as error:
                why = f"{type(error).__name__} {error}".strip()
            else:
                if answer.is_success:
                    return msgspec.json.decode(answer.content) if answer.content else None
                if answer.status_code not in TEMPORARY:
                    raise Refused(answer.status_code, answer.text[:300])
                why = f"status {answer.status_code}: {answer.text[:200]}"
            if attempt < ATTEMPTS:
                await asyncio.sleep(pause_seconds(attempt))
        raise ServerAway(f"{method} {url}: {why}")
