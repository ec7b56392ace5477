"""What GPUs measure: it follows who holds them, slowly, and what is not measured is unknown."""

from __future__ import annotations

from agent.protocol import BOUNDS, COLUMNS, sample_of, values_of
from simulator.fleet import make_fleet
from simulator.signals import Load, Signals

FLEET = make_fleet(64)
TRAINING = Load(core=1.0, memory=0.9, peers=8, period_seconds=20)


def _signals(**held: Load) -> Signals:
    signals = Signals(FLEET, seed=1)
    for uuid, load in held.items():
        signals.hold(uuid, [load])
    return signals


def _run(signals: Signals, seconds: int) -> None:
    for _ in range(seconds):
        signals.step(1.0)


def test_held_gpu_works_and_a_free_one_idles() -> None:
    busy, free = FLEET[0].uuids[:2]
    signals = _signals(**{busy: TRAINING})
    _run(signals, 120)
    node = signals.of_node(0)
    assert _number(node["utilisation_percent"][0]) > 50 > 10 > _number(node["utilisation_percent"][1])
    for column in ("memory_used_bytes", "temperature_celsius", "power_watts", "nvlink_tx_bytes"):
        assert _number(node[column][0]) > _number(node[column][1])
    signals.hold(busy, [])
    _run(signals, 200)
    assert _number(signals.of_node(0)["utilisation_percent"][0]) < 10
    assert free in signals.row_of


def test_temperature_has_inertia() -> None:
    signals = _signals(**{FLEET[0].uuids[0]: TRAINING})
    _run(signals, 10)
    warm = _number(signals.of_node(0)["temperature_celsius"][0])
    _run(signals, 120)
    assert warm < _number(signals.of_node(0)["temperature_celsius"][0])


def test_shares_add_up_but_not_beyond_the_gpu() -> None:
    uuid = FLEET[0].uuids[0]
    signals = _signals()
    signals.hold(uuid, [Load(0.7, 0.6, 1, 20)] * 3)
    _run(signals, 60)
    assert _number(signals.of_node(0)["utilisation_percent"][0]) <= 100


def test_machine_without_nvlink_does_not_measure_it() -> None:
    index = next(i for i, node in enumerate(FLEET) if not node.kind.links)
    signals = _signals()
    _run(signals, 3)
    assert signals.of_node(index)["nvlink_tx_bytes"] == []


def test_sick_gpu_is_unknown_not_zero() -> None:
    """NODE-1 a GPU that cannot be read has no values."""
    signals = _signals()
    _run(signals, 3)
    signals.set_faulty(FLEET[0].uuids[2], faulty=True)
    assert all(column[2] is None for column in signals.of_node(0).values())
    signals.set_faulty(FLEET[0].uuids[2], faulty=False)
    assert all(column[2] is not None for column in signals.of_node(0).values())


def test_everything_is_within_the_protocol() -> None:
    signals = _signals(**{uuid: TRAINING for node in FLEET for uuid in node.uuids})
    _run(signals, 300)
    for index in range(len(FLEET)):
        columns = signals.of_node(index)
        assert set(columns) < set(COLUMNS) == set(BOUNDS)
        sample = sample_of(("b", 1, 1.0), columns)
        assert values_of(sample, count=8)[1] == 0


def test_same_seed_same_values() -> None:
    first, second = _signals(**{FLEET[0].uuids[0]: TRAINING}), _signals(**{FLEET[0].uuids[0]: TRAINING})
    _run(first, 20)
    _run(second, 20)
    assert first.of_node(0) == second.of_node(0)


def _number(value: float | None) -> float:
    assert value is not None
    return value
