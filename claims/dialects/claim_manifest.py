"""The GpuClaim manifest.

Invariants: a `ClaimSpec` obeys every rule of a GpuClaim; unknown fields are refused by name, since a misspelt
`memoryRatio` would otherwise request a whole device.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from claims.dialects.request import CORE_WHOLE, Policy, Refusal
from claims.manifest_metadata import ManifestInvalid, checked, parse_metadata
from kube.device_types import GPU
from kube.keys import API_VERSION
from kube.names import check_label, check_subdomain
from kube.objects import ObjectMeta
from kube.quantities import QuantityError, parse_quantity

KIND: Final = "GpuClaim"
DEFAULT_NAMESPACE: Final = "default"
COUNT_MOST: Final = 1_000
"""More devices than any node has; keeps later sums within 64 bits."""
TTL_SECONDS_MOST: Final = 10 * 365 * 24 * 3600
MODELS_MOST: Final = 64
MODEL_LONGEST: Final = 128

_SHOWN: Final = 64
_MIG_MODEL: Final = re.compile(r".* MIG (?P<profile>[0-9a-z](?:[0-9a-z.+-]{0,38}[0-9a-z])?)", re.IGNORECASE)
_ROOT: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_SPEC: Final = ("devices", "gangRef", "ttlSeconds", "resize")
_DEVICES: Final = ("count", "type", "model", "core", "memory", "memoryRatio", "policy", "policyStrict")


class ClaimDevices(msgspec.Struct, frozen=True, omit_defaults=True):
    """spec.devices. Amounts are per device; without any, devices are whole."""

    count: int
    type: str = GPU
    model: tuple[str, ...] = ()
    core: int | None = None
    """Percent, 1..100."""
    memory_bytes: int | None = None
    memory_ratio: int | None = None
    """Percent, 1..100."""
    policy: Policy = Policy.NONE
    policy_strict: bool = False


class ClaimSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The validated spec of a GpuClaim."""

    devices: ClaimDevices
    gang_ref: str = ""
    ttl_seconds: int | None = None
    resize: bool = False
    """Shares that were given through it follow its amounts."""


FindClaim = Callable[[str, str], ClaimSpec | Refusal | None]
"""(namespace, name) → the claim, a refusal if the stored one is malformed, or None."""


def parse_claim_manifest(manifest: object, *, generated_name: bool = False) -> tuple[ObjectMeta, ClaimSpec]:
    """Metadata and spec of a decoded GpuClaim manifest. Raises `ManifestInvalid`.

    `apiVersion` and `kind` are optional. `generated_name`: `metadata.generateName` may replace the name.
    """
    root = _object(manifest, "", _ROOT)
    for key, want in (("apiVersion", API_VERSION), ("kind", KIND)):
        if root.get(key, want) != want:
            raise ManifestInvalid(key, "constant", f"{key} must be {want}")
    metadata = parse_metadata(root.get("metadata"), generated_name=generated_name)
    return metadata, parse_claim_spec(root.get("spec"))


def without_unknown_fields(manifest: object) -> tuple[object, list[str]]:
    """The manifest without unknown fields, which the API server prunes, and the paths of those."""
    dropped: list[str] = []

    def prune(value: object, path: str, fields: Mapping[str, object]) -> object:
        if not isinstance(value, Mapping):
            return value
        dropped.extend(f"{path}{str(key)[:_SHOWN]}" for key in value if key not in fields)
        return {
            key: prune(part, f"{path}{key}.", inner) if isinstance(inner := fields[key], Mapping) else part
            for key, part in value.items()
            if key in fields
        }

    spec = dict.fromkeys(_SPEC) | {"devices": dict.fromkeys(_DEVICES)}
    return prune(manifest, "", dict.fromkeys(_ROOT) | {"spec": spec}), dropped


def parse_claim_spec(spec: object) -> ClaimSpec:
    """The spec of a decoded GpuClaim manifest. Raises `ManifestInvalid`."""
    if spec is None:
        raise ManifestInvalid("spec", "required", "spec is required")
    fields = _object(spec, "spec", _SPEC)
    if fields.get("devices") is None:
        raise ManifestInvalid("spec.devices", "required", "spec.devices is required")
    gang_ref = fields.get("gangRef") or ""
    if gang_ref:
        checked(check_subdomain, gang_ref, "spec.gangRef")
    return ClaimSpec(
        devices=_devices(fields["devices"]),
        gang_ref=gang_ref,
        ttl_seconds=_integer(fields, "ttlSeconds", "spec", most=TTL_SECONDS_MOST),
        resize=_boolean(fields.get("resize"), "spec.resize"),
    )


def stored_claim(name: str, manifest: object | None) -> ClaimSpec | Refusal | None:
    """The answer of a `FindClaim` for a stored manifest."""
    if manifest is None:
        return None
    try:
        return parse_claim_manifest(manifest)[1]
    except ManifestInvalid as error:
        return malformed_claim(name, error)


