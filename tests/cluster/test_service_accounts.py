"""REST by the token of a ServiceAccount, as `kubectl create token` makes it: a real API server says whose it is."""

from __future__ import annotations

import httpx

from tests.cluster.controlplane.stack import Stack

NAME = "controller"


def _token(stack: Stack, namespace: str, *, audience: str) -> str:
    """Of the ServiceAccount."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 600},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{NAME}/token"
    return str(stack.api.create(path, body)["status"]["token"])


def test_a_controller_makes_its_claim(stack: Stack, namespace: str) -> None:
    """VIEW-6 known by its ServiceAccount, in the teams of its namespace; no other audience, and no stranger."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": namespace}}
    stack.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    rest = stack.gpuplane.rest
    token = _token(stack, namespace, audience="gpuplane")

    def status(token: str) -> int:
        return httpx.get(f"{rest.base_url}/api/v1/claims/", headers={"Authorization": f"Bearer {token}"}).status_code

    assert status(_token(stack, namespace, audience="somebody-else")) == 401
    team = rest.post("/api/v1/teams/", json={"name": namespace, "namespaces": [namespace]})
    assert team.status_code == 201, team.text
    try:
        assert status(token) == 200
        row = rest.get(f"/api/v1/accounts/serviceaccount@{namespace}.{NAME}/").json()
        assert (row["kind"], row["role"], row["teams"]) == ("machine", "viewer", [namespace])
        assert rest.patch(f"/api/v1/accounts/{row['username']}/", json={"active": False}).status_code == 200
        assert status(token) == 401
    finally:
        assert rest.delete(f"/api/v1/teams/{namespace}/").status_code == 204
