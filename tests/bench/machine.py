"""The machine that a run was measured on, as far as figures depend on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine_told() -> dict[str, Any]:
    """Cores, processor, versions, and the load at this moment."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": model or platform.processor(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": load(),
    }


def load() -> float:
    """Processes that ran or waited to, over the last minute."""
    return round(os.getloadavg()[0], 2)
