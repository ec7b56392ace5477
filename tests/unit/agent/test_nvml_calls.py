"""How often a look at a node calls the driver: other programs on the node wait for the same locks."""

import pytest

from tests.bench.agents.alone import GPUS, count_calls


@pytest.mark.parametrize("links", [0, 18])
def test_a_reading_takes_a_fixed_number_of_calls_a_gpu_whatever_its_links_and_processes(links: int) -> None:
    calls, _ = count_calls(links=links, processes=20, looks=1)
    assert sum(calls["read"].values()) == 9 * GPUS + 1
    assert calls["read"]["nvmlDeviceGetFieldValues"] == GPUS


def test_a_look_at_the_machine_takes_two_calls_a_link() -> None:
    calls, _ = count_calls(links=18, processes=0, looks=1)
    assert sum(calls["machine"].values()) <= GPUS * (2 * 18 + 11) + 10
