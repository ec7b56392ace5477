import pytest

from allocations.identity import identity_problem, is_uid


@pytest.mark.parametrize(
    ("namespace", "name", "uid", "want"),
    [
        pytest.param("ns", "p.q-1", "11111111-2222", "", id="sound"),
        pytest.param("ns", "p", "", "the pod has no uid", id="no uid"),
        pytest.param("n.s", "p", "u", "the pod's namespace must be a DNS-1123 label", id="namespace with a dot"),
        pytest.param("n" * 64, "p", "u", "the pod's namespace must be", id="namespace longer than its column"),
        pytest.param("ns", "p" * 254, "u", "the pod's name must be", id="name longer than its column"),
        pytest.param("ns", "", "u", "the pod's name must be", id="no name"),
        pytest.param("ns", "p\x00", "u", "the pod's name must be", id="NUL"),
        pytest.param("ns", "p", "u/v", "the pod's uid must be", id="slash in the uid"),
        pytest.param("ns", "p", "u" * 129, "the pod's uid must be", id="uid longer than its column"),
    ],
)
def test_identities(namespace, name, uid, want):
    """LEASE-1 a holder is `<namespace>/<pod>/<uid>`, so none of the three may be ambiguous or hostile."""
    told = identity_problem(namespace=namespace, name=name, uid=uid)
    assert told.startswith(want)
    assert bool(told) == bool(want)


def test_victims_that_no_pod_can_be():
    assert is_uid("11111111-2222")
    assert not is_uid("")
    assert not is_uid("a\x00")
