"""`python -m tests.bench`, run by `make bench`: gives Django a data folder of its own, then measures."""

from __future__ import annotations

import os
import sys

from tests.servers import redis, session


def main() -> int:
    """Set up, measure, and stop every server that was started."""
    for name in [name for name in os.environ if name.startswith("GPUPLANE_") and name != "GPUPLANE_TEST_POSTGRES_BIN"]:
        del os.environ[name]
    data_dir = session.enter() / "data-bench"
    data_dir.mkdir(exist_ok=True)
    os.environ["GPUPLANE_DATA_DIR"] = str(data_dir)
    os.environ["GPUPLANE_LOG_LEVEL"] = "warning"
    os.environ["GPUPLANE_REDIS_URL"] = redis.server_url("bench")
    os.environ["DJANGO_SETTINGS_MODULE"] = "gpuplane.settings"
    import django

    django.setup()
    del os.environ["GPUPLANE_LOG_LEVEL"]  # the web process logs as it does by default
    from tests.bench.run import main as run

    try:
        return run()
    finally:
        session.leave()


if __name__ == "__main__":
    sys.exit(main())
