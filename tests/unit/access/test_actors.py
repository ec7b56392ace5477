import pytest

from access.actors import SYSTEM, Actor
from access.choices import Role
from access.errors import NotAllowed

VIEWER = Actor("v", Role.VIEWER, frozenset({"a"}))
OPERATOR = Actor("o", Role.OPERATOR, frozenset({"a"}))
LONELY = Actor("l", Role.OPERATOR)
SERVICE = Actor("s", Role.OPERATOR, None, service=True)
VIEWING_SERVICE = Actor("s", Role.VIEWER, None, service=True)
ADMIN = Actor("a", Role.ADMIN, None)


def allowed(check, *args):
    try:
        check(*args)
    except NotAllowed:
        return False
    return True


@pytest.mark.parametrize(
    ("actor", "sees", "writes", "administers"),
    [
        pytest.param(VIEWER, ["a"], [], False, id="a viewer reads"),
        pytest.param(OPERATOR, ["a"], ["a"], False, id="an operator writes where their teams are"),
        pytest.param(LONELY, [], [], False, id="an operator without a team writes nowhere"),
        pytest.param(SERVICE, ["a", "b"], ["a", "b"], False, id="a service account writes everywhere"),
        pytest.param(VIEWING_SERVICE, ["a", "b"], [], False, id="a service account that is a viewer reads"),
        pytest.param(ADMIN, ["a", "b"], ["a", "b"], True, id="an admin does everything"),
        pytest.param(SYSTEM, ["a", "b"], ["a", "b"], True, id="gpuplane itself"),
    ],
)
def test_roles(actor, sees, writes, administers):
    """VIEW-6 what each role may do."""
    assert [namespace for namespace in "ab" if actor.sees(namespace)] == sees
    assert [namespace for namespace in "ab" if allowed(actor.require_write, namespace)] == writes
    assert allowed(actor.require_admin) == administers
