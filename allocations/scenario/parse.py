"""Reads and checks a scenario.

Called by `manage.py simulate` and by the process of a what-if run (`allocations.whatif.program`). Pure. Invariants:
whatever is wrong with the file itself, an unknown key of it, of a node or of a device included, is a BadInput that
names the field; manifests are read as the API server reads them, so their unknown fields are ignored; a malformed claim
or annotation is a refusal of its pods or a problem in the result, as in a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from access.errors import BadInput, TooLarge
from allocations.engine.queueing.workloads import Gang
from allocations.scenario.pools import PoolShape, parse_pools
from allocations.scenario.rules import rules_cost, rules_key
from allocations.scenario.slots.parse import KEYS as INFERENCE
from allocations.scenario.slots.parse import Inference, read_inference
from allocations.scenario.text import read_text
from claims.dialects.claim_manifest import ClaimSpec, parse_claim_manifest, without_unknown_fields
from claims.dialects.request import Refusal, SharePolicy
from claims.manifest_metadata import ManifestInvalid
from claims.queue_manifests import parse_gang, parse_queue, queue_of, unknown_gang_fields, unknown_queue_fields
from claims.queue_tree import Queue, QueueInvalid, QueueTree
from kube.names import check_namespace, check_subdomain, check_uid
from kube.objects import ObjectMeta, Pod
from nodes.field_parser import read_choice, read_list, read_name, read_object, within
from nodes.inventory import NodeShape, parse_node

DEFAULT_NAMESPACE: Final = "default"
_SCENARIO: Final = ("nodes", "claims", "gangs", "queues", "pods", "pools", *INFERENCE, "options")
_OPTIONS: Final = ("share",)
_POD_KIND: Final = "Pod"
_PLACE: Final = re.compile(r" - at `\$?(?P<path>.*)`$")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario may hold. `claims`: and as many gangs and queues. `questions`: pods times nodes; `rules`:
    comparisons of the rules of pods with nodes.
    """

    nodes: int = 10_000
    devices: int = 100_000
    pods: int = 50_000
    claims: int = 10_000
    questions: int = 20_000_000
    rules: int = 50_000_000


LIMITS: Final = Limits()
PAGE_LIMITS: Final = Limits(nodes=2_000, devices=16_000, pods=2_000, claims=2_000, questions=400_000, rules=4_000_000)
"""Larger scenarios than a page answers quickly go through REST or `manage.py simulate`."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet and its pods. `claims`: (namespace, name) → the claim, or why it is malformed; `gangs` likewise.

    `queues`: None where pods go in the order of the file. `pools`: None where no nodes can be made. `inference`:
    models, runners, slots and requests.
    """

    nodes: tuple[NodeShape, ...]
    pods: tuple[Pod, ...]
    claims: dict[tuple[str, str], ClaimSpec | Refusal]
    gangs: dict[tuple[str, str], Gang]
    queues: QueueTree | None
    pools: tuple[PoolShape, ...] | None = None
    share: SharePolicy
    problems: tuple[str, ...]
    inference: Inference | None = None


def read_scenario(text: str | bytes) -> Scenario:
    """The scenario of JSON or YAML text. Raises BadInput, TooLarge."""
    return parse_scenario(read_text(text))


def parse_scenario(value: object, *, limits: Limits = LIMITS) -> Scenario:
    """The scenario of decoded JSON or YAML. Raises BadInput, TooLarge."""
    fields = read_object({} if value is None else value, "", _SCENARIO, strict=True)
    nodes = _nodes(fields.get("nodes"), limits)
    pods = _pods(fields.get("pods"), limits)
    if len(nodes) * len(pods) > limits.questions:
        raise TooLarge(
            f"{len(pods)} pods on {len(nodes)} nodes are more than {limits.questions} questions",
            field="pods",
            rule="too-many",
        )
    _check_rules(nodes, pods, limits)
    claims, problems = _claims(fields.get("claims"), limits)
    gangs, gang_problems = _gangs(fields.get("gangs"), limits)
    queues, queue_problems = _queues(fields.get("queues"), limits)
    pools = parse_pools(fields["pools"]) if fields.get("pools") is not None else None
    _check_rules([pool.node for pool in pools or ()], pods, limits)
    options = fields.get("options")
    share = read_object({} if options is None else options, "options", _OPTIONS, strict=True).get("share")
    chosen = read_choice(share, "options.share", choices=tuple(SharePolicy), default=SharePolicy.GPUPACK)
    return Scenario(
        nodes=nodes,
        pods=pods,
        claims=claims,
        gangs=gangs,
        queues=queues,
        pools=pools,
        share=SharePolicy(chosen),
        problems=(*problems, *gang_problems, *queue_problems),
        inference=read_inference(fields, nodes, limits),
    )


