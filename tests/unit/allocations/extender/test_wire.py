"""kube-scheduler's JSON in, kube-scheduler's JSON out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allocations.extender.filter import filter_pod
from allocations.extender.wire import FilterRequest, Unreadable, decode_bind, decode_preempt, unreadable_answer
from tests.cluster_answers import well_formed_filter


def asked(**members: Any) -> FilterRequest:
    return FilterRequest(json.dumps(members).encode())


def test_names_and_pod_are_read() -> None:
    """CLAIM-4 keys without tags in Go stand in their own case, members of pods in theirs."""
    question = asked(Pod={"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}, NodeNames=["b", "a"], Nodes=None)
    assert (question.names, question.pod_problem) == (["b", "a"], "")
    assert question.pod is not None
    assert question.pod.holder == "ns/p/u"


def test_a_pod_without_a_namespace_is_of_the_default_one() -> None:
    question = asked(Pod={"metadata": {"name": "p", "uid": "u"}}, NodeNames=[])
    assert question.pod is not None
    assert question.pod.metadata.namespace == "default"


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(None, "the request carries no pod", id="null"),
        pytest.param(5, "the pod cannot be read: Expected `object`, got `int`", id="a number"),
        pytest.param({"metadata": None}, "the pod cannot be read: Expected `object`, got `null`", id="no metadata"),
        pytest.param(
            {"spec": {"containers": "x"}}, "the pod cannot be read: Expected `array", id="containers are text"
        ),
    ],
)
def test_a_pod_that_cannot_be_read_leaves_the_nodes(pod: Any, want: str) -> None:
    """SCALE-7 the nodes are known, so each can be refused with the reason."""
    question = asked(Pod=pod, NodeNames=["a"])
    assert question.pod is None
    assert question.pod_problem.startswith(want)
    refusal = filter_pod(question)
    told = well_formed_filter(question.answer(refusal.passed, refusal.failed, refusal.unresolvable))
    assert told["FailedAndUnresolvableNodes"] == {"a": question.pod_problem}
    assert told["NodeNames"] == []


def test_nodes_are_answered_byte_for_byte() -> None:
    """CLAIM-4 numbers, order and spaces inside a node come back as they came."""
    node = b'{"metadata": {"name":"a"},  "big": 123456789012345678901234567890, "f": 1.50, "u": "\\u00fc"}'
    question = FilterRequest(b'{"Pod": null, "Nodes": {"items": [' + node + b"]}}")
    answer = question.answer(["a"], {}, {})
    assert node in answer
    told = json.loads(answer)
    assert (told["NodeNames"], len(told["Nodes"]["items"])) == (None, 1)
    empty = json.loads(question.answer([], {}, {"a": "no"}))
    assert empty["Nodes"] == {"metadata": {}, "items": []}


def test_nodes_that_are_not_utf8_are_not_sent_back() -> None:
    with pytest.raises(Unreadable, match="Nodes are not UTF-8"):
        FilterRequest(b'{"Nodes": {"items": [{"metadata": {"name": "a"}, "x": "\xff"}]}}')


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(b'{"NodeNames": ["a", 5, "b", null]}', ["a", "b"], id="a name that is a number"),
        pytest.param(b'{"NodeNames": "a"}', [], id="names that are text"),
        pytest.param(b'{"Nodes": {"items": [{"metadata": {"name": "a"}}, {"metadata": 5}, 7]}}', ["a"], id="odd nodes"),
        pytest.param(b'{"Nodes": 5, "NodeNames": ["a"]}', ["a"], id="nodes that are a number"),
        pytest.param(b'{"NodeNames": ["a"', [], id="cut"),
        pytest.param(b"[]", [], id="a list"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_what_cannot_be_read_refuses_the_nodes_it_can_make_out(body: bytes, want: list[str]) -> None:
    """SCALE-7 Error, which makes a SchedulerError, is used only where there is no node to refuse."""
    with pytest.raises(Unreadable) as problem:
        FilterRequest(body)
    told = well_formed_filter(unreadable_answer(body, str(problem.value)))
    reason = f"the request cannot be read: {problem.value}"
    assert told["FailedAndUnresolvableNodes"] == dict.fromkeys(want, reason)
    assert told["Error"] == ("" if want else reason)


@pytest.mark.parametrize(
    "number", [pytest.param(2**63, id="one too large"), pytest.param(-(2**63) - 1, id="one too small"), "1", 1.5]
)
def test_disruption_budgets_are_int64(number: Any) -> None:
    body = json.dumps({"NodeNameToMetaVictims": {"a": {"NumPDBViolations": number}}}).encode()
    with pytest.raises(Unreadable):
        decode_preempt(body)


def test_bind_arguments() -> None:
    args = decode_bind(b'{"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "a", "More": [1]}')
    assert (args.PodName, args.PodNamespace, args.PodUID, args.Node) == ("p", "ns", "u", "a")
    with pytest.raises(Unreadable):
        decode_bind(b'{"PodName": 5}')
