"""A scenario, read and checked.

Called by `manage.py simulate`, by the process of a what-if run (`allocations.whatif.program`) and by tests. Pure. Kept
true: whatever is wrong with the file itself, an unknown key of it, of a node or of a device too, is a BadInput that names the field; manifests are
read as the API server reads them, so their unknown fields are passed over; what is wrong with
one claim or one running pod's annotation is that pod's refusal or a problem in the result, as it
would be in a cluster, and stops nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from access.errors import BadInput, TooLarge
from allocations.scenario.rules import rules_cost, rules_key
from allocations.scenario.text import read_text
from claims.dialects.gpuclaim import ClaimInvalid, ClaimSpec, parse_claim_manifest, without_unknown_fields
from claims.dialects.request import Refusal, SharePolicy
from kube.names import check_namespace, check_subdomain, check_uid
from kube.objects import ObjectMeta, Pod
from nodes.inventory import NodeShape, parse_node
from nodes.reading import read_choice, read_list, read_name, read_object, within

DEFAULT_NAMESPACE: Final = "default"
_SCENARIO: Final = ("nodes", "claims", "gangs", "pods", "options")
_OPTIONS: Final = ("share",)
_POD_KIND: Final = "Pod"
_PLACE: Final = re.compile(r" - at `\$?(?P<path>.*)`$")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a scenario may hold. `questions`: pods times nodes; `rules`: comparisons by which pods choose nodes."""

    nodes: int = 10_000
    devices: int = 100_000
    pods: int = 50_000
    claims: int = 10_000
    questions: int = 20_000_000
    rules: int = 50_000_000


PAGE_LIMITS: Final = Limits(nodes=2_000, devices=16_000, pods=2_000, claims=2_000, questions=400_000, rules=4_000_000)
"""A page answers while somebody looks at it; larger scenarios go through REST or `manage.py simulate`."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet and what happens to it. `claims`: (namespace, name) → the claim, or why it is malformed."""

    nodes: tuple[NodeShape, ...]
    pods: tuple[Pod, ...]
    claims: dict[tuple[str, str], ClaimSpec | Refusal]
    share: SharePolicy
    problems: tuple[str, ...]


def read_scenario(text: str | bytes, *, limits: Limits | None = None) -> Scenario:
    """The scenario out of JSON or YAML text. Raises BadInput."""
    return parse_scenario(read_text(text), limits=limits)


def parse_scenario(value: object, *, limits: Limits | None = None) -> Scenario:
    """The scenario out of decoded JSON or YAML. Raises BadInput, TooLarge."""
    most = limits or Limits()
    fields = read_object({} if value is None else value, "", _SCENARIO, strict=True)
    nodes = _nodes(fields.get("nodes"), most)
    pods = _pods(fields.get("pods"), most)
    if len(nodes) * len(pods) > most.questions:
        raise TooLarge(
            f"{len(pods)} pods on {len(nodes)} nodes are more than {most.questions} questions",
            field="pods",
            rule="too-many",
        )
    _check_rules(nodes, pods, most)
    claims, problems = _claims(fields.get("claims"), most)
    for index, gang in enumerate(read_list(fields.get("gangs"), "gangs", most=most.claims)):
        read_object(gang, within("gangs", index), ())
    options = fields.get("options")
    share = read_object({} if options is None else options, "options", _OPTIONS, strict=True).get("share")
    chosen = read_choice(share, "options.share", choices=tuple(SharePolicy), default=SharePolicy.GPUPACK)
    return Scenario(nodes=nodes, pods=pods, claims=claims, share=SharePolicy(chosen), problems=problems)


def _check_rules(nodes: Collection[NodeShape], pods: Iterable[Pod], most: Limits) -> None:
    """Raises TooLarge where nodeSelectors, affinities and tolerations would take too long."""
    waiting = {rules_key(pod.spec): pod.spec for pod in pods if not pod.spec.node_name}
    taints = max((len(node.taints) for node in nodes), default=0) + 1  # a cordon is one more
    if sum(rules_cost(spec, taints=taints) for spec in waiting.values()) * len(nodes) > most.rules:
        raise TooLarge(
            f"the rules by which pods choose nodes are more than {most.rules} comparisons",
            field="pods",
            rule="too-many",
        )


