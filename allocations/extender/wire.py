"""The extender's JSON, key for key as kube-scheduler's Go structs without tags (k8s.io/kube-scheduler/extender/v1).

Kept true: what comes in is decoded only as far as it is needed; nodes asked as objects are answered
with the very bytes that came in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import orjson

from kube.objects import Pod

_ABSENT = msgspec.Raw()


def is_there(raw: msgspec.Raw) -> bool:
    """Whether a raw member was given and is not null."""
    return bytes(raw) not in {b"", b"null"}


class _Args(msgspec.Struct):
    Pod: msgspec.Raw = _ABSENT
    Nodes: msgspec.Raw = _ABSENT
    NodeNames: list[str] | None = None


class _Meta(msgspec.Struct):
    name: str = ""


class _NodeItem(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class BindArgs(msgspec.Struct):
    """ExtenderBindingArgs."""

    PodName: str = ""
    PodNamespace: str = ""
    PodUID: str = ""
    Node: str = ""


class Victims(msgspec.Struct):
    """Victims with whole pods."""

    Pods: list[Pod] | None = None
    NumPDBViolations: int = 0


class MetaPod(msgspec.Struct):
    """A victim by UID."""

    UID: str = ""


class MetaVictims(msgspec.Struct):
    """MetaVictims: pods by UID."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct):
    """ExtenderPreemptionArgs; with nodeCacheCapable the Meta form is sent."""

    Pod: msgspec.Raw = _ABSENT
    NodeNameToVictims: dict[str, Victims] | None = None
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None


class Unreadable(Exception):
    """The body is not what kube-scheduler sends; the text says where."""


class Asked:
    """ExtenderArgs as asked. `names` in the order given; `pod` None when it cannot be read (`pod_problem` says why)."""

    __slots__ = ("_items", "names", "pod", "pod_problem")

    def __init__(self, body: bytes) -> None:
        """Decode. Raises Unreadable when not even the nodes can be read."""
        args = _decode(_ARGS, body)
        self._items: dict[str, msgspec.Raw] | None = None
        if is_there(args.Nodes):
            items = _decode(_NODE_LIST, args.Nodes).items or []
            self._items = {_decode(_NODE_ITEM, item).metadata.name: item for item in items}
            self.names: Sequence[str] = list(self._items)
        else:
            self.names = args.NodeNames or []
        self.pod: Pod | None = None
        self.pod_problem = ""
        if not is_there(args.Pod):
            self.pod_problem = "the request carries no pod"
            return
        try:
            self.pod = POD.decode(args.Pod)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.pod_problem = f"the pod cannot be read: {error}"

    def answer(
        self, passed: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str], error: str = ""
    ) -> bytes:
        """ExtenderFilterResult in the kind asked: Nodes with Nodes, names with names."""
        result: dict[str, Any] = {
            "NodeNames": None,
            "Nodes": None,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
        }
        if self._items is None:
            result["NodeNames"] = list(passed)
        else:
            chosen = [orjson.Fragment(bytes(self._items[name])) for name in passed]
            result["Nodes"] = {"metadata": {}, "items": chosen}
        return orjson.dumps({**result, "Error": error})

    def refuse(self, reason: str, *, resolvable: bool = False) -> bytes:
        """Every node refused for one reason."""
        refused = dict.fromkeys(self.names, reason)
        return self.answer([], refused, {}) if resolvable else self.answer([], {}, refused)


def unreadable_answer(problem: str) -> bytes:
    """The only answer that uses Error: no node is known that a reason could be given for."""
    return orjson.dumps(
        {
            "NodeNames": [],
            "Nodes": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": f"the request cannot be read: {problem}",
        }
    )


def decode_bind(body: bytes) -> BindArgs:
    """ExtenderBindingArgs. Raises Unreadable."""
    return _decode(_BIND, body)


def decode_preempt(body: bytes) -> PreemptArgs:
    """ExtenderPreemptionArgs. Raises Unreadable."""
    return _decode(_PREEMPT, body)


T = TypeVar("T")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error


POD = msgspec.json.Decoder(Pod)
_ARGS = msgspec.json.Decoder(_Args)
_NODE_LIST = msgspec.json.Decoder(_NodeList)
_NODE_ITEM = msgspec.json.Decoder(_NodeItem)
_BIND = msgspec.json.Decoder(BindArgs)
_PREEMPT = msgspec.json.Decoder(PreemptArgs)
