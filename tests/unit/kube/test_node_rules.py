"""Each case is a rule of kube-scheduler's NodeUnschedulable, TaintToleration and NodeAffinity plugins."""

from typing import Any

import msgspec
import pytest

from kube.node_rules import AFFINITY, CORDONED, SELECTOR, NodeTraits, refusal_of
from kube.objects import PodSpec, Taint

LABELS = {"zone": "a", "gen": "9", "size": "10", "empty": ""}


def spec(**fields: Any) -> PodSpec:
    return msgspec.convert(fields, PodSpec)


def expressions(*listed: Any, fields: Any = ()) -> Any:
    """One term."""
    return {"matchExpressions": list(listed), "matchFields": list(fields)}


def needs(*terms: Any) -> PodSpec:
    selector = {"nodeSelectorTerms": list(terms)}
    return spec(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}})


def one(key: str, operator: str, *values: str) -> Any:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(spec(), "", id="nothing said"),
        pytest.param(spec(nodeSelector={}), "", id="an empty nodeSelector"),
        pytest.param(spec(nodeSelector={"zone": "a", "gen": "9"}), "", id="all labels of the nodeSelector"),
        pytest.param(spec(nodeSelector={"zone": "a", "gen": "8"}), SELECTOR, id="one label is another"),
        pytest.param(spec(nodeSelector={"rack": "1"}), SELECTOR, id="a label is missing"),
        pytest.param(spec(nodeSelector={"rack": ""}), SELECTOR, id="a missing label is not an empty one"),
        pytest.param(spec(affinity={}), "", id="no node affinity"),
        pytest.param(
            spec(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [1]}}),
            "",
            id="what is preferred refuses nothing",
        ),
        pytest.param(needs(), AFFINITY, id="no terms match nothing"),
        pytest.param(needs({}), AFFINITY, id="an empty term matches nothing"),
        pytest.param(needs({}, expressions(one("zone", "In", "a"))), "", id="an empty term beside one that matches"),
        pytest.param(
            needs(expressions(one("zone", "In", "b")), expressions(one("zone", "In", "a"))), "", id="terms are ORed"
        ),
        pytest.param(
            needs(expressions(one("zone", "In", "a"), one("gen", "In", "8"))), AFFINITY, id="expressions are ANDed"
        ),
        pytest.param(needs(expressions(one("zone", "In", "b", "a"))), "", id="In, one of several"),
        pytest.param(needs(expressions(one("rack", "In", ""))), AFFINITY, id="In, the label is missing"),
        pytest.param(needs(expressions(one("empty", "In", ""))), "", id="In, the label is empty"),
        pytest.param(needs(expressions(one("zone", "In"))), AFFINITY, id="In without values"),
        pytest.param(needs(expressions(one("zone", "NotIn", "b"))), "", id="NotIn"),
        pytest.param(needs(expressions(one("zone", "NotIn", "b", "a"))), AFFINITY, id="NotIn, it is one of them"),
        pytest.param(needs(expressions(one("rack", "NotIn", "b"))), "", id="NotIn, the label is missing"),
        pytest.param(needs(expressions(one("zone", "NotIn"))), AFFINITY, id="NotIn without values"),
        pytest.param(
            needs(expressions(one("zone", "NotIn", "no such value"))), AFFINITY, id="a value that no label can have"
        ),
        pytest.param(needs(expressions(one("zone", "Exists"))), "", id="Exists"),
        pytest.param(needs(expressions(one("rack", "Exists"))), AFFINITY, id="Exists, it does not"),
        pytest.param(needs(expressions(one("zone", "Exists", "a"))), AFFINITY, id="Exists with a value"),
        pytest.param(needs(expressions(one("rack", "DoesNotExist"))), "", id="DoesNotExist"),
        pytest.param(needs(expressions(one("zone", "DoesNotExist"))), AFFINITY, id="DoesNotExist, it does"),
        pytest.param(needs(expressions(one("size", "Gt", "9"))), "", id="Gt compares numbers, not text"),
        pytest.param(needs(expressions(one("size", "Gt", "10"))), AFFINITY, id="Gt, equal"),
        pytest.param(needs(expressions(one("size", "Lt", "11"))), "", id="Lt"),
        pytest.param(needs(expressions(one("size", "Lt", "10"))), AFFINITY, id="Lt, equal"),
        pytest.param(needs(expressions(one("rack", "Gt", "1"))), AFFINITY, id="Gt, the label is missing"),
        pytest.param(needs(expressions(one("zone", "Gt", "1"))), AFFINITY, id="Gt, the label is no number"),
        pytest.param(needs(expressions(one("size", "Gt", "x"))), AFFINITY, id="Gt, the value is no number"),
        pytest.param(needs(expressions(one("size", "Gt", "1", "2"))), AFFINITY, id="Gt with two values"),
        pytest.param(needs(expressions(one("size", "Gt", "9223372036854775808"))), AFFINITY, id="Gt, beyond 64 bits"),
        pytest.param(needs(expressions(one("size", "Lt", "1_1"))), AFFINITY, id="Lt, digits as Python takes them"),
        pytest.param(needs(expressions(one("zone", "Near", "a"))), AFFINITY, id="an operator that there is not"),
        pytest.param(needs(expressions(fields=[one("metadata.name", "In", "n1")])), "", id="the node's name"),
        pytest.param(needs(expressions(fields=[one("metadata.name", "In", "n2")])), AFFINITY, id="another name"),
        pytest.param(needs(expressions(fields=[one("metadata.name", "NotIn", "n2")])), "", id="any name but one"),
        pytest.param(
            needs(expressions(fields=[one("metadata.name", "NotIn", "n1")])), AFFINITY, id="any name but this"
        ),
        pytest.param(
            needs(expressions(fields=[one("metadata.name", "In", "n1", "n2")])), AFFINITY, id="names come one by one"
        ),
        pytest.param(
            needs(expressions(fields=[one("metadata.name", "Exists")])), AFFINITY, id="fields know In and NotIn"
        ),
        pytest.param(
            needs(expressions(one("zone", "In", "b"), fields=[one("metadata.name", "In", "n1")])),
            AFFINITY,
            id="name and labels",
        ),
        pytest.param(
            spec(
                nodeSelector={"zone": "b"},
                affinity=msgspec.to_builtins(needs(expressions(one("zone", "In", "a"))).affinity),
            ),
            SELECTOR,
            id="nodeSelector and affinity",
        ),
    ],
)
def test_selectors(asked, want):
    assert refusal_of(asked, NodeTraits("n1", LABELS)) == want


