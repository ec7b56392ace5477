"""Under each attack the product serves everybody else, and afterwards it has given the memory back.

The bounds are those that the product promises: `/livez` within 0.5 s at every moment, filter within three times its quiet p99,
memory within 150 MB of before. Filter's p99 has ALLOWANCE_SECONDS on top: attacker, honest clients and product share the cores of
one machine here, and a process that is ready waits for others' time slices. Times in which the honest clients themselves stood still
are taken off. No single filter may take longer than `/livez`.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.attacks import honest
from tests.attacks.clients import ROOT, Honest, Served
from tests.attacks.product import Product
from tests.attacks.registry import windows

SECONDS = 20
LIVEZ_SECONDS = 0.5
FILTER_TIMES = 3
ALLOWANCE_SECONDS = 0.02
MORE_BYTES = 150 * 1000 * 1000
SETTLE_SECONDS = 5.0
STREAM_SECONDS = 5.0
"""From frame to frame of the fleet: one a second is sent."""


OPEN = {
    "quotas": "writes of one account and of agents compete with filter for SQLite's writer and the interpreter",
    "what-if": "scenarios of megabytes and nodes of 256 GPUs are read in the web process beside filter",
}
"""Windows in which everybody is served, but filter takes longer, or memory is more, than the product promises."""


@pytest.mark.parametrize(("window", "names"), [pytest.param(*one, id=one[0]) for one in windows().items()])
def test_everybody_is_served(
    attacked: Product,
    clients: Honest,
    quiet: dict[str, Served],
    window: str,
    names: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, cpu = attacked.rss_bytes(), attacked.cpu_seconds()
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.attacks.attacker", str(attacked.path), str(SECONDS), *names]
    attackers = subprocess.run(command, cwd=ROOT, timeout=SECONDS + 30, check=False, stderr=subprocess.PIPE, text=True)
    ended = time.monotonic()
    assert attackers.returncode == 0, attackers.stderr
    during, cpu = attacked.rss_bytes(), attacked.cpu_seconds() - cpu
    time.sleep(2 * LIVEZ_SECONDS)
    under = clients.served(began, ended)
    after = settled(attacked, before + MORE_BYTES)
    with capsys.disabled():
        told(names, quiet, under, [before, during, after])
        print(f"  processor time of the web process: {cpu:.1f} s of {ended - began:.0f} s")  # noqa: T201
    assert under[honest.LIVEZ].worst <= LIVEZ_SECONDS
    assert under[honest.STREAM].worst <= STREAM_SECONDS
    for kind, served in under.items():
        assert served.seconds, f"{kind}: nothing was asked"
        assert not served.problems, (kind, served.problems[:3], attacked.log_tail())
    allowed = FILTER_TIMES * quiet[honest.FILTER].p99 + ALLOWANCE_SECONDS
    within = under[honest.FILTER].p99 <= allowed and under[honest.FILTER].worst <= LIVEZ_SECONDS
    if window in OPEN and not (within and after <= before + MORE_BYTES):
        pytest.xfail(f"{OPEN[window]}: filter p99 {under[honest.FILTER].p99:.3f} s, allowed {allowed:.3f} s")
    assert under[honest.FILTER].p99 <= allowed
    assert under[honest.FILTER].worst <= LIVEZ_SECONDS
    assert after <= before + MORE_BYTES


def settled(attacked: Product, enough: int) -> int:
    """Memory once it is down again, or after SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (now := attacked.rss_bytes()) > enough and time.monotonic() < deadline:
        time.sleep(0.2)
    return now


def told(names: list[str], quiet: dict[str, Served], under: dict[str, Served], rss: list[int]) -> None:
    """The figures, for whoever reads the output."""
    print(f"\n{', '.join(names)}")  # noqa: T201 - figures are what the suite is read for
    for kind, served in under.items():
        calm = quiet[kind]
        print(  # noqa: T201
            f"  {kind:7} p99 {1000 * calm.p99:7.1f} → {1000 * served.p99:7.1f} ms, "
            f"worst {1000 * calm.worst:7.1f} → {1000 * served.worst:7.1f} ms, "
            f"{len(served.seconds):4} asked, {len(served.problems)} problems {list(served.problems[:2]) or ''}"
        )
    print("  memory of the web process, MB: " + " → ".join(f"{one / 1e6:.0f}" for one in rss))  # noqa: T201
