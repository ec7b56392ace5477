"""Another process of gpuplane on the same database and cluster: one verb of the extender, and its answer.

Run as `python -m tests.integration.cluster.preemption.replica VERB` with the body on stdin; VERB is `filter`, `preempt`
or `bind`.
"""

from __future__ import annotations

import sys

import django
import msgspec


def answered(verb: str, body: bytes) -> bytes:
    """What the verb answers in this process."""
    from allocations.extender import views
    from allocations.extender.bind import bind_pod
    from allocations.extender.wire import BindArgs

    if verb == "filter":
        return views.filter(body)
    if verb == "preempt":
        return bytes(views.preempt(body))
    return msgspec.json.encode({"Error": bind_pod(msgspec.json.decode(body, type=BindArgs))})


if __name__ == "__main__":
    django.setup()
    sys.stdout.buffer.write(answered(sys.argv[1], sys.stdin.buffer.read()))