def _check_rules(nodes: Collection[NodeShape], pods: Iterable[Pod], limits: Limits) -> None:
    """Raises TooLarge where nodeSelectors, affinities and tolerations would take too long."""
    waiting = {rules_key(pod.spec): pod.spec for pod in pods if not pod.spec.node_name}
    taints = max((len(node.taints) for node in nodes), default=0) + 1  # a cordon is one more
    if sum(rules_cost(spec, taints=taints) for spec in waiting.values()) * len(nodes) > limits.rules:
        raise TooLarge(
            f"the rules by which pods choose nodes are more than {limits.rules} comparisons",
            field="pods",
            rule="too-many",
        )


def _nodes(value: object, limits: Limits) -> tuple[NodeShape, ...]:
    nodes: list[NodeShape] = []
    names: set[str] = set()
    owners: dict[str, str] = {}
    devices = 0
    for index, entry in enumerate(read_list(value, "nodes", most=limits.nodes)):
        path = within("nodes", index)
        node = parse_node(entry, path=path)
        if node.name in names:
            raise _duplicate(f"node {node.name}", within(path, "name"))
        names.add(node.name)
        for place, device in enumerate(node.devices):
            owner = owners.setdefault(device.uuid, node.name)
            if owner != node.name:
                field = f"{path}.devices[{place}].uuid"
                raise BadInput(f"{device.uuid} is a device of {owner} already", field=field, rule="duplicate")
        devices += len(node.devices)
        if devices > limits.devices:
            raise TooLarge(f"at most {limits.devices} devices are taken", field=path, rule="too-many")
        nodes.append(node)
    return tuple(nodes)


def _claims(value: object, limits: Limits) -> tuple[dict[tuple[str, str], ClaimSpec | Refusal], tuple[str, ...]]:
    """(claims by namespace and name, problems); a malformed claim refuses the pods that name it."""
    claims: dict[tuple[str, str], ClaimSpec | Refusal] = {}
    problems: list[str] = []
    for index, manifest in enumerate(read_list(value, "claims", most=limits.claims)):
        path = within("claims", index)
        claim: ClaimSpec | Refusal
        known, dropped = without_unknown_fields(manifest)
        problems += [f"{within(path, field)} is not a field of GpuClaim and is passed over" for field in dropped]
        try:
            metadata, claim = parse_claim_manifest(known)
            name, namespace = metadata.name, metadata.namespace
        except ManifestInvalid as error:
            name, namespace = _claim_name(manifest, path)
            reason = f"GpuClaim {name} is malformed: {error.message}"
            claim = Refusal(rule="claim-malformed", reason=reason, field=error.field)
            problems.append(f"{path}: {error.message}")
        key = (namespace or DEFAULT_NAMESPACE, name)
        if key in claims:
            raise _duplicate(f"claim {key[0]}/{key[1]}", f"{path}.metadata.name")
        claims[key] = claim
    return claims, tuple(problems)


