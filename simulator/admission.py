"""Sends a new pod through both webhooks, as the API server does."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import structlog

from simulator.api import Api
from simulator.jsonpatch import apply_patch
from simulator.pods import bare

log = structlog.get_logger(__name__)


async def admitted(api: Api, manifest: dict[str, Any]) -> dict[str, Any] | None:
    """The pod as it is stored, None where it is refused. Raises BadPatch."""
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
