"""What a pod asks for of each resource, summed over its containers (DEV-2).

Called by `claims.dialects.parse`. Kept true: the sum is the scheduler's own. Containers and sidecars
(init containers that restart always) run together, so their amounts add up; an ordinary init container runs
before them, beside only the sidecars started earlier, so the pod needs the larger of the two, resource by
resource. Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from claims.dialects.refused import Refused
from kube.device_types import Dimension
from kube.keys import MIG_RESOURCES
from kube.objects import Container, Pod, RawQuantity
from kube.quantities import LARGEST, QuantityError, parse_quantity, parse_whole

Known = Mapping[str, Dimension]
"""Full resource name → what it counts; other resources of the pod are not looked at, but those of MIG instances where the names of GPUs are known."""


def _counts(name: str, known: Known) -> bool:
    """Whether the resource is looked at: MIG instances are asked for by names that no table can hold."""
    return name in known or (name.startswith(MIG_RESOURCES) and MIG_RESOURCES in known)


def _counts_any(stated: Mapping[str, RawQuantity] | None, known: Known) -> bool:
    """Whether any of the resources is looked at. A loop: filter asks it of every container, and most have none."""
    if not stated:
        return False
    if not known.keys().isdisjoint(stated):
        return True
    if MIG_RESOURCES in known:
        for name in stated:
            if name.startswith(MIG_RESOURCES):
                return True
    return False


def pod_amounts(pod: Pod, known: Known) -> dict[str, int]:
    """Resource name → amount (bytes for memory, else a count), only those above 0. Raises `Refused`."""
    if not _names_any(pod, known):  # most pods with a GpuClaim: the sums below would cost a fifth of the webhook
        return {}
    together: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    for index, container in enumerate(pod.spec.init_containers or ()):
        own = _container_amounts(container, known, f"spec.initContainers[{index}]")
        if container.restart_policy == "Always":
            sidecars.update(own)
            largest |= sidecars
        else:
            largest |= sidecars + own
    together.update(sidecars)
    for index, container in enumerate(pod.spec.containers or ()):
        together.update(_container_amounts(container, known, f"spec.containers[{index}]"))
    amounts = together | largest
    for name, amount in amounts.items():
        if amount > LARGEST:
            raise Refused("quantity", f"the pod asks for more {name} than can be counted", field="spec.containers")
    return {name: amount for name, amount in amounts.items() if amount}


def asks_any(pod: Pod, known: Known) -> bool:
    """Whether any container asks for any of the resources: cheap, and true too where the amount is malformed."""
    for container in _containers(pod):
        resources = container.resources
        if resources is None:
            continue
        for stated in (resources.limits, resources.requests):
            if _counts_any(stated, known) and any(
                _counts(name, known) and not _is_zero(value) for name, value in (stated or {}).items()
            ):
                return True
    return False


def container_amounts(container: Container, known: Known, path: str) -> dict[str, int]:
    """The same of one container. `path`: where it stands in the pod, for refusals."""
    return {name: amount for name, amount in _container_amounts(container, known, path).items() if amount}


def _names_any(pod: Pod, known: Known) -> bool:
    for container in _containers(pod):
        resources = container.resources
        if resources and (_counts_any(resources.limits, known) or _counts_any(resources.requests, known)):
            return True
    return False


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers or ()
    yield from pod.spec.init_containers or ()


def _is_zero(value: RawQuantity) -> bool:
    try:
        return parse_quantity(value) == 0
    except QuantityError:
        return False


def _container_amounts(container: Container, known: Known, path: str) -> Counter[str]:
    """Limits where stated, else requests; Kubernetes allows no difference between them for such resources."""
    amounts: Counter[str] = Counter()
    resources = container.resources
    if resources is None:
        return amounts
    limits, requests = resources.limits or {}, resources.requests or {}
    for stated in (limits, requests):
        part = "limits" if stated is limits else "requests"
        for name, value in stated.items():
            if not _counts(name, known):
                continue
            amount = _amount(name, value, known.get(name, Dimension.UNITS), f"{path}.resources.{part}[{name}]")
            if amounts.setdefault(name, amount) != amount:
                raise Refused(
                    "requests-differ",
                    f"requests and limits of {name} differ; devices cannot be overcommitted, so write the same in both",
                    field=f"{path}.resources.requests[{name}]",
                )
    return amounts


def _amount(name: str, value: RawQuantity, dimension: Dimension, field: str) -> int:
    try:
        return parse_quantity(value) if dimension is Dimension.MEMORY else parse_whole(value)
    except QuantityError as error:
        raise Refused("quantity", f"{name}: {error}", field=field) from error
