import pytest

from access.actors import SYSTEM, Actor
from access.choices import Role, TokenScope
from access.errors import NotAllowed

VIEWER = Actor("v", Role.VIEWER, frozenset({"a"}))
OPERATOR = Actor("o", Role.OPERATOR, frozenset({"a"}))
LONELY = Actor("l", Role.OPERATOR)
MACHINE = Actor("s", Role.OPERATOR, frozenset({"a"}), service=True)
SCRAPER = Actor("s", Role.VIEWER, None, service=True, scope=TokenScope.METRICS)
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
        pytest.param(MACHINE, ["a"], ["a"], False, id="a machine of scope rest is as a person"),
        pytest.param(SCRAPER, ["a", "b"], [], False, id="a scraper reads"),
        pytest.param(ADMIN, ["a", "b"], ["a", "b"], True, id="an admin does everything"),
        pytest.param(SYSTEM, ["a", "b"], ["a", "b"], True, id="gpuplane itself"),
    ],
)
def test_roles(actor, sees, writes, administers):
    """VIEW-6 what each role may do."""
    assert [namespace for namespace in "ab" if actor.sees(namespace)] == sees
    assert [namespace for namespace in "ab" if allowed(actor.require_write, namespace)] == writes
    assert allowed(actor.require_admin) == administers


@pytest.mark.parametrize("scope", [scope for scope in TokenScope if scope != TokenScope.REST])
def test_scopes(scope):
    """VIEW-6 a machine of one scope has no other, and administers nothing, whatever its role."""
    machine = Actor("m", Role.ADMIN, None, service=True, scope=scope)
    machine.require_scope(scope)
    with pytest.raises(NotAllowed):
        machine.require_admin()
    for other in TokenScope:
        if other != scope:
            with pytest.raises(
                NotAllowed, match=f"needs a token of scope {other.value}; the scope of this one is {scope.value}"
            ):
                machine.require_scope(other)
