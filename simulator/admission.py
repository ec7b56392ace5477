"""Sends a new pod through both webhooks, as the API server does, and stores it."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import structlog

from simulator.api import Api
from simulator.cluster.kinds import PODS
from simulator.cluster.store import Store
from simulator.jsonpatch import apply_patch
from simulator.pods import bare

log = structlog.get_logger(__name__)


async def create(api: Api, store: Store, manifest: dict[str, Any]) -> dict[str, Any] | None:
    """The pod as it is stored, None where it is refused. Raises BadPatch."""
    pod = await admitted(api, manifest)
    meta = manifest["metadata"]
    return None if pod is None else store.create(PODS, meta["namespace"], pod, uid=meta["uid"])


async def admitted(api: Api, manifest: dict[str, Any]) -> dict[str, Any] | None:
    """The pod as the webhooks leave it, None where one refuses it. Raises BadPatch."""
    uid = manifest["metadata"]["uid"]
    answer = await api.review("/webhooks/pods/mutate", bare(manifest))
    if answer.get("allowed") and answer.get("patch"):
        manifest = apply_patch(bare(manifest), msgspec.json.decode(base64.b64decode(answer["patch"])))
        manifest["metadata"]["uid"] = uid
    if answer.get("allowed"):
        answer = await api.review("/webhooks/pods/validate", manifest)
    if answer.get("allowed"):
        return manifest
    meta, why = manifest["metadata"], str((answer.get("status") or {}).get("message"))[:200]
    log.warning("pod.denied", pod=f"{meta['namespace']}/{meta['name']}", why=why)
    return None
