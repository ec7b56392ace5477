"""`manage.py recognised_names`: the names by which `claims.admission` recognises pods, for the chart's templates.

They make the webhooks' matchConditions and kube-scheduler's configuration of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from claims.admission import trust
from claims.dialects.registry import DIALECTS, REQUEST_ANNOTATIONS, REQUEST_RESOURCES
from gpuplane.management.generated_file import GeneratedFileCommand
from kube.keys import PODS_RESOURCE

PAGE = """\
# The names by which a pod concerns gpuplane; the webhooks' matchConditions and kube-scheduler's configuration are made
# of them. Written by `manage.py recognised_names` from claims/dialects/registry.py.

# A pod with one of these annotations asks for devices.
askingAnnotations:
{annotations}
# A pod with a container that names one of these resources asks for devices.
resources:
{resources}
# A pod with a container that names a resource that begins so asks for devices.
resourceStarts:
{resource_starts}
# No node advertises these; gpuplane alone counts them.
ignoredResources:
{ignored}
# The resource by which kube-scheduler counts pods that ask for devices; gpuplane alone gives it to pods. Naming it
# is no way of asking.
counted: {counted}
# Annotations and labels that are results of an allocation: only schedulers write them.
results:
  exact:
{exact}
  starts:
{starts}
  # Those that begin with the first and end with one of the second.
  framed:
    start: {frame}
    ends: [{ends}]
"""


def page() -> str:
    """The file. Raises ValueError where framed results have several beginnings: the templates know one."""
    frames = sorted({start for one in DIALECTS for start, _ in one.result_frames})
    if len(frames) != 1:
        raise ValueError(f"templates/_recognise.tpl knows one beginning of framed results, not {frames}")
    starts = tuple(start for start, _ in trust.STARTS)
    return PAGE.format(
        annotations=_listed(REQUEST_ANNOTATIONS, 2),
        resources=_listed((name for name in REQUEST_RESOURCES if not name.endswith("-")), 2),
        resource_starts=_listed((name for name in REQUEST_RESOURCES if name.endswith("-")), 2),
        ignored=_listed((name for one in DIALECTS for name in one.unadvertised), 2),
        counted=PODS_RESOURCE,
        exact=_listed((key for key in trust.RESULTS if not key.startswith(starts)), 4),
        starts=_listed(starts, 4),
        frame=frames[0],
        ends=", ".join(sorted(end for one in DIALECTS for _, end in one.result_frames)),
    )


def _listed(names: Iterable[str], indent: int) -> str:
    return "\n".join(f"{' ' * indent}- {name}" for name in sorted(names))


class Command(GeneratedFileCommand):
    """Write the file, or check it."""

    help = "Write the chart's files/recognised.yaml, or with --check fail when it is not what would be written."
    path = Path("docker/helm/gpuplane/files/recognised.yaml")

    def content(self) -> str:
        """The file."""
        return page()
