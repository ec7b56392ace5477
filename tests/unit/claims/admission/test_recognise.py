import msgspec
import pytest

from claims.admission.recognise import looks_ours


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(b'{"metadata": {"annotations": {"gpu.scheduling/claim": 5}}}', True, id="claim"),
        pytest.param(b'{"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": []}}}]}}', True, id="gpu"),
        pytest.param(
            b'{"spec": {"containers": [{"resources": {"limits": {"nvidia.com/mig-1g.5gb": []}}}]}}', True, id="mig"
        ),
        pytest.param(b'{"metadata": {"annotations": {"a": 5}}}', False, id="somebody else's"),
        pytest.param(b'{"metadata": {"annotations": {"gpu.scheduling/claim": "c"}}, "n": 1e400}', True, id="1e400"),
        pytest.param(b'{"limits": {"koordinator.sh/rdma": 1e400}}', True, id="resource of 1e400"),
        pytest.param(b'{"labels": {"runai-gpu-group": "\xff"}}', True, id="no UTF-8"),
        pytest.param(b'{"limits": {"cpu": 1e400}, "x": "\xff"}', False, id="neither ours nor readable"),
        pytest.param(b"null", False, id="null"),
    ],
)
def test_whose_a_malformed_object_is(raw, want):
    """CLAIM-7 DEV-3 other people's pods pass however odd they are, ours do not because they are odd."""
    assert looks_ours(msgspec.Raw(raw)) is want
