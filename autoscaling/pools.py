"""Pools as the plan reads them: what their nodes have, whom they take, how many may still be made.

`fields_of` parses a NodePool; `verdict_of` says whether its nodes would take a pod. Invariants: where a NodePool allows
several values of a label, the pod's rules select one (its picks) or exclude some.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from autoscaling.models import Pool
from autoscaling.shapes import gpus_of, stated_shape
from kube.karpenter import INSTANCE_TYPE_LABEL, WELL_KNOWN, NodePool
from kube.keys import NATIVE_GPU, NODEPOOL_LABEL
from kube.node_rules import AFFINITY, SELECTOR, NodeTraits, label_matches, refusal_of, required_of
from kube.objects import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, PodSpec, Taint
from kube.quantities import QuantityError, parse_quantity

TRIGGER_MEMORY: Final = "gpu.scheduling/trigger-memory"
NODES_LIMIT: Final = "nodes"
_TAINTS: Final = list[Taint]

Bounds = list[int | None]
"""[least, most] of the whole numbers that a label may have; null: none."""
_UNBOUNDED: Final[Bounds] = [None, None]
_AT_LEAST: Final = {"Gt": 1, "Gte": 0}
_AT_MOST: Final = {"Lt": -1, "Lte": 0}
"""Operators with what is added to their value; Gte and Lte are Karpenter's own."""

Picks = dict[str, str]
"""Label → value, of labels that the pool leaves open."""
Excluded = Mapping[str, Sequence[str]]
"""Label → sorted values that a node must not have, of labels that the pool leaves open and Karpenter knows."""


def fields_of(pool: NodePool) -> dict[str, Any]:
    """The columns of `Pool` that follow from the NodePool."""
    template = pool.spec.template
    fixed, choices, excluded, bounds, contradictions = _requirements(template.spec.requirements or ())
    labels = {NODEPOOL_LABEL: pool.metadata.name, **fixed, **(template.metadata.labels or {})}
    stated, problem = stated_shape(pool, labels)
    closed = pool.closed
    if contradictions and not closed:
        closed = f"its requirements leave no value of {', '.join(contradictions)}"
    memory = 0
    try:
        memory = parse_quantity(pool.annotations.get(TRIGGER_MEMORY, 0))
    except QuantityError as error:
        problem = problem or f"{TRIGGER_MEMORY}: {error}"
    return {
        "weight": pool.spec.weight or 0,
        "labels": labels,
        "choices": choices,
        "excluded": excluded,
        "bounds": bounds,
        "taints": msgspec.to_builtins(template.spec.taints or []),
        "limits": {key: str(value) for key, value in (pool.spec.limits or {}).items()},
        "used": {key: str(value) for key, value in (pool.status.resources or {}).items()},
        "instance_type": labels.get(INSTANCE_TYPE_LABEL, ""),
        "trigger_memory": memory,
        "stated": stated,
        "problem": problem[:300],
        "closed": closed[:300],
        "deleted_at": None,
    }


class _Requirements(NamedTuple):
    """By label. `fixed`: its only value; `choices`: the values of the others, empty for any that is neither `excluded`
    nor out of `bounds`; `contradictions`: labels of which no value is left, so that Karpenter makes no node.
    """

    fixed: dict[str, str]
    choices: dict[str, list[str]]
    excluded: dict[str, list[str]]
    bounds: dict[str, Bounds]
    contradictions: list[str]


def _requirements(requirements: Iterable[NodeSelectorRequirement]) -> _Requirements:
    """All requirements of a label count together."""
    by_key: dict[str, list[NodeSelectorRequirement]] = defaultdict(list)
    for one in requirements:
        if one.operator in ("In", "NotIn", "Exists", *_AT_LEAST, *_AT_MOST):
            by_key[one.key].append(one)
    found = _Requirements({}, {}, {}, {}, [])
    for key, own in by_key.items():
        bounds = [_nearest(max, own, _AT_LEAST), _nearest(min, own, _AT_MOST)]
        plain = [one for one in own if one.operator in ("In", "NotIn", "Exists")]
        listed = sorted({value for one in own if one.operator == "In" for value in one.values or ()})
        values = [value for value in listed if all(label_matches(one, {key: value}) for one in plain)]
        values = [value for value in values if _is_within(value, bounds)]
        if len(values) == 1:
            found.fixed[key] = values[0]
            continue
        if not values and (listed or _is_empty(bounds)):
            found.contradictions.append(key)
        found.choices[key] = values
        barred = sorted({value for one in own if one.operator == "NotIn" for value in one.values or ()})
        if barred and not values:
            found.excluded[key] = barred
        if bounds != _UNBOUNDED and not values:
            found.bounds[key] = bounds
    return found


