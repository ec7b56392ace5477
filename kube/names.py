"""Validation of names and ids from outside: DNS-1123, UIDs, device UUIDs, PCI addresses.

Each check returns the text unchanged (a PCI address normalised), or raises `InvalidName` with a message for the user.
"""

from __future__ import annotations

import re
from typing import Final

LABEL_LONGEST: Final = 63
SUBDOMAIN_LONGEST: Final = 253
UID_LONGEST: Final = 128
DEVICE_UUID_LONGEST: Final = 128
PCI_ADDRESS_LONGEST: Final = 16

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_UID: Final = re.compile(r"[!-.0-~]+")
_DEVICE_UUID: Final = re.compile(r"[A-Za-z0-9._:-]+")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PCI_ADDRESS: Final = re.compile(r"0*([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class InvalidName(ValueError):
    """The text breaks a rule, of which `rule` is a short stable name."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def check_label(value: object, *, what: str = "name") -> str:
    """A DNS-1123 label: 1..63 of a-z, 0-9 and '-', with a letter or digit at both ends."""
    if isinstance(value, str) and len(value) <= LABEL_LONGEST and _LABEL.fullmatch(value):
        return value
    raise InvalidName(
        "dns-label",
        f"{what} must be a DNS-1123 label: 1 to {LABEL_LONGEST} lower-case letters, digits or '-', "
        "starting and ending with a letter or digit",
    )


def check_namespace(value: object, *, what: str = "namespace") -> str:
    """A namespace's name, a DNS-1123 label."""
    return check_label(value, what=what)


def check_subdomain(value: object, *, what: str = "name") -> str:
    """A DNS-1123 subdomain: labels joined by '.', 253 characters in all."""
    if isinstance(value, str) and len(value) <= SUBDOMAIN_LONGEST and _SUBDOMAIN.fullmatch(value):
        return value
    raise InvalidName(
        "dns-subdomain",
        f"{what} must be a DNS-1123 subdomain: 1 to {SUBDOMAIN_LONGEST} lower-case letters, digits, '-' or '.', "
        "each part starting and ending with a letter or digit",
    )


def is_label_value(value: str) -> bool:
    """Whether the text, which is not empty, may be the value of a Kubernetes label."""
    return _LABEL_VALUE.fullmatch(value) is not None


def check_label_key(value: str, *, what: str = "key") -> str:
    """The key of a Kubernetes label: 1..63 characters as of a value, after a DNS-1123 subdomain and '/' or alone."""
    prefix, slash, name = value.rpartition("/")
    if slash:
        check_subdomain(prefix, what=f"the prefix of {what}")
    if not is_label_value(name):
        raise InvalidName("label-key", f"{what} must be the key of a label, e.g. kubernetes.io/hostname")
    return value


def check_uid(value: object, *, what: str = "uid") -> str:
    """A UID of an API object: 1..128 printable ASCII characters without spaces and '/'."""
    if isinstance(value, str) and len(value) <= UID_LONGEST and _UID.fullmatch(value):
        return value
    raise InvalidName("uid", f"{what} must be 1 to {UID_LONGEST} printable characters without spaces or '/'")


def check_device_uuid(value: object, *, what: str = "uuid") -> str:
    """A device UUID such as `GPU-8a56c6b4-…`: 1..128 of letters, digits, '.', '_', ':' and '-'."""
    if isinstance(value, str) and len(value) <= DEVICE_UUID_LONGEST and _DEVICE_UUID.fullmatch(value):
        return value
    raise InvalidName("device-uuid", f"{what} must be 1 to {DEVICE_UUID_LONGEST} letters, digits, '.', '_', ':' or '-'")


def check_pci_address(value: object, *, what: str = "busid") -> str:
    """A PCI address as sysfs names it, `0000:3b:00.0`; NVML's `00000000:3B:00.0` is converted."""
    if isinstance(value, str) and len(value) <= PCI_ADDRESS_LONGEST:
        found = _PCI_ADDRESS.fullmatch(value.lower())
        if found is not None:
            return found[1]
    raise InvalidName("pci-address", f"{what} must be a PCI address such as 0000:3b:00.0")
