"""The extender's JSON, key for key as kube-scheduler's Go structs without tags (k8s.io/kube-scheduler/extender/v1).

Invariants: a request is decoded only as far as it is needed; nodes given as objects are answered with the bytes that
came in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
import orjson

from claims.dialects.claim_manifest import DEFAULT_NAMESPACE
from kube.bounded import EXTENDER_VALUES_MOST, OBJECT_VALUES_MOST, TooManyValues, check_values
from kube.objects import Pod
from kube.text import without_nul

_ABSENT = msgspec.Raw()
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TooManyValues)
"""Everything that decoding hostile JSON can raise."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""As in Go; a larger number could not be written back."""


def is_there(raw: msgspec.Raw) -> bool:
    """Whether a raw member is present and not null."""
    return bytes(raw) not in {b"", b"null"}


class _Meta(msgspec.Struct):
    name: str = ""


class _NodeItem(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Args(msgspec.Struct):
    Pod: msgspec.Raw = _ABSENT
    Nodes: _NodeList | None = None
    NodeNames: list[str] | None = None


class _Loose(msgspec.Struct):
    Nodes: msgspec.Raw = _ABSENT
    NodeNames: msgspec.Raw = _ABSENT


class BindArgs(msgspec.Struct):
    """ExtenderBindingArgs."""

    PodName: str = ""
    PodNamespace: str = ""
    PodUID: str = ""
    Node: str = ""


class _Uid(msgspec.Struct):
    uid: str = ""


class VictimPod(msgspec.Struct):
    """A pod of Victims, or a MetaPod, which has a UID alone."""

    UID: str = ""
    metadata: _Uid = msgspec.field(default_factory=_Uid)


class Victims(msgspec.Struct):
    """Victims with whole pods, or MetaVictims."""

    Pods: list[VictimPod] | None = None
    NumPDBViolations: Int64 = 0

    @property
    def uids(self) -> tuple[str, ...]:
        """UIDs of the pods."""
        return tuple(pod.UID or pod.metadata.uid for pod in self.Pods or ())


class PreemptArgs(msgspec.Struct):
    """ExtenderPreemptionArgs; with nodeCacheCapable the Meta form is sent."""

    Pod: msgspec.Raw = _ABSENT
    NodeNameToVictims: dict[str, Victims] | None = None
    NodeNameToMetaVictims: dict[str, Victims] | None = None


class Unreadable(Exception):
    """The body is not what kube-scheduler sends; the text says where."""


class FilterRequest:
    """ExtenderArgs. `names` in their order; `pod` None when it cannot be read (`pod_problem` says why)."""

    __slots__ = ("_items", "names", "pod", "pod_problem")

    def __init__(self, body: bytes) -> None:
        """Raises Unreadable when not even the nodes can be read."""
        args = _decode(_ARGS, bounded(body))
        self._items: dict[str, msgspec.Raw] | None = None
        if args.Nodes is not None:
            items = args.Nodes.items or []
            for item in items:
                _check_text(item)
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
            self.pod = decode_pod(args.Pod)
        except UNDECODABLE as error:
            self.pod_problem = f"the pod cannot be read: {error}"
            return
        if not self.pod.metadata.namespace:
            self.pod.metadata.namespace = DEFAULT_NAMESPACE

    def answer(
        self,
        passed: Sequence[str],
        failed: Mapping[str, str] | None = None,
        unresolvable: Mapping[str, str] | None = None,
    ) -> bytes:
        """ExtenderFilterResult: Nodes for Nodes, names for names."""
        if self.pod is None and not self.names:
            return unreadable_answer(b"", self.pod_problem)
        nodes: dict[str, Any] | None = None
        if self._items is not None:
            nodes = {"metadata": {}, "items": [orjson.Fragment(bytes(self._items[name])) for name in passed]}
        return _result(None if nodes else list(passed), nodes, failed or {}, unresolvable or {})


def unreadable_answer(body: bytes, problem: str) -> bytes:
    """Refuse the nodes whose names can be read; Error carries the reason only where there are none."""
    reason = f"the request cannot be read: {problem}"
    names = _names_in(body)
    return _result([], None, {}, dict.fromkeys(names, reason), error="" if names else reason)


def _result(
    names: list[str] | None,
    nodes: dict[str, Any] | None,
    failed: Mapping[str, str],
    unresolvable: Mapping[str, str],
    error: str = "",
) -> bytes:
    """ExtenderFilterResult."""
    return orjson.dumps(
        {
            "NodeNames": names,
            "Nodes": nodes,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": error,
        }
    )


def _names_in(body: bytes) -> list[str]:
    """The node names in a body that cannot be read as a whole."""
    try:
        loose = _loosely(_LOOSE, bounded(body))
    except Unreadable:
        return []
    if loose is None:
        return []
    names = [_loosely(_NODE_NAME, raw) for raw in _loosely(_RAW_LIST, loose.NodeNames) or ()]
    listed = _loosely(_NODE_LIST, loose.Nodes)
    nodes = [_loosely(_NODE_ITEM, raw) for raw in (listed.items if listed else None) or ()]
    return [name for name in (*names, *(node.metadata.name for node in nodes if node)) if name]


def _check_text(raw: msgspec.Raw) -> None:
    """Nodes are answered with the bytes that came in, and skipped members are not looked at. Raises Unreadable."""
    data = bytes(raw)
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"Nodes are not UTF-8: {error}") from error


def bounded(body: bytes) -> bytes:
    """The body, unless it holds more values than kube-scheduler would ever send. Raises Unreadable."""
    try:
        check_values(body, most=EXTENDER_VALUES_MOST)
    except TooManyValues as error:
        raise Unreadable(str(error)) from error
    return body


def decode_pod(raw: msgspec.Raw) -> Pod:
    """The pod of a body. Raises any of UNDECODABLE."""
    check_values(raw, most=OBJECT_VALUES_MOST)
    return POD.decode(without_nul(bytes(raw)))


def decode_bind(body: bytes) -> BindArgs:
    """ExtenderBindingArgs. Raises Unreadable."""
    return _decode(_BIND, body)


def decode_preempt(body: bytes) -> PreemptArgs:
    """ExtenderPreemptionArgs. Raises Unreadable."""
    return _decode(_PREEMPT, bounded(body))


T = TypeVar("T")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise Unreadable(str(error)) from error


def _loosely(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T | None:
    try:
        return decoder.decode(data)
    except UNDECODABLE:
        return None


POD = msgspec.json.Decoder(Pod)
_ARGS = msgspec.json.Decoder(_Args)
_NODE_LIST = msgspec.json.Decoder(_NodeList)
_NODE_ITEM = msgspec.json.Decoder(_NodeItem)
_LOOSE = msgspec.json.Decoder(_Loose)
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_NODE_NAME = msgspec.json.Decoder(str)
_BIND = msgspec.json.Decoder(BindArgs)
_PREEMPT = msgspec.json.Decoder(PreemptArgs)
