"""gpuplane's own web process with its extender's requests timed, and looked at where BENCH_PROFILE says `waits` or
`calls`.

Started as `python -m tests.bench.cluster.web` in place of `python -m gpuplane.serve`. Nothing of the product is
changed.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """`gpuplane.serve` with the application wrapped."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    from gpuplane import asgi, serve
    from tests.bench.cluster.profiled import Calls, Waits
    from tests.bench.cluster.timing import Profile, Timed

    wanted = os.environ.get("BENCH_PROFILE", "")
    profile: Profile | None = Calls() if wanted == "calls" else Waits() if wanted == "waits" else None
    asgi.application = Timed(asgi.application, profile)  # type: ignore[assignment,arg-type]  # serve only calls it
    return serve.main()


if __name__ == "__main__":
    sys.exit(main())
