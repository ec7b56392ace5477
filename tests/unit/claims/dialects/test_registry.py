"""What holds of all dialects together."""

from claims.admission import trust
from claims.dialects.registry import BY_NAME, DIALECTS, GUARDED, READ_BACK, REQUEST_RESOURCES
from claims.dialects.request import Dialect
from kube.device_types import DEVICE_TYPES
from nodes.advertise import Content, amounts_of


def test_names_are_unique_and_fit_into_the_ledgers_rows():
    assert len(BY_NAME) == len(DIALECTS)
    assert all(0 < len(name) <= 16 for name in BY_NAME)


def test_names_that_rules_refer_to_exist():
    without_pods = {Dialect.REST, Dialect.SLOT}
    assert set(Dialect) - without_pods <= set(BY_NAME)


def test_nobody_guards_anothers_results():
    keys = [key for one in DIALECTS for key in (*one.result_keys, *one.result_starts, *one.result_frames)]
    assert len(set(keys)) == len(keys)
    assert {trust.result_dialect(key) for one in DIALECTS for key in one.result_keys} == GUARDED


def test_what_is_read_back_is_guarded():
    for key, (name, read_back) in READ_BACK.items():
        assert trust.result_dialect(key) == name
        assert not read_back.node_key or trust.result_dialect(read_back.node_key) == name
        assert read_back.written_for <= set(BY_NAME)


def test_what_is_asked_for_is_advertised_by_nodes_or_ignored_by_the_scheduler():
    known = {name for name in REQUEST_RESOURCES if not name.endswith("-")}
    advertised = set(amounts_of(Content(count={row.type: 1 for row in DEVICE_TYPES})))
    unadvertised = {name for one in DIALECTS for name in one.unadvertised}
    assert known == advertised | unadvertised
    assert advertised.isdisjoint(unadvertised)