def _nearest(
    pick: Callable[[Iterable[int]], int], own: Iterable[NodeSelectorRequirement], steps: Mapping[str, int]
) -> int | None:
    """The bound that excludes most, of the requirements with operators that `steps` has."""
    stated = [(one.operator, value) for one in own if one.operator in steps for value in one.values or ()]
    numbers = [int(value) + steps[operator] for operator, value in stated if value.isdecimal()]
    return pick(numbers) if numbers else None


def _is_empty(bounds: Bounds) -> bool:
    least, most = bounds
    return least is not None and most is not None and least > most


def _is_within(value: str, bounds: Bounds) -> bool:
    if bounds == _UNBOUNDED:
        return True
    least, most = bounds
    return value.isdecimal() and (least is None or int(value) >= least) and (most is None or int(value) <= most)


class Verdict(NamedTuple):
    """`why`: why no node of the pool takes the pod, empty where one does; `picks`, `excluded`: what it asks of one."""

    why: str
    picks: Picks
    excluded: Excluded


def verdict_of(spec: PodSpec, pool: Pool) -> Verdict:
    """Of the first term of the required node affinity that a node of the pool meets, else of the first."""
    first, *others = (_judged(one, pool) for one in _alternatives(spec))
    return next((verdict for verdict in (first, *others) if not verdict.why), first)


def _alternatives(spec: PodSpec) -> list[PodSpec]:
    """The pod with each term of its required node affinity: one is enough."""
    required = required_of(spec)
    terms = (required.node_selector_terms if required else None) or ()
    if len(terms) < 2:
        return [spec]
    each = [Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=[term]))) for term in terms]
    return [msgspec.structs.replace(spec, affinity=affinity) for affinity in each]


def _label_rules(spec: PodSpec) -> list[NodeSelectorRequirement]:
    """The nodeSelector and the affinity's expressions of a pod with one term."""
    selected = [NodeSelectorRequirement(key, "In", [value]) for key, value in (spec.node_selector or {}).items()]
    required = required_of(spec)
    for term in (required.node_selector_terms if required else None) or ():
        selected += term.match_expressions or ()
    return selected


def _judged(spec: PodSpec, pool: Pool) -> Verdict:
    """The verdict on a pod with one term."""
    picks: Picks = {}
    some: dict[str, str] = {}
    excluded: dict[str, list[str]] = {}
    rules = _label_rules(spec)
    for key in dict.fromkeys(rule.key for rule in rules):
        if key in pool.labels or not (key in pool.choices or key in WELL_KNOWN):
            continue
        own = [rule for rule in rules if rule.key == key]
        allowed, barred = pool.choices.get(key) or [], (pool.excluded or {}).get(key, ())
        selected = next((rule.values or [] for rule in own if rule.operator == "In"), None)
        values = allowed if selected is None else [one for one in selected if not allowed or one in allowed]
        bounds = (pool.bounds or {}).get(key, _UNBOUNDED)
        values = [one for one in values if one not in barred and _is_within(one, bounds)]
        passing = [one for one in values if all(label_matches(rule, {key: one}) for rule in own)]
        if passing and (selected is not None or len(passing) == 1):
            picks[key] = passing[0]
        elif passing:
            some[key] = passing[0]
            excluded[key] = sorted(set(allowed).difference(passing))
        elif allowed:
            return Verdict(AFFINITY if selected is None else SELECTOR, {}, {})
        else:
            excluded[key] = sorted({one for rule in own if rule.operator == "NotIn" for one in rule.values or ()})
    traits = NodeTraits("", {**pool.labels, **some, **picks}, msgspec.convert(pool.taints, _TAINTS))
    return Verdict(refusal_of(spec, traits), picks, {key: values for key, values in excluded.items() if values})


def most_of(pool: Pool, *, coming: int) -> int | None:
    """How many nodes may still be made, by limits of GPUs and nodes; None: any number. `coming`: those not counted.

    None of a pool of which Karpenter makes no node for pods.
    """
    if pool.closed:
        return 0
    shape = pool.shape
    found: list[int] = []
    for key, each in ((NATIVE_GPU, gpus_of(shape) if shape is not None else 0), (NODES_LIMIT, 1)):
        if key in pool.limits and each:
            found.append((_amount(pool.limits[key]) - _amount(pool.used.get(key, "0"))) // each - coming)
    return max(min(found), 0) if found else None


def known_labels(pool: Pool, selector: Mapping[str, str]) -> dict[str, str]:
    """The part of a selector that Karpenter understands for this pool: it refuses labels that it does not know."""
    return {
        key: value for key, value in selector.items() if key in pool.labels or key in pool.choices or key in WELL_KNOWN
    }


def _amount(text: str) -> int:
    try:
        return parse_quantity(text)
    except QuantityError:
        return 0