def _gangs(value: object, limits: Limits) -> tuple[dict[tuple[str, str], Gang], list[str]]:
    """(gangs by namespace and name, problems)."""
    gangs: dict[tuple[str, str], Gang] = {}
    problems: list[str] = []
    for index, manifest in enumerate(read_list(value, "gangs", most=limits.claims)):
        path = within("gangs", index)
        read_object(manifest, path, ())
        problems += [
            f"{within(path, field)} is not a field of GpuGang and is passed over"
            for field in unknown_gang_fields(manifest)
        ]
        try:
            metadata, spec = parse_gang(manifest)
        except ManifestInvalid as error:
            raise _invalid(error, path) from error
        key = (metadata.namespace or DEFAULT_NAMESPACE, metadata.name)
        if key in gangs:
            raise _duplicate(f"gang {key[0]}/{key[1]}", f"{path}.metadata.name")
        gangs[key] = Gang.of(f"{key[0]}/{key[1]}", spec)
    return gangs, problems


def _queues(value: object, limits: Limits) -> tuple[QueueTree | None, list[str]]:
    """(the queues, problems)."""
    queues: list[Queue] = []
    problems: list[str] = []
    for index, manifest in enumerate(read_list(value, "queues", most=limits.claims)):
        path = within("queues", index)
        read_object(manifest, path, ())
        problems += [
            f"{within(path, field)} is not a field of GpuQueue and is passed over"
            for field in unknown_queue_fields(manifest)
        ]
        try:
            metadata, spec = parse_queue(manifest)
        except ManifestInvalid as error:
            raise _invalid(error, path) from error
        if any(queue.name == metadata.name for queue in queues):
            raise _duplicate(f"queue {metadata.name}", f"{path}.metadata.name")
        queues.append(queue_of(metadata.name, spec))
    if not queues:
        return None, problems
    try:
        return QueueTree(queues), problems
    except QueueInvalid as error:
        place = next(index for index, queue in enumerate(queues) if queue.name == error.queue)
        raise BadInput(error.message, field=within("queues", place), rule=error.rule) from error


def _invalid(error: ManifestInvalid, path: str) -> BadInput:
    """The same, with its place in the file."""
    field = f"{path}.{error.field}" if error.field else path
    return BadInput(f"{path}: {error}", field=field, rule=error.rule)


def _claim_name(manifest: object, path: str) -> tuple[str, str]:
    """Name and namespace of a malformed claim. Raises BadInput where these are malformed too."""
    fields = read_object(manifest, path, ())
    metadata = read_object(fields.get("metadata"), f"{path}.metadata", ())
    name = read_name(metadata.get("name"), f"{path}.metadata.name", check_subdomain)
    return name, read_name(
        metadata.get("namespace") or DEFAULT_NAMESPACE, f"{path}.metadata.namespace", check_namespace
    )


def _pods(value: object, limits: Limits) -> tuple[Pod, ...]:
    pods: list[Pod] = []
    living: set[tuple[str, str]] = set()
    for index, manifest in enumerate(read_list(value, "pods", most=limits.pods)):
        path = within("pods", index)
        pod = _pod(manifest, path, index)
        key = (pod.metadata.namespace, pod.metadata.name)
        if not pod.finished and key in living:
            raise _duplicate(f"pod {key[0]}/{key[1]}", f"{path}.metadata.name")
        if not pod.finished:
            living.add(key)
        pods.append(pod)
    return tuple(pods)


def _duplicate(what: str, field: str) -> BadInput:
    return BadInput(f"{what} stands there twice", field=field, rule="duplicate")


def _pod(manifest: object, path: str, index: int) -> Pod:
    fields = read_object(manifest, path, ())
    if fields.get("kind", _POD_KIND) != _POD_KIND:
        field = within(path, "kind")
        raise BadInput(f"{field} must be {_POD_KIND}", field=field, rule="choice")
    try:
        pod = msgspec.convert(_without_nulls(fields), Pod)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        field = path + (place["path"] if place else "")
        raise BadInput(f"{field}: {_PLACE.sub('', str(error))}", field=field, rule="type") from error
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


def _without_nulls(value: Any) -> Any:
    """The manifest without keys of null, which Kubernetes takes for absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def metadata_label(metadata: ObjectMeta) -> str:
    """`namespace/name`."""
    return f"{metadata.namespace}/{metadata.name}"