def _nodes(value: object, most: Limits) -> tuple[NodeShape, ...]:
    nodes: list[NodeShape] = []
    names: set[str] = set()
    owners: dict[str, str] = {}
    devices = 0
    for index, entry in enumerate(read_list(value, "nodes", most=most.nodes)):
        path = within("nodes", index)
        node = parse_node(entry, path=path)
        if node.name in names:
            raise BadInput(f"node {node.name} stands there twice", field=within(path, "name"), rule="duplicate")
        names.add(node.name)
        for place, device in enumerate(node.devices):
            owner = owners.setdefault(device.uuid, node.name)
            if owner != node.name:
                field = f"{path}.devices[{place}].uuid"
                raise BadInput(f"{device.uuid} is a device of {owner} already", field=field, rule="duplicate")
        devices += len(node.devices)
        if devices > most.devices:
            raise TooLarge(f"at most {most.devices} devices are taken", field=path, rule="too-many")
        nodes.append(node)
    return tuple(nodes)


def _claims(value: object, most: Limits) -> tuple[dict[tuple[str, str], ClaimSpec | Refusal], tuple[str, ...]]:
    """Claims by name; a malformed one refuses the pods that name it, as a stored one would."""
    claims: dict[tuple[str, str], ClaimSpec | Refusal] = {}
    problems: list[str] = []
    for index, manifest in enumerate(read_list(value, "claims", most=most.claims)):
        path = within("claims", index)
        claim: ClaimSpec | Refusal
        known, dropped = without_unknown_fields(manifest)
        problems += [f"{within(path, field)} is not a field of GpuClaim and is passed over" for field in dropped]
        try:
            metadata, claim = parse_claim_manifest(known)
            name, namespace = metadata.name, metadata.namespace
        except ClaimInvalid as error:
            name, namespace = _claim_name(manifest, path)
            reason = f"GpuClaim {name} is malformed: {error.message}"
            claim = Refusal(rule="claim-malformed", reason=reason, field=error.field)
            problems.append(f"{path}: {error.message}")
        key = (namespace or DEFAULT_NAMESPACE, name)
        if key in claims:
            field = f"{path}.metadata.name"
            raise BadInput(f"claim {key[0]}/{key[1]} stands there twice", field=field, rule="duplicate")
        claims[key] = claim
    return claims, tuple(problems)


def _claim_name(manifest: object, path: str) -> tuple[str, str]:
    """Name and namespace of a claim that is wrong in some other way; without them the file itself is wrong."""
    fields = read_object(manifest, path, ())
    metadata = read_object(fields.get("metadata"), f"{path}.metadata", ())
    name = read_name(metadata.get("name"), f"{path}.metadata.name", check_subdomain)
    return name, read_name(
        metadata.get("namespace") or DEFAULT_NAMESPACE, f"{path}.metadata.namespace", check_namespace
    )


def _pods(value: object, most: Limits) -> tuple[Pod, ...]:
    pods: list[Pod] = []
    living: set[tuple[str, str]] = set()
    for index, manifest in enumerate(read_list(value, "pods", most=most.pods)):
        path = within("pods", index)
        pod = _pod(manifest, path, index)
        key = (pod.metadata.namespace, pod.metadata.name)
        if not pod.finished and key in living:
            field = f"{path}.metadata.name"
            raise BadInput(f"pod {key[0]}/{key[1]} stands there twice", field=field, rule="duplicate")
        if not pod.finished:
            living.add(key)
        pods.append(pod)
    return tuple(pods)


def _pod(manifest: object, path: str, index: int) -> Pod:
    fields = read_object(manifest, path, ())
    if fields.get("kind", _POD_KIND) != _POD_KIND:
        field = within(path, "kind")
        raise BadInput(f"{field} must be {_POD_KIND}", field=field, rule="choice")
    try:
        pod = msgspec.convert(_stated(fields), Pod)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        field = path + (place["path"] if place else "")
        told = _PLACE.sub("", str(error))
        raise BadInput(f"{field}: {told}", field=field, rule="type") from error
    metadata = pod.metadata
    name = metadata.name or (f"{metadata.generate_name}{index}" if metadata.generate_name else "")
    named = msgspec.structs.replace(
        metadata,
        name=read_name(name, f"{path}.metadata.name", check_subdomain),
        namespace=read_name(metadata.namespace or DEFAULT_NAMESPACE, f"{path}.metadata.namespace", check_namespace),
        uid=read_name(metadata.uid or f"scenario-{index}", f"{path}.metadata.uid", check_uid),
    )
    if pod.spec.node_name:
        read_name(pod.spec.node_name, f"{path}.spec.nodeName", check_subdomain)
    return msgspec.structs.replace(pod, metadata=named)


def _stated(value: Any) -> Any:
    """The manifest without keys that say null: in Kubernetes that is the same as leaving them out."""
    if isinstance(value, dict):
        return {key: _stated(part) for key, part in value.items() if part is not None}
    return [_stated(part) for part in value] if isinstance(value, list) else value


def metadata_label(metadata: ObjectMeta) -> str:
    """`namespace/name`."""
    return f"{metadata.namespace}/{metadata.name}"
