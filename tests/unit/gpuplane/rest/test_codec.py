"""Bodies over REST that are small to send and large to read: refused before their values are made."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.exceptions import ParseError

from access.errors import TooLarge
from gpuplane.rest.codec import DEEPEST, LONGEST_PLAIN, LONGEST_TEXT, YAML_EVENTS_MOST, read_json, read_yaml
from tests import bombs
from tests.servers import forked

MIB = bombs.MIB


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        pytest.param(bombs.lists(9 * MIB), TooLarge, id="9 MB of empty lists"),
        pytest.param(bombs.lists(2 * MIB), TooLarge, id="2 MB of empty lists"),
        pytest.param(bombs.numbers(4 * MIB), TooLarge, id="4 MB of numbers"),
        pytest.param(b"{" + b'"":{},' * 300_000 + b'"":1}', TooLarge, id="empty objects"),
        pytest.param(b"[" * 1_000_000, TooLarge, id="brackets that never close"),
        pytest.param(b"[" * 200_000 + b"]" * 200_000, ParseError, id="deep"),
        pytest.param(b'{"a":' * 40_000 + b"1" + b"}" * 40_000, ParseError, id="deep objects"),
        pytest.param(b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), ParseError, id="one level too deep"),
        pytest.param(b'"' + b"x" * (LONGEST_TEXT + 1) + b'"', ParseError, id="a long text"),
        pytest.param(b'{"' + b"x" * (LONGEST_TEXT + 1) + b'":1}', ParseError, id="a long key"),
    ],
)
def test_json_that_is_refused(body: bytes, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        read_json(body)


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in bombs.YAML_BOMBS.items()])
def test_yaml_that_is_refused(body: bytes) -> None:
    with pytest.raises((TooLarge, ParseError)):
        read_yaml(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'a: !!int "1:1"', id="of a text in quotes"),
        pytest.param(b"a: !!str 1", id="of a plain value"),
        pytest.param(b"!!map {a: 1}", id="of a mapping"),
        pytest.param(b"a: !x [1]", id="of our own making"),
    ],
)
def test_yaml_tags_are_refused(body: bytes) -> None:
    """VIEW-5 (part) a tag says what a text of any length means, past the limit on plain ones."""
    with pytest.raises(ParseError, match="tags"):
        read_yaml(body)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        pytest.param(b"a: [" + b"x, " * YAML_EVENTS_MOST + b"]", "size", id="values"),
        pytest.param(b"#" * (MIB + 1), "size", id="bytes"),
    ],
)
def test_yaml_over_its_bounds_says_what_to_do(body: bytes, rule: str) -> None:
    with pytest.raises(TooLarge, match="as JSON") as refused:
        read_yaml(body)
    assert refused.value.rule == rule


@pytest.mark.parametrize(
    ("read", "body", "want"),
    [
        pytest.param(read_json, b"[" + b"1," * 400_000 + b"1]", [1] * 400_001, id="many values that are taken"),
        pytest.param(read_json, b'"' + b"," * LONGEST_TEXT + b'"', "," * LONGEST_TEXT, id="commas inside of a text"),
        pytest.param(
            read_yaml,
            b"a: '" + b"x" * (LONGEST_PLAIN + 1) + b"'",
            {"a": "x" * (LONGEST_PLAIN + 1)},
            id="a long text in quotes",
        ),
        pytest.param(read_yaml, b"a: |\n  " + b"1:" * 9_000, {"a": "1:" * 9_000}, id="a long text as a block"),
        pytest.param(read_yaml, b"a: [" + b"x, " * 1_000 + b"]", {"a": ["x"] * 1_000}, id="a list"),
    ],
)
def test_bodies_within_the_limits_are_read(read: Callable[[bytes], Any], body: bytes, want: object) -> None:
    assert read(body) == want


MEASURE = """
    import resource, sys
    import django
    from django.conf import settings
    settings.configure(REST_FRAMEWORK={{}})
    django.setup()
    from gpuplane.rest.codec import read_json, read_yaml
    from kube.admission import decode_review
    from allocations.extender import wire
    from claims.admission.recognise import looks_ours
    from tests import bombs
    import msgspec
    body = {body}
    read = {read}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(body)
    except Exception as error:  # whichever way the reader refuses: told to the test
        print(type(error).__name__, file=sys.stderr)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("read", "body"),
    [
        pytest.param("read_json", "bombs.lists(9 << 20)", id="REST, 9 MB of empty lists"),
        pytest.param("read_json", "bombs.many(b'[]', 700_000)", id="REST, as many lists as are taken"),
        pytest.param("read_json", "b'{' + b'\"\":{},' * 160_000 + b'\"\":1}'", id="REST, as many objects as are taken"),
        pytest.param("read_yaml", "bombs.YAML_BOMBS['lists']", id="REST, YAML of empty lists"),
        pytest.param("decode_review", "bombs.review(bombs.many(b'{}', 3 << 20))", id="a review of empty containers"),
        pytest.param(
            "lambda body: looks_ours(msgspec.Raw(body))", "bombs.many(b'[]', 3 << 20)", id="an object that is no pod"
        ),
        pytest.param(
            "wire.FilterRequest",
            'b\'{"NodeNames":["a"],"Pod":{"spec":{"containers":\' + bombs.many(b\'{}\', 9 << 20) + b\'}}}\'',
            id="filter, a pod of empty containers",
        ),
        pytest.param(
            "wire.FilterRequest",
            "b'{\"Nodes\":{\"items\":' + bombs.many(b'{}', 9 << 20) + b'}}'",
            id="filter, empty nodes",
        ),
        pytest.param(
            "wire.FilterRequest",
            "b'{\"Nodes\":{\"items\":' + bombs.many(b'{}', 2_900_000) + b'}}'",
            id="filter, as many nodes as are taken",
        ),
        pytest.param(
            "wire.decode_preempt",
            "b'{\"NodeNameToVictims\":{\"a\":{\"Pods\":' + bombs.many(b'{}', 2_900_000) + b'}}}'",
            id="preempt, as many victims as are taken",
        ),
        pytest.param(
            "wire.decode_preempt",
            "b'{\"NodeNameToVictims\":{\"a\":{\"Pods\":' + bombs.many(b'{}', 5 << 20) + b'}}}'",
            id="preempt, empty victims",
        ),
        pytest.param(
            "wire.decode_preempt",
            "b'{\"NodeNameToMetaVictims\":{\"a\":{\"Pods\":' + bombs.many(b'{}', 9 << 20) + b'}}}'",
            id="preempt, victims without a uid",
        ),
    ],
)
def test_memory_of_what_is_read(read: str, body: str) -> None:
    """A body costs the process less than 150 MB, refused or taken: 9 MB of empty lists had cost 2.4 GB."""
    program = textwrap.dedent(MEASURE).format(read=read, body=body)
    done = forked.run("-c", program, environment=os.environ)
    assert done.poll() == 0, done.errors[-3000:]
    assert int(done.output) < 150
