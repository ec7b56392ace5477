from __future__ import annotations

import msgspec
import pytest

from kube.errors import Unintelligible
from kube.listing import Unreadable, decode, decode_chunk, decode_each
from kube.objects import Pod


def _page(*items: object, **meta: str) -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": "7", **meta}, "items": list(items)})


def test_one_malformed_object_does_not_hide_the_others() -> None:
    """LEASE-6 an object that cannot be read is told apart, never ignored."""
    good = {"metadata": {"namespace": "a", "name": "good"}}
    bad = {"metadata": {"namespace": "a", "name": "bad"}, "spec": {"nodeName": 5}}
    chunk = decode_chunk(_page(good, bad, good), Pod)
    assert [pod.metadata.name for pod in chunk.items] == ["good", "good"]
    assert [(item.key, "nodeName" in item.why) for item in chunk.unreadable] == [(("a", "bad"), True)]


def test_continue_and_go_nil_lists() -> None:
    assert decode_chunk(_page(**{"continue": "more"}), Pod).next_token == "more"
    empty = decode_chunk(b'{"metadata": {}, "items": null}', Pod)
    assert (empty.items, empty.next_token) == ([], "")


def test_no_text_holds_nul() -> None:
    """PostgreSQL takes none, and the API server takes it in annotations: also within JSON that one holds."""
    hint = msgspec.json.encode({"gpu": "\x00"}).decode()
    pod = {"metadata": {"namespace": "a", "name": "b", "annotations": {"plain": "x\x00y\x00", "json": hint}}}
    (found,) = decode_chunk(_page(pod), Pod).items
    assert found == decode(msgspec.json.encode(pod), Pod)
    assert found.metadata.annotations == {"plain": "x\ufffdy\ufffd", "json": '{"gpu":"\\ufffd"}'}


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"items": [', b'{"metadata": {}, "items": 5}', b'{"metadata": {}, "items": [5]}']
)
def test_what_is_no_list_is_unintelligible(body: bytes) -> None:
    with pytest.raises(Unintelligible):
        decode_chunk(body, Pod)


def test_decode_names_the_request() -> None:
    with pytest.raises(Unintelligible, match="GET /x"):
        decode(b"{", Pod, request="GET /x")
    assert isinstance(decode_each(b'{"status": 5}', Pod), Unreadable)
