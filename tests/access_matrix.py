"""Who may ask what: every path of the main listener × method × caller, and what each is answered. Read by
`tests/integration/test_access_matrix.py`.

A path that is not here, or is here and exists no more, fails that test. `PATHS` says which guard stands before which
methods of a path (`*`: before all others), `GUARDS` what each caller meets there:

- `yes`: let in, whatever comes of it (200, 204, a redirect, 400, 409, 415, 422 …)
- `sign in`: sent to the sign-in page
- `401`, `403`, `404`, `405`: refused
"""

from __future__ import annotations

from collections.abc import Mapping

SESSIONS = ("session viewer", "session operator", "session admin", "session superuser")
TOKENS = ("token viewer", "token operator", "token admin", "token superuser", "machine rest")
MACHINES = (
    "machine metrics",
    "machine extender",
    "machine webhooks",
    "machine inventory",
    "machine agent",
    "machine agent of n2",
)
DEAD = ("expired token", "revoked token", "token of a shut account")
CALLERS = ("anonymous", *SESSIONS, *TOKENS, *MACHINES, *DEAD)
"""`machine rest` and the operators are operators of the team that owns the namespace; agents are of node n1 where
nothing else is said.
"""

OPERATORS = ("session operator", "token operator", "machine rest")
ADMINS = ("session admin", "session superuser", "token admin", "token superuser")
ANYBODY = (*SESSIONS, *TOKENS)

Outcomes = Mapping[str, str]


def guard(others: str, *known: tuple[tuple[str, ...], str]) -> Outcomes:
    """Caller → outcome: `others`, unless a later pair says otherwise."""
    found = dict.fromkeys(CALLERS, others)
    for callers, outcome in known:
        found |= dict.fromkeys(callers, outcome)
    return found


NOBODY_KNOWN = (("anonymous", *DEAD), "401")

GUARDS: Mapping[str, Outcomes] = {
    "open": guard("yes"),
    "nothing": guard("404"),
    "no such method": guard("405"),
    # pages know sessions only: a token is nobody there
    "page": guard("sign in", (SESSIONS, "yes")),
    "page for those who write": guard(
        "sign in", (("session viewer",), "403"), (("session operator", "session admin", "session superuser"), "yes")
    ),
    "page for the owner": guard("sign in", (SESSIONS, "404"), (("session admin", "session superuser"), "yes")),
    "page for admins": guard(
        "sign in",
        (("session viewer", "session operator"), "403"),
        (("session admin", "session superuser"), "yes"),
    ),
    "staff": guard("sign in", (("session superuser",), "yes")),
    "staff, no such method": guard("sign in", (("session superuser",), "405")),
    "staff, nothing": guard("sign in", (("session superuser",), "404")),
    # to the sign-in page; who is signed in already and may not come in is told so
    "admin's door": guard("yes", (("session viewer", "session operator", "session admin"), "403")),
    "leaving the admin": guard("yes", (("session superuser",), "405")),
    "signing in, no such method": guard("405", (SESSIONS, "yes")),
    "signing in": guard("401", (SESSIONS, "yes")),
    "staff, but nobody may": guard("sign in", (("session superuser",), "403")),
    # REST
    "rest": guard("403", NOBODY_KNOWN, (ANYBODY, "yes")),
    "rest, no such method": guard("403", NOBODY_KNOWN, (ANYBODY, "405")),
    "rest, of one's teams": guard("403", NOBODY_KNOWN, ((*OPERATORS, *ADMINS), "yes")),
    "rest, admins": guard("403", NOBODY_KNOWN, (ADMINS, "yes")),
    "rest, the owner": guard("403", NOBODY_KNOWN, (ANYBODY, "404"), (ADMINS, "yes")),
    "rest, sessions": guard("403", NOBODY_KNOWN, (SESSIONS, "yes")),
    "inventory": guard("403", NOBODY_KNOWN, ((*ADMINS, "machine inventory"), "yes")),
    "inventory, no such method": guard("403", NOBODY_KNOWN, ((*ANYBODY, "machine inventory"), "405")),
    "metrics": guard("403", NOBODY_KNOWN, (("session admin", "session superuser", "machine metrics"), "yes")),
    "documents, no such method": guard("405", (DEAD, "401")),
    "documents": guard("yes", (DEAD, "401")),
    # without credentials, or with those that are for it
    "process metrics": guard("yes", ((*TOKENS, *MACHINES), "403"), (("machine metrics",), "yes"), (DEAD, "401")),
    # the cluster's paths and the agents' know no sessions
    "extender": guard("403", NOBODY_KNOWN, (SESSIONS, "401"), (("machine extender",), "yes")),
    "webhooks": guard("403", NOBODY_KNOWN, (SESSIONS, "401"), (("machine webhooks",), "yes")),
    "agent of n1": guard("403", NOBODY_KNOWN, (SESSIONS, "401"), (("machine agent",), "yes")),
    # people's programs and machines of scope rest; no session
    "inference": guard("403", NOBODY_KNOWN, (SESSIONS, "401"), (TOKENS, "yes")),
    # streams for browsers: closed with 4401 where nobody is signed in
    "stream": guard("401", (SESSIONS, "yes")),
}