def malformed_claim(name: str, error: ManifestInvalid) -> Refusal:
    """The refusal of pods of a claim that is stored malformed."""
    return Refusal(rule="claim-malformed", reason=f"GpuClaim {name} is malformed: {error.message}", field=error.field)


def mig_profile(models: Iterable[str]) -> str:
    """`1g.10gb` of models such as `NVIDIA H100 80GB HBM3 MIG 1g.10gb`, empty for others."""
    return next((named["profile"].casefold() for model in models if (named := _MIG_MODEL.fullmatch(model))), "")


def _check_mig(devices: ClaimDevices) -> None:
    """Refuse a request for MIG instances that they cannot serve."""
    kinds = {mig_profile((model,)) for model in devices.model}
    if kinds <= {""}:
        return
    path = "spec.devices"
    if len(kinds) > 1 or devices.type != GPU:
        raise ManifestInvalid(
            f"{path}.model", "mig-mixed", f"{path}.model must name GPUs, or MIG instances of one profile, not both"
        )
    for key, value in (("core", devices.core), ("memory", devices.memory_bytes), ("memoryRatio", devices.memory_ratio)):
        if value is not None:
            raise ManifestInvalid(
                f"{path}.{key}", "mig-share", f"MIG instances are given whole; leave out {path}.{key}"
            )
    if devices.policy is Policy.CONTIGUOUS and devices.policy_strict and devices.count > 1:
        raise ManifestInvalid(f"{path}.policyStrict", "mig-island", "no NVLinks join MIG instances")


def _devices(value: object) -> ClaimDevices:
    path = "spec.devices"
    fields = _object(value, path, _DEVICES)
    count = _integer(fields, "count", path, most=COUNT_MOST)
    if count is None:
        raise ManifestInvalid(f"{path}.count", "required", "spec.devices.count is required")
    memory_ratio = _integer(fields, "memoryRatio", path, most=CORE_WHOLE)
    memory_bytes = _memory(fields, path)
    if memory_bytes is not None and memory_ratio is not None:
        raise ManifestInvalid(
            f"{path}.memoryRatio", "memory-and-ratio", "give spec.devices.memory or spec.devices.memoryRatio, not both"
        )
    device_type = fields.get("type")
    if device_type is None:
        device_type = GPU
    devices = ClaimDevices(
        count=count,
        type=checked(check_label, device_type, f"{path}.type"),
        model=_models(fields.get("model"), f"{path}.model"),
        core=_integer(fields, "core", path, most=CORE_WHOLE),
        memory_bytes=memory_bytes,
        memory_ratio=memory_ratio,
        policy=_policy(fields.get("policy"), f"{path}.policy"),
        policy_strict=_boolean(fields.get("policyStrict"), f"{path}.policyStrict"),
    )
    _check_mig(devices)
    return devices


def _object(value: object, path: str, fields: tuple[str, ...]) -> Mapping[str, Any]:
    """The value as an object without unknown keys."""
    if not isinstance(value, Mapping):
        raise ManifestInvalid(path, "type", f"{path or 'the manifest'} must be an object")
    for key in value:
        if key in fields:
            continue
        shown = str(key)[:_SHOWN]
        near = difflib.get_close_matches(shown, fields, n=1)
        advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(fields)}"
        field = f"{path}.{shown}".lstrip(".")
        raise ManifestInvalid(field, "unknown-field", f"{field} is not a field of GpuClaim; {advice}")
    return value


def _integer(fields: Mapping[str, Any], key: str, path: str, *, most: int) -> int | None:
    """A whole number 1..most, or None."""
    value, field = fields.get(key), f"{path}.{key}"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ManifestInvalid(field, "type", f"{field} must be a whole number")
    if not 1 <= value <= most:
        raise ManifestInvalid(field, "range", f"{field} must be 1 to {most}")
    return value


def _memory(fields: Mapping[str, Any], path: str) -> int | None:
    value, field = fields.get("memory"), f"{path}.memory"
    if value is None:
        return None
    try:
        memory_bytes = parse_quantity(value)
    except QuantityError as error:
        raise ManifestInvalid(field, "quantity", f"{field}: {error}") from error
    if memory_bytes == 0:
        raise ManifestInvalid(field, "range", f"{field} must be more than 0")
    return memory_bytes


def _models(value: object, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or len(value) > MODELS_MOST:
        raise ManifestInvalid(field, "type", f"{field} must be a list of at most {MODELS_MOST} model names")
    for model in value:
        if not isinstance(model, str) or not model.strip() or len(model) > MODEL_LONGEST or not model.isprintable():
            raise ManifestInvalid(
                field, "model-name", f"{field} must hold model names of 1 to {MODEL_LONGEST} printable characters"
            )
    return tuple(value)


def _policy(value: object, field: str) -> Policy:
    if value is None:
        return Policy.NONE
    if not isinstance(value, str) or value not in set(Policy):
        raise ManifestInvalid(field, "choice", f"{field} must be one of {', '.join(Policy)}")
    return Policy(value)


def _boolean(value: object, field: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ManifestInvalid(field, "type", f"{field} must be true or false")
    return value
