"""Kinds of settings: what a value is, in a word, and how it is parsed.

Used by the table in `gpuplane.settings.variables`. A `parse` raises ValueError with the rule for a person.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from access.oidc.providers import parse_providers, parse_secrets
from kube.names import check_label, check_subdomain

NONE: Final = "none"
"""The word for no value at all, where an empty value means the default."""
_TOLERATION_FIELDS: Final = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_IMAGE_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind."""

    label: str
    parse: Callable[[str], Any]


def _path(value: str) -> Path | None:
    return Path(value).expanduser() if value.strip() else None


def _flag(value: str) -> bool:
    word = value.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("give 1 or 0")


def whole(label: str, low: int, high: int) -> Kind:
    """A whole number from `low` to `high`."""

    def parse(value: str) -> int:
        if not value.strip().isdecimal() or not low <= int(value) <= high:
            raise ValueError(f"give a whole number from {low} to {high}")
        return int(value)

    return Kind(label, parse)


def one_of(*words: str) -> Kind:
    """One of these words."""

    def parse(value: str) -> str:
        if value.strip() not in words:
            raise ValueError("give one of " + ", ".join(words))
        return value.strip()

    return Kind("word", parse)


def _words(value: str) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in value.split(",")) if word)


def _proxies(value: str) -> tuple[str, ...]:
    """Addresses and networks as `ipaddress` writes them; none may hold every address."""
    found = []
    for word in _words(value):
        try:
            network = ipaddress.ip_network(word, strict=False)
        except ValueError as error:
            raise ValueError(f"{word} is no IP address or network; give them separated by commas") from error
        if network.prefixlen == 0:
            raise ValueError(f"{word} is everybody; name the proxies")
        found.append(str(network) if "/" in word else str(network.network_address))
    return tuple(found)


def _listen(value: str) -> str:
    """`[scheme://]host:port`, checked for its shape; `gpuplane.listeners.plan` checks what each scheme allows."""
    text = value.strip()
    scheme, separator, address = text.rpartition("://")
    host, _, port = address.rpartition(":")
    known_scheme = scheme in {"http", "https"} if separator else True
    if text and not (known_scheme and host and port.isdecimal() and int(port) <= 65535):
        raise ValueError("give [http://|https://]host:port")
    return text


def _directory(value: str) -> str:
    """An absolute path on the nodes."""
    text = value.strip()
    if not text.startswith("/") or ".." in text.split("/") or ":" in text or not text.rstrip("/"):
        raise ValueError("give an absolute path without .. and colons")
    return text.rstrip("/")


def _label(value: str) -> str:
    return check_label(value.strip(), what="a namespace")


def _image(value: str) -> str:
    text = value.strip()
    if len(text) > _IMAGE_LONGEST or not _IMAGE.fullmatch(text):
        raise ValueError("give an image, such as registry.example/gpuplane:1.0 or …@sha256:…")
    return text


def _object_name(value: str) -> str:
    text = value.strip()
    return "" if text in {"", NONE} else check_subdomain(text, what="the name of a Kubernetes object")


def _object_names(value: str) -> tuple[str, ...]:
    return tuple(check_subdomain(word, what="the name of a Kubernetes object") for word in _words(value))


def _tolerations(value: str) -> tuple[dict[str, Any], ...]:
    """Tolerations as in a pod; the API server checks what they say."""
    rule = 'give a JSON list of tolerations, such as [{"operator": "Exists"}]'
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(rule) from error
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and one.keys() <= _TOLERATION_FIELDS for one in found
    ):
        raise ValueError(rule)
    return tuple(found)


FLAG = Kind("flag", _flag)
DIRECTORY = Kind("path on nodes", _directory)
PATH = Kind("path", _path)
WORDS = Kind("list", _words)
PROXIES = Kind("list", _proxies)
ADDRESS = Kind("address", str.strip)
NAME = Kind("name", str.strip)
TEXT = Kind("text", str.strip)
SECRET = Kind("secret", str.strip)
URL = Kind("URL", str.strip)
LISTEN = Kind("[scheme://]host:port", _listen)
WEBHOOK_LISTEN = Kind("host:port", _listen)
NAMESPACE = Kind("name", _label)
IMAGE = Kind("image", _image)
OBJECT_NAME = Kind("name", _object_name)
OBJECT_NAMES = Kind("list", _object_names)
TOLERATIONS = Kind("JSON", _tolerations)
OIDC = Kind("JSON", parse_providers)
OIDC_SECRETS = Kind("secret", parse_secrets)
