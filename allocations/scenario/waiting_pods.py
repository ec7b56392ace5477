"""The waiting pods of a scenario: what they ask for, where their rules let them, and the decision on each.

Called by `in_order` and `queued`. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from allocations.engine.queueing.rounds import DecisionInput
from allocations.engine.queueing.workloads import Age, Gang, Member, Workload
from allocations.engine.reasons import summary_text
from allocations.scenario.parse import Scenario, metadata_label
from allocations.scenario.result import DeviceResult, EvictionResult, PodDecision, QuotaResult
from allocations.scenario.rules import NodeRules
from claims.dialects.parse import parse_pod
from claims.dialects.request import DeviceRequest, Refusal
from claims.queue_manifests import gang_named_by
from kube.keys import CLAIM

if TYPE_CHECKING:
    from allocations.engine.decision import Decision
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.claim_manifest import ClaimSpec
    from claims.dialects.request import Parsed
    from kube.objects import Pod

NOTHING_ASKED = "asks for no devices: any node will do"


class Answered(msgspec.Struct, frozen=True):
    """Decisions in the order of the file, and what came of them. `asked`: what the queues decided about."""

    decisions: tuple[PodDecision, ...]
    snapshot: Snapshot
    evictions: tuple[EvictionResult, ...] | None = None
    queues: dict[str, tuple[QuotaResult, ...]] = {}
    asked: DecisionInput | None = None


class WaitingPods:
    """The pods that wait, in the order of the file, and their decisions as they are made."""

    def __init__(self, scenario: Scenario, snapshot: Snapshot) -> None:
        self.scenario = scenario
        self.snapshot = snapshot
        self.rules = NodeRules(scenario.nodes)
        self.place = {metadata_label(pod.metadata): place for place, pod in enumerate(scenario.pods)}
        self.waiting = [pod for pod in scenario.pods if not (pod.finished or pod.spec.node_name)]
        self.decisions: dict[str, PodDecision] = {}
        self.excluded: dict[str, Mapping[str, str]] = {}
        """Pod → node → why the pod's rules exclude it."""
        self.short: list[Workload] = []
        """Workloads that lack nothing but devices, as far as they were noted (`lacks_devices`)."""

    def members(self) -> list[tuple[Pod, Member]]:
        """The pods that ask for devices and may be served; the others are decided upon."""
        found = []
        for pod in self.waiting:
            label, parsed = metadata_label(pod.metadata), parsed_request(self.scenario, pod)
            if parsed is None:
                self.decisions[label] = PodDecision(label, None, (), {}, NOTHING_ASKED)
            elif isinstance(parsed, Refusal):
                self.decisions[label] = self._refused_everywhere(label, parsed.reason)
            else:
                self.excluded[label] = excluded = self.rules.refused(pod.spec)
                names = enumerate(self.snapshot.node_names)
                rows = tuple(row for row, name in names if name not in excluded) if excluded else None
                found.append((pod, Member(label, parsed, self.age(pod), rows)))
        return found

    def age(self, pod: Pod) -> Age:
        """By creationTimestamp, else by the pod's place in the file."""
        created = _in_utc(pod.metadata.creation_timestamp or "")
        return Age(not created, created, self.place[metadata_label(pod.metadata)])

    def decided(self, label: str, decision: Decision, waits_for: tuple[str, ...] = ()) -> None:
        """Note the engine's decision; the reasons of other nodes where it has them."""
        devices = tuple(
            DeviceResult(grant.uuid, grant.minor, grant.type, grant.core_percent, grant.memory_bytes)
            for grant in decision.grants
        )
        excluded, summary = self.excluded[label], decision.summary
        refused = decision.verdicts.refused() if decision.verdicts is not None else ()
        reasons = {name: reason.text for name, reason in refused} | dict(excluded)
        if decision.node is None and excluded:
            summary = summary_text(len(reasons), Counter(reasons.values()).items())
        if waits_for:
            summary = f"{summary}; {waits_text(waits_for)}"
        self.decisions[label] = PodDecision(label, decision.node, devices, reasons, summary, waits_for)

    def waits(self, label: str, reason: str) -> None:
        """Note that the pod waits for a reason that is none of a node's."""
        self.decisions[label] = PodDecision(label, None, (), {}, reason)

    def lacks_devices(self, workload: Workload) -> None:
        """Note a workload that a new node could serve."""
        self.short.append(workload)

    def in_file_order(self) -> tuple[PodDecision, ...]:
        """All decisions."""
        return tuple(self.decisions[metadata_label(pod.metadata)] for pod in self.waiting)

    def _refused_everywhere(self, label: str, reason: str) -> PodDecision:
        names = self.snapshot.node_names
        summary = summary_text(len(names), [(reason, len(names))]) if names else reason
        return PodDecision(label, None, (), dict.fromkeys(names, reason), summary)


def parsed_request(scenario: Scenario, pod: Pod) -> Parsed:
    """What the pod asks for, once admission has renamed the `nvidia.com/gpu` of a pod by HAMi's names."""

    def find(namespace: str, name: str) -> ClaimSpec | Refusal | None:
        found = scenario.claims.get((namespace, name))
        if found is None or isinstance(found, Refusal):
            return found
        return msgspec.structs.replace(found, gang_ref="")  # the gang is found by `gang_of`

    parsed = parse_pod(pod, find_claim=find)
    if not isinstance(parsed, DeviceRequest):
        return parsed
    return msgspec.structs.replace(parsed, kubelet_gpus=False).under(scenario.share)


def gang_of(scenario: Scenario, pod: Pod) -> str:
    """`namespace/name` of the pod's gang, by its claim or its label; empty without one."""
    claim = scenario.claims.get((pod.metadata.namespace, pod.annotations.get(CLAIM, "")))
    named = "" if claim is None or isinstance(claim, Refusal) else claim.gang_ref
    named = named or gang_named_by(pod)
    return f"{pod.metadata.namespace}/{named}" if named else ""


def gangs_by_name(scenario: Scenario) -> dict[str, Gang]:
    """`namespace/name` → the gang."""
    return {gang.name: gang for gang in scenario.gangs.values()}


def _in_utc(created: str) -> str:
    """The time in a form that orders as text; what is no time stays as it is."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return (
        (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
        .astimezone(UTC)
        .isoformat("T", "microseconds")
    )


def waits_text(pods: tuple[str, ...]) -> str:
    """`waits for 2 pods that are being evicted`."""
    return f"waits for {len(pods)} pod{'s that are' if len(pods) != 1 else ' that is'} being evicted"