Row = Mapping[str, str]


def _rest(**methods: str) -> Row:
    """REST: other methods than these do not exist."""
    more = {"HEAD": methods["GET"]} if "GET" in methods else {}
    return {**methods, **more, "*": "rest, no such method"}


def _page(guard_: str, *, form: bool = False) -> Row:
    """A page, and what its form sends."""
    return {"GET": guard_, "HEAD": guard_, **({"POST": guard_} if form else {}), "*": "no such method"}


PAGE: Row = _page("page")
FORM: Row = _page("page", form=True)
READ: Row = _rest(GET="rest")
FOR_ADMINS: Row = _page("page for admins", form=True)
POSTED: Row = {"POST": "page", "*": "no such method"}

_ADMIN_READ: Row = {"GET": "staff", "*": "staff, no such method"}
_ADMIN_REFUSED: Row = {"GET": "staff, but nobody may", "*": "staff, no such method"}
_ADMIN_TABLES = (
    "audit/event",
    "auth/user",
    "knox/authtoken",
    "access/team",
    "access/idempotencyrecord",
    "nodes/node",
    "nodes/device",
    "claims/gpuclaim",
    "allocations/allocation",
    "allocations/lease",
    "allocations/podrefusal",
)


def _admin_paths() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for table in _ADMIN_TABLES:
        found |= {
            f"admin/{table}/": _ADMIN_READ,
            f"admin/{table}/add/": _ADMIN_REFUSED,
            f"admin/{table}/<path:object_id>/history/": _ADMIN_READ,
            f"admin/{table}/<path:object_id>/delete/": _ADMIN_REFUSED,
            f"admin/{table}/<path:object_id>/change/": _ADMIN_READ,
            f"admin/{table}/<path:object_id>/": _ADMIN_READ,
        }
    return found


