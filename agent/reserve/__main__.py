"""`python -m agent.reserve`: writes the UUIDs of the container's GPUs on its own pod, and sleeps until SIGTERM.

Environment: POD_NAME, POD_NAMESPACE and POD_UID by the downward API (without POD_UID, the pod of that name is taken for
its own), KUBERNETES_SERVICE_HOST and _PORT from the kubelet, NVIDIA_VISIBLE_DEVICES from the device plugin. For tests:
GPUPLANE_NVIDIA_PROC, GPUPLANE_SERVICE_ACCOUNT_DIR.

Exit codes: 0 after SIGTERM or SIGINT, and where the pod is gone; 1 where the API server refuses for good, with one line
that says why. The kubelet then starts the container again after a pause, and shows the line in the pod's status.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

from agent.reserve import nvml
from agent.reserve.gpus import DEV, PROC, NotYet, own_uuids
from agent.reserve.pod import Found, OwnPod, PodGone, Refused, TryAgain, place_of

LOOK_FIRST: Final = 0.1
LOOK_MOST: Final = 1.0
"""Seconds between two looks at the driver: the kernel announces no changes under /proc."""
PAUSE_FIRST: Final = 0.2
PAUSE_MOST: Final = 10.0
UNAUTHORIZED_MOST: Final = 5
"""Answers 401 in a row, each to a token read anew, after which the account has no access."""


def main() -> int:
    """Run until a signal, or until the pod is gone or an error permanent; the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    try:
        _reserve(OwnPod(place_of(os.environ)))
    except PodGone as gone:
        _say("gone", why=str(gone))
        return 0
    except Refused as refused:
        _say("refused", why=str(refused))
        return 1
    while True:
        signal.pause()


def _end(_number: int, _frame: object) -> NoReturn:
    """End at once: nothing is kept in this process, and a thread in the driver may never return."""
    os._exit(0)


def _reserve(pod: OwnPod) -> None:
    """Make the annotation right, however long it takes. Raises PodGone, Refused."""
    pause, unauthorized = PAUSE_FIRST, 0
    while True:
        try:
            found = pod.read()
            uuids = _awaited(found)
            if ",".join(uuids) == found.annotation:
                _say("unchanged", uuids=found.annotation)
            else:
                pod.write(found, uuids)
                _say("written", uuids=",".join(uuids))
        except TryAgain as error:
            unauthorized = unauthorized + 1 if error.unauthorized else 0
            if unauthorized == UNAUTHORIZED_MOST:
                raise Refused(str(error)) from error
            _say("retry", why=str(error))
            # by up to a half shorter, so that many that failed at once do not come back at once
            time.sleep(max(error.seconds, pause * (1 - os.urandom(1)[0] / 512)))
            pause = min(2 * pause, PAUSE_MOST)
        else:
            return


def _awaited(found: Found) -> tuple[str, ...]:
    """The UUIDs, as soon as the driver shows them."""
    proc = Path(os.environ.get("GPUPLANE_NVIDIA_PROC") or PROC)
    visible = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    pause, said = LOOK_FIRST, ""
    while True:
        try:
            return own_uuids(count=found.gpus, visible=visible, proc=proc, dev=Path(DEV), nvml=nvml.listed)
        except NotYet as reason:
            if str(reason) != said:
                said = str(reason)
                _say("waiting", why=said)
        time.sleep(pause)
        pause = min(2 * pause, LOOK_MOST)


def _say(event: str, **about: str) -> None:
    """One line: the event and its values."""
    values = " ".join(
        f"{name}={value if value.isprintable() and ' ' not in value else repr(value)}" for name, value in about.items()
    )
    sys.stderr.write(f"reserve.{event} {values}\n")


if __name__ == "__main__":
    sys.exit(main())