def tolerant(*listed: Any) -> PodSpec:
    return spec(tolerations=list(listed))


KEY = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("taint", "asked", "tolerated"),
    [
        pytest.param(Taint(KEY, "NoSchedule", "present"), tolerant(), False, id="nothing is tolerated"),
        pytest.param(Taint(KEY, "NoExecute", "present"), tolerant(), False, id="NoExecute refuses too"),
        pytest.param(
            Taint(KEY, "PreferNoSchedule", "present"), tolerant(), True, id="PreferNoSchedule does not refuse"
        ),
        pytest.param(
            Taint(KEY, "NoSchedule", "present"), tolerant({"key": KEY, "operator": "Exists"}), True, id="Exists"
        ),
        pytest.param(
            Taint(KEY, "NoSchedule", "present"), tolerant({"operator": "Exists"}), True, id="Exists without a key"
        ),
        pytest.param(
            Taint(KEY, "NoSchedule", "present"),
            tolerant({"operator": "Exists", "effect": "NoExecute"}),
            False,
            id="of another effect",
        ),
        pytest.param(
            Taint(KEY, "NoSchedule", "present"),
            tolerant({"key": KEY, "value": "present"}),
            True,
            id="no operator means Equal",
        ),
        pytest.param(
            Taint(KEY, "NoSchedule", "present"),
            tolerant({"key": KEY, "operator": "Equal", "value": "x"}),
            False,
            id="another value",
        ),
        pytest.param(Taint(KEY, "NoSchedule"), tolerant({"key": KEY}), True, id="no value is an empty one"),
        pytest.param(
            Taint(KEY, "NoSchedule", "present"),
            tolerant({"key": "other", "operator": "Exists"}),
            False,
            id="another key",
        ),
        pytest.param(
            Taint(KEY, "NoSchedule", "5"),
            tolerant({"key": KEY, "operator": "Lt", "value": "1"}),
            False,
            id="an alpha feature",
        ),
        pytest.param(
            Taint(KEY, "NoSchedule", "present"),
            tolerant({"key": "other"}, {"key": KEY, "operator": "Exists"}),
            True,
            id="one of several",
        ),
    ],
)
def test_taints(taint, asked, tolerated):
    told = refusal_of(asked, NodeTraits("n1", LABELS, (taint,)))
    text = f"{KEY}={taint.value}" if taint.value else KEY
    assert told == ("" if tolerated else f"node has taint {text}:{taint.effect}, which the pod does not tolerate")


def test_every_taint_has_to_be_tolerated():
    both = (Taint("a", "NoSchedule"), Taint("b", "NoExecute"))
    node = NodeTraits("n1", LABELS, both)
    told = "node has taint b:NoExecute, which the pod does not tolerate"
    assert refusal_of(tolerant({"key": "a", "operator": "Exists"}), node) == told
    assert refusal_of(tolerant({"operator": "Exists"}), node) == ""


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(tolerant(), CORDONED, id="cordoned"),
        pytest.param(tolerant({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}), "", id="tolerated"),
        pytest.param(tolerant({"operator": "Exists", "effect": "NoExecute"}), CORDONED, id="of another effect"),
        pytest.param(spec(nodeSelector={"rack": "1"}), CORDONED, id="told before labels, as kube-scheduler does"),
    ],
)
def test_cordons(asked, want):
    assert refusal_of(asked, NodeTraits("n1", LABELS, unschedulable=True)) == want