DJANGO: Mapping[str, Row] = {
    "admin/": _ADMIN_READ,
    "admin/login/": {"*": "admin's door"},
    "admin/logout/": {"POST": "open", "*": "leaving the admin"},
    "admin/password_change/": _ADMIN_READ,
    "admin/password_change/done/": _ADMIN_READ,
    "admin/autocomplete/": _ADMIN_REFUSED,
    "admin/jsi18n/": _ADMIN_READ,
    "admin/r/<path:content_type_id>/<path:object_id>/": {"GET": "staff, nothing", "*": "staff, no such method"},
    "admin/^(?P<app_label>audit|auth|knox|access|nodes|claims|allocations)/$": _ADMIN_READ,
    "admin/(?P<url>.*)$": {"GET": "staff, nothing", "*": "staff, no such method"},
    **_admin_paths(),
    "api/v1/nodes/": READ,
    "api/v1/nodes/<str:name>/": _rest(GET="rest", DELETE="rest, admins"),
    "api/v1/nodes/<str:name>/inventory/": {"PUT": "inventory", "*": "rest, no such method"},
    "api/v1/devices/": READ,
    "api/v1/claims/": _rest(GET="rest", POST="rest, of one's teams"),
    "api/v1/claims/<str:namespace>/<str:name>/": _rest(
        GET="rest", PUT="rest, of one's teams", PATCH="rest, of one's teams", DELETE="rest, of one's teams"
    ),
    "api/v1/claims/<str:namespace>/<str:name>/explain/": READ,
    "api/v1/claims/<str:namespace>/<str:name>/renew/": _rest(POST="rest, of one's teams"),
    "api/v1/gangs/": _rest(GET="rest", POST="rest, of one's teams"),
    "api/v1/gangs/<str:namespace>/<str:name>/": _rest(
        GET="rest", PUT="rest, of one's teams", PATCH="rest, of one's teams", DELETE="rest, of one's teams"
    ),
    "api/v1/queues/": _rest(GET="rest", POST="rest, admins"),
    "api/v1/queues/<str:name>/usage/": _rest(GET="rest"),
    "api/v1/queues/<str:name>/": _rest(GET="rest", PUT="rest, admins", PATCH="rest, admins", DELETE="rest, admins"),
    "api/v1/pods/": READ,
    "api/v1/pods/<str:namespace>/<str:name>/explain/": READ,
    "api/v1/allocations/": _rest(GET="rest", POST="rest, of one's teams"),
    "api/v1/allocations/<uuid:uid>/": _rest(GET="rest", DELETE="rest, of one's teams"),
    "api/v1/allocations/<uuid:uid>/resize/": _rest(POST="rest, of one's teams"),
    "api/v1/pools/": READ,
    "api/v1/pools/<str:name>/": _rest(GET="rest", PUT="rest, of one's teams"),
    "api/v1/scaling-requests/": READ,
    "api/v1/scaling-requests/<int:pk>/": _rest(GET="rest", DELETE="rest, of one's teams"),
    "api/v1/node-claims/": READ,
    "api/v1/models/": _rest(GET="rest", POST="rest, admins"),
    "api/v1/models/<path:name>/": _rest(GET="rest", PUT="rest, admins", PATCH="rest, admins", DELETE="rest, admins"),
    "api/v1/gguf-headers/": _rest(POST="rest"),
    "api/v1/runners/": READ,
    "api/v1/runners/<str:node>/": READ,
    "api/v1/slots/": READ,
    "api/v1/slots/<str:slot_id>/": _rest(GET="rest", DELETE="rest, of one's teams"),
    "api/v1/requests/": READ,
    "api/v1/requests/<uuid:uid>/": READ,
    "api/v1/workloads/": READ,
    "api/v1/workloads/<uuid:uid>/": READ,
    "api/v1/leases/": READ,
    "api/v1/reservations/": READ,
    "api/v1/reservations/<str:name>/": READ,
    "api/v1/events/": READ,
    "api/v1/simulations/": _rest(GET="rest", POST="rest"),
    "api/v1/fleet/summary/": READ,
    "api/v1/devices/<str:uuid>/history/": READ,
    "api/v1/fleet/history/": READ,
    "api/v1/fleet/metrics/": _rest(GET="metrics"),
    "api/v1/tokens/": _rest(GET="rest", POST="rest, sessions"),
    "api/v1/tokens/<uuid:uid>/": _rest(PATCH="rest, the owner", DELETE="rest, the owner"),
    "api/v1/accounts/": _rest(GET="rest, admins", POST="rest, admins"),
    "api/v1/accounts/<str:username>/": _rest(GET="rest, admins", PATCH="rest, admins", DELETE="rest, admins"),
    "api/v1/teams/": _rest(GET="rest, admins", POST="rest, admins"),
    "api/v1/teams/<str:name>/": _rest(GET="rest, admins", PATCH="rest, admins", DELETE="rest, admins"),
    "api/schema/": {"GET": "documents", "HEAD": "documents", "*": "documents, no such method"},
    "api/docs/": {"GET": "documents", "HEAD": "documents", "*": "documents, no such method"},
    "api/": {"*": "nothing"},
    "sign-in/": {
        **dict.fromkeys(("GET", "HEAD", "OPTIONS"), "open"),
        **dict.fromkeys(("POST", "PUT"), "signing in"),
        "*": "signing in, no such method",
    },
    # no provider is configured there
    "sign-in/with/<slug:provider_id>/": {"GET": "nothing", "*": "no such method"},
    "sign-in/with/<slug:provider_id>/callback/": {"GET": "nothing", "*": "no such method"},
    "sign-out/": {"POST": "open", "*": "no such method"},
    "theme/": POSTED,
    "tokens/": FORM,
    "tokens/<uuid:uid>/revoke/": {"POST": "page for the owner", "*": "no such method"},
    "accounts/": _page("page for admins"),
    "first-steps/": _page("page for admins"),
    "accounts/new/": FOR_ADMINS,
    "accounts/<int:user_id>/": FOR_ADMINS,
    "teams/": _page("page for admins"),
    "teams/new/": FOR_ADMINS,
    "teams/<int:team_id>/": FOR_ADMINS,
    "password/": FORM,
    "": PAGE,
    "fleet/holders/": PAGE,
    "nodes/": PAGE,
    "nodes/<str:name>/": PAGE,
    "nodes/<str:name>/devices/": PAGE,
    "devices/<int:device_id>/card/": PAGE,
    "nodes/<str:name>/history/": PAGE,
    "devices/<int:device_id>/": PAGE,
    "devices/<int:device_id>/state/": PAGE,
    "devices/<int:device_id>/history/": PAGE,
    "devices/<int:device_id>/history.csv": PAGE,
    "fleet/devices.csv": PAGE,
    "fleet/history/": PAGE,
    "fleet/history.csv": PAGE,
    "usage/": PAGE,
    "usage/idle/": PAGE,
    "usage/queues/": PAGE,
    "usage/queues.csv": PAGE,
    "scaling/": PAGE,
    "scaling/parts/": PAGE,
    "scaling/<int:pk>/cancel/": {"POST": "page for those who write", "*": "no such method"},
    "inference/": PAGE,
    "inference/parts/": PAGE,
    "inference/runners/": PAGE,
    "inference/slots/<str:slot_id>/": PAGE,
    "inference/slots/<str:slot_id>/stop/": {"POST": "page for those who write", "*": "no such method"},
    "inference/models/<path:name>/": PAGE,
    "queues/": PAGE,
    "queues/<str:name>/": PAGE,
    "gangs/": PAGE,
    "gangs/<str:namespace>/<str:name>/": PAGE,
    "claims/": PAGE,
    "claims/new/": _page("page for those who write", form=True),
    "claims/<str:namespace>/<str:name>/": PAGE,
    "claims/<str:namespace>/<str:name>/delete/": {"POST": "page for those who write", "*": "no such method"},
    "allocations/": PAGE,
    "allocations/<uuid:allocation_id>/": PAGE,
    "allocations/<uuid:allocation_id>/release/": {"POST": "page for those who write", "*": "no such method"},
    "allocations/<uuid:allocation_id>/resize/": {"POST": "page for those who write", "*": "no such method"},
    "reservations/": PAGE,
    "pending/": PAGE,
    "pending/count/": PAGE,
    "pending/<str:namespace>/<str:name>/": PAGE,
    "events/": PAGE,
    "events/newest/": PAGE,
    "simulate/": FORM,
}
"""Django's addresses, as its resolver spells them."""

