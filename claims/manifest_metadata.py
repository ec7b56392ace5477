"""metadata of our kinds' manifests, and the error that names the field and the rule that a manifest breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from access.errors import BadInput
from kube.names import InvalidName, check_namespace, check_subdomain
from kube.objects import ObjectMeta

_FIELDS: Final = ("name", "namespace", "uid", "resourceVersion", "generateName", "annotations", "labels")


class ManifestInvalid(BadInput):
    """A manifest breaks a rule: `field` is a path, `rule` a short stable name, `message` a sentence."""

    def __init__(self, field: str, rule: str, message: str) -> None:
        super().__init__(message, field=field, rule=rule)
        self.message = message


def parse_metadata(value: object, *, generated_name: bool = False) -> ObjectMeta:
    """Metadata of a decoded manifest. Raises `ManifestInvalid`.

    `generated_name`: `metadata.generateName` may replace the name.
    """
    if not isinstance(value, Mapping):
        raise ManifestInvalid("metadata", "required", "metadata with a name is required")
    picked = {key: value[key] for key in _FIELDS if value.get(key) is not None}
    try:
        metadata = msgspec.convert(picked, ObjectMeta)
    except msgspec.ValidationError as error:
        raise ManifestInvalid("metadata", "type", f"metadata is malformed: {error}") from error
    if metadata.name or not (generated_name and metadata.generate_name):
        checked(check_subdomain, metadata.name, "metadata.name")
    else:
        checked(check_subdomain, f"{metadata.generate_name}x", "metadata.generateName")
    if metadata.namespace:
        checked(check_namespace, metadata.namespace, "metadata.namespace")
    return metadata


def checked(check: Callable[..., str], value: object, field: str) -> str:
    """The value, validated by a function of `kube.names`. Raises `ManifestInvalid`."""
    try:
        return check(value, what=field)
    except InvalidName as error:
        raise ManifestInvalid(field, error.rule, str(error)) from error
