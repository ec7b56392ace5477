"""The tree of queues: who stands below whom, and the groups of GPU models that quotas count by.

Made by the reader of GpuQueue manifests. Invariants: every queue reaches the top; a namespace is in one queue; quotas
of all queues name the same groups of models, and a model is in one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import total_ordering
from typing import Final, NamedTuple

import msgspec

DEFAULT: Final = "default"
"""The queue of pods that no other queue takes; made when missing."""
TOP: Final = ""
"""The parent of queues without one: the fleet."""

Group = frozenset[str]
"""Names of GPU models in lower case; empty: every model that no other group names."""
REST: Final[Group] = frozenset()


Amount = int | Fraction
"""GPUs. Whole ones are integers, which count faster; division is by `ratio`."""


def ratio(part: Amount, total: Amount) -> Fraction:
    """The exact quotient."""
    return Fraction(part) / total


@total_ordering
class Quotient(msgspec.Struct, frozen=True, gc=False):
    """An exact quotient to compare: a Fraction costs ten times as much to make."""

    numerator: int
    denominator: int

    @classmethod
    def of(cls, part: Amount, total: Amount) -> Quotient:
        """`total` is positive."""
        return cls(part.numerator * total.denominator, part.denominator * total.numerator)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quotient):
            return NotImplemented
        return self.numerator * other.denominator == other.numerator * self.denominator

    def __lt__(self, other: Quotient) -> bool:
        return self.numerator * other.denominator < other.numerator * self.denominator

    def __hash__(self) -> int:
        return hash(Fraction(self.numerator, self.denominator))


class Quota(msgspec.Struct, frozen=True):
    """What a queue is due of one group of models, in GPUs. `limit` None: unlimited."""

    models: tuple[str, ...] = ()
    deserved: Amount = 0
    limit: Amount | None = None
    weight: Amount = 1

    @property
    def group(self) -> Group:
        """The group of models."""
        return frozenset(model.casefold() for model in self.models)

    @property
    def text(self) -> str:
        """The models for people."""
        return "/".join(self.models) or "GPUs"


class Queue(msgspec.Struct, frozen=True):
    """The spec of a GpuQueue. `strict`: StrictFIFO."""

    name: str
    parent: str = TOP
    namespaces: tuple[str, ...] = ()
    priority: int = 100
    strict: bool = False
    quotas: tuple[Quota, ...] = ()


class QueueInvalid(ValueError):
    """Queues break a rule together. `queue`: the one to change; `rule`: a short stable name."""

    def __init__(self, queue: str, rule: str, message: str) -> None:
        super().__init__(message)
        self.queue, self.rule, self.message = queue, rule, message


class Name(NamedTuple):
    """A queue's share of one group: what quotas, shares and amounts are kept by."""

    queue: str
    group: Group


class QueueTree:
    """The queues, oldest first, with `default`."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        """Raises QueueInvalid."""
        self.queues = _by_name(queues)
        self.queues.setdefault(DEFAULT, Queue(DEFAULT, quotas=(Quota(),)))
        self.age = {name: place for place, name in enumerate(self.queues)}
        self.children: dict[str, list[str]] = {name: [] for name in (TOP, *self.queues)}
        for queue in self.queues.values():
            if queue.parent != TOP and queue.parent not in self.queues:
                raise QueueInvalid(
                    queue.name, "parent", f"the parent {queue.parent} of queue {queue.name} does not exist"
                )
            self.children[queue.parent].append(queue.name)
        self.paths = {name: self._path(name) for name in self.queues}
        self.quotas = {Name(queue.name, quota.group): quota for queue in self.queues.values() for quota in queue.quotas}
        self.groups = self._groups()
        self._of_model = {model: group for group in self.groups for model in group}
        self.of_namespace = self._namespaces()
        self._check_deserved()

    def quota(self, queue: str, group: Group) -> Quota:
        """The queue's entry for the group; without one it is due nothing, and has no limit."""
        return self.quotas.get(Name(queue, group)) or Quota(self.models(group))

    def models(self, group: Group) -> tuple[str, ...]:
        """The group's models as the first queue writes them."""
        return next((quota.models for name, quota in self.quotas.items() if name.group == group), ())

    def group_of(self, model: str) -> Group:
        """The group that counts this model."""
        return self._of_model.get(model.casefold(), REST)

    def is_leaf(self, queue: str) -> bool:
        """Whether the queue takes pods."""
        return not self.children[queue]

    def below(self, queue: str) -> Sequence[str]:
        """The queues right below, oldest first."""
        return self.children[queue]

    def from_the_leaves(self) -> Iterator[str]:
        """Every queue, children before their parents."""
        return iter(sorted(self.queues, key=lambda name: (-len(self.paths[name]), self.age[name])))

    def _path(self, name: str) -> tuple[str, ...]:
        """The queue and its ancestors, itself first."""
        path: list[str] = []
        while name != TOP:
            if name in path:
                raise QueueInvalid(name, "cycle", f"queue {name} is its own ancestor: {' in '.join([*path, name])}")
            path.append(name)
            name = self.queues[name].parent
        return tuple(path)

    def _groups(self) -> tuple[Group, ...]:
        groups: dict[Group, str] = {}
        owner: dict[str, tuple[str, Group]] = {}
        for queue in self.queues.values():
            seen: set[Group] = set()
            for quota in queue.quotas:
                if quota.group in seen:
                    raise QueueInvalid(queue.name, "models", f"queue {queue.name} has two quotas for {quota.text}")
                seen.add(quota.group)
                groups.setdefault(quota.group, queue.name)
                for model in quota.group:
                    other, group = owner.setdefault(model, (queue.name, quota.group))
                    if group != quota.group:
                        message = f"queues {other} and {queue.name} group {model} with different models"
                        raise QueueInvalid(queue.name, "models", message)
        return tuple(groups) if REST in groups else (*groups, REST)

    def _namespaces(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for queue in self.queues.values():
            for namespace in queue.namespaces:
                other = found.setdefault(namespace, queue.name)
                if other != queue.name:
                    message = f"namespace {namespace} is in queue {other} and in queue {queue.name}"
                    raise QueueInvalid(queue.name, "namespace", message)
        return found

    def _check_deserved(self) -> None:
        for name, quota in self.quotas.items():
            parent = self.queues[name.queue].parent
            if parent != TOP and quota.deserved > self.quota(parent, name.group).deserved:
                message = (
                    f"queue {name.queue} deserves {amount_text(quota.deserved)} {quota.text}, more than its parent "
                    f"{parent} with {amount_text(self.quota(parent, name.group).deserved)}"
                )
                raise QueueInvalid(name.queue, "deserved", message)


def amount_text(amount: Amount) -> str:
    """`16`, `0.5`, `0.33`."""
    return f"{float(amount):.2f}".rstrip("0").rstrip(".")


def _by_name(queues: Iterable[Queue]) -> dict[str, Queue]:
    found: dict[str, Queue] = {}
    for queue in queues:
        if queue.name in found:
            raise QueueInvalid(queue.name, "duplicate", f"queue {queue.name} stands there twice")
        found[queue.name] = queue
    return found
