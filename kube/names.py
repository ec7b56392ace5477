"""The rules for names and ids that come from outside: DNS-1123, UIDs, device UUIDs, PCI addresses.

Called by every door that takes a name (claims, inventories, extender, admission). Each check answers
with the very text it was given (a PCI address in its one spelling), or raises `InvalidName` whose text is the rule, ready to be shown.
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
    """The text breaks the rule of its kind. `rule` is a short stable name of that rule."""

    rule = "name"


class InvalidLabel(InvalidName):
    """Not a DNS-1123 label."""

    rule = "dns-label"


class InvalidSubdomain(InvalidName):
    """Not a DNS-1123 subdomain."""

    rule = "dns-subdomain"


class InvalidUid(InvalidName):
    """Not a Kubernetes UID."""

    rule = "uid"


class InvalidDeviceUuid(InvalidName):
    """Not a device UUID."""

    rule = "device-uuid"


class InvalidPciAddress(InvalidName):
    """Not a PCI address."""

    rule = "pci-address"


def check_label(value: object, *, what: str = "name") -> str:
    """A DNS-1123 label: 1..63 of a-z, 0-9 and '-', with a letter or digit at both ends."""
    if isinstance(value, str) and len(value) <= LABEL_LONGEST and _LABEL.fullmatch(value):
        return value
    raise InvalidLabel(
        f"{what} must be a DNS-1123 label: 1 to {LABEL_LONGEST} lower-case letters, digits or '-', "
        "starting and ending with a letter or digit"
    )


def check_subdomain(value: object, *, what: str = "name") -> str:
    """A DNS-1123 subdomain: labels joined by '.', 253 characters in all."""
    if isinstance(value, str) and len(value) <= SUBDOMAIN_LONGEST and _SUBDOMAIN.fullmatch(value):
        return value
    raise InvalidSubdomain(
        f"{what} must be a DNS-1123 subdomain: 1 to {SUBDOMAIN_LONGEST} lower-case letters, digits, '-' or '.', "
        "each part starting and ending with a letter or digit"
    )


def is_label_value(value: str) -> bool:
    """Whether the value of a Kubernetes label may be this text, which is not empty."""
    return _LABEL_VALUE.fullmatch(value) is not None


def check_namespace(value: object, *, what: str = "namespace") -> str:
    """A namespace is named by a DNS-1123 label."""
    return check_label(value, what=what)


def check_uid(value: object, *, what: str = "uid") -> str:
    """A UID of an API object: 1..128 printable ASCII characters without spaces and '/'."""
    if isinstance(value, str) and len(value) <= UID_LONGEST and _UID.fullmatch(value):
        return value
    raise InvalidUid(f"{what} must be 1 to {UID_LONGEST} printable characters without spaces or '/'")


def check_device_uuid(value: object, *, what: str = "uuid") -> str:
    """A device UUID such as `GPU-8a56c6b4-…`: 1..128 of letters, digits, '.', '_', ':' and '-'."""
    if isinstance(value, str) and len(value) <= DEVICE_UUID_LONGEST and _DEVICE_UUID.fullmatch(value):
        return value
    raise InvalidDeviceUuid(f"{what} must be 1 to {DEVICE_UUID_LONGEST} letters, digits, '.', '_', ':' or '-'")


def check_pci_address(value: object, *, what: str = "busid") -> str:
    """A PCI address as sysfs names it, `0000:3b:00.0`; NVML's `00000000:3B:00.0` becomes that."""
    if (
        isinstance(value, str)
        and len(value) <= PCI_ADDRESS_LONGEST
        and (found := _PCI_ADDRESS.fullmatch(value.lower()))
    ):
        return found[1]
    raise InvalidPciAddress(f"{what} must be a PCI address such as 0000:3b:00.0")