PLAIN: Mapping[str, Row] = {
    "livez": {"GET": "open", "HEAD": "open", "*": "no such method"},
    "readyz": {"GET": "open", "HEAD": "open", "*": "no such method"},
    "metrics": {"GET": "process metrics", "HEAD": "process metrics", "*": "no such method"},
    **{
        f"extender/{verb}": {"POST": "extender", "*": "no such method"}
        for verb in ("filter", "prioritize", "bind", "preempt")
    },
    **{
        f"webhooks/{review}": {"POST": "webhooks", "*": "no such method"}
        for review in (
            "pods/mutate",
            "pods/takeover",
            "pods/validate",
            "gpuclaims/validate",
            "gpugangs/validate",
            "gpuqueues/validate",
            "bindings/validate",
        )
    },
    **{
        f"v1/{path}": {"POST": "inference", "*": "no such method"}
        for path in ("chat/completions", "completions", "embeddings")
    },
    "v1/models": {"GET": "inference", "*": "no such method"},
    "v1/models/chat": {"GET": "inference", "*": "no such method"},
    "api/v1/agents/n1/samples/": {"POST": "agent of n1", "*": "no such method"},
    "static/favicon.svg": {"GET": "open", "HEAD": "open", "*": "no such method"},
    # what leads nowhere
    "extender/": {"*": "nothing"},
    "webhooks/": {"*": "nothing"},
    "api/v1/agents/": {"*": "nothing"},
    "static/nothing": {"*": "nothing"},
    "nowhere/at/all": {"*": "nothing"},
}
"""What is answered before Django's resolver, from `gpuplane.operations` and `gpuplane.listeners`; and addresses that
lead nowhere.
"""

SOCKETS: Mapping[str, str] = {
    "ws/fleet/": "stream",
    "ws/nodes/<str:name>/": "stream",
    "ws/devices/<int:device_id>/": "stream",
    "ws/agents/n1/": "agent of n1",
    "ws/runners/n1/": "agent of n1",
    "ws/nothing/": "nothing",
}
