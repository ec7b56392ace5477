"""The two doors to a GpuClaim, kubectl and REST, and what both must agree on. Used by the tests of claims."""

import httpx

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.stack import Stack, eventually

AGREE_SECONDS = 30.0


class Doors:
    """The claims of a namespace as kubectl and as REST see them."""

    def __init__(self, stack: Stack, namespace: str) -> None:
        self.stack = stack
        self.namespace = namespace
        self.path = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims"
        self.rest = "/api/v1/claims"

    def kubectl(self, *words: str, given: str | None = None, refused: bool = False) -> str:
        """kubectl in the namespace."""
        return self.stack.api.kubectl(*words, "-n", self.namespace, given=given, refused=refused)

    def stored(self, name: str) -> Json | None:
        """As the API server has it."""
        return self.stack.api.find(f"{self.path}/{name}")

    def shown(self, name: str) -> Json | None:
        """As REST has it."""
        answer = self.get(name)
        return answer.json() if answer.status_code == 200 else None

    def get(self, name: str) -> httpx.Response:
        """GET."""
        return self.stack.gpuplane.rest.get(f"{self.rest}/{self.namespace}/{name}/")

    def post(self, body: Json) -> httpx.Response:
        """POST."""
        return self.stack.gpuplane.rest.post(f"{self.rest}/", json=body)

    def put(self, name: str, body: Json) -> httpx.Response:
        """PUT."""
        return self.stack.gpuplane.rest.put(f"{self.rest}/{self.namespace}/{name}/", json=body)

    def patch(self, name: str, body: Json) -> httpx.Response:
        """PATCH."""
        return self.stack.gpuplane.rest.patch(f"{self.rest}/{self.namespace}/{name}/", json=body)

    def delete(self, name: str) -> httpx.Response:
        """DELETE."""
        return self.stack.gpuplane.rest.delete(f"{self.rest}/{self.namespace}/{name}/")

    def agree(self, name: str, *, seconds: float = AGREE_SECONDS) -> Json:
        """Wait until both show the same object; it."""

        def same() -> bool:
            return meaning(self.stored(name), versions=True) == meaning(self.shown(name), versions=True)

        eventually(same, seconds=seconds, what=f"both agree on {name}: {self.stored(name)} {self.shown(name)}")
        found = self.stored(name)
        return found if found is not None else {}


def meaning(found: Json | None, *, versions: bool = False) -> Json | None:
    """Everything that both doors have of a claim; `versions`: resourceVersion too, which gpuplane's own writing of
    status moves.
    """
    if found is None:
        return None
    meta = found["metadata"]
    return {
        **{key: meta[key] for key in ("name", "namespace", "uid", "generation")},
        "resourceVersion": meta["resourceVersion"] if versions else "",
        "labels": meta.get("labels") or {},
        "annotations": meta.get("annotations") or {},
        "spec": found["spec"],
    }
