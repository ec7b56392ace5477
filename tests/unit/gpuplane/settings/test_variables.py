"""Settings are read with types, and refused with the rule and the variable's name."""

from typing import Any

import pytest

from gpuplane.errors import BadSetting
from gpuplane.settings import variables


@pytest.mark.parametrize(
    ("name", "given", "want"),
    [
        pytest.param("RESERVATION_NAMESPACE", "", "gpuplane-reservation", id="namespace by default"),
        pytest.param("RESERVATION_NAMESPACE", " gpus ", "gpus", id="namespace"),
        pytest.param("RESERVATION_IMAGE", "", "gpuplane", id="image by default"),
        pytest.param(
            "RESERVATION_IMAGE",
            "registry.example:5000/a/gpuplane:1.2",
            "registry.example:5000/a/gpuplane:1.2",
            id="image",
        ),
        pytest.param("RESERVATION_IMAGE", f"a/b@sha256:{'0' * 64}", f"a/b@sha256:{'0' * 64}", id="image by digest"),
        pytest.param("RESERVATION_PULL_SECRETS", "", (), id="no pull secrets"),
        pytest.param("RESERVATION_PULL_SECRETS", "one, two.three", ("one", "two.three"), id="pull secrets"),
        pytest.param("RESERVATION_RUNTIME_CLASS", "", "", id="no runtime class by default"),
        pytest.param("RESERVATION_RUNTIME_CLASS", "nvidia", "nvidia", id="runtime class"),
        pytest.param("RESERVATION_PRIORITY_CLASS", "", "system-node-critical", id="priority class by default"),
        pytest.param("RESERVATION_PRIORITY_CLASS", "none", "", id="no priority class"),
        pytest.param("RESERVATION_TOLERATIONS", "", ({"operator": "Exists"},), id="tolerations by default"),
        pytest.param("RESERVATION_TOLERATIONS", "[]", (), id="no tolerations"),
        pytest.param(
            "RESERVATION_TOLERATIONS",
            '[{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]',
            ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},),
            id="tolerations",
        ),
        pytest.param("RESERVATION_SECONDS", "", 30, id="seconds by default"),
        pytest.param("RESERVATION_SECONDS", "600", 600, id="most seconds"),
        pytest.param("SPARE_GROUPS", "", 0, id="no spare groups by default"),
        pytest.param("SPARE_GROUPS", "64", 64, id="most spare groups"),
        pytest.param("ISOLATION", "", "none", id="no isolation by default"),
        pytest.param("ISOLATION", "hami-core", "hami-core", id="isolation"),
    ],
)
def test_settings_of_reservations_are_read(name: str, given: str, want: Any) -> None:
    assert variables.read({f"GPUPLANE_{name}": given})[name] == want


@pytest.mark.parametrize(
    ("name", "given", "want_rule"),
    [
        pytest.param("RESERVATION_NAMESPACE", "Not-a-label", "DNS-1123 label", id="namespace in capitals"),
        pytest.param("RESERVATION_NAMESPACE", "a.b", "DNS-1123 label", id="namespace with a dot"),
        pytest.param("RESERVATION_NAMESPACE", "gpuplane-system", "another namespace", id="gpuplane's own namespace"),
        pytest.param("RESERVATION_IMAGE", "two words", "give an image", id="image with a space"),
        pytest.param("RESERVATION_IMAGE", "a" * 513, "give an image", id="image too long"),
        pytest.param("RESERVATION_PULL_SECRETS", "ok,not_ok", "DNS-1123 subdomain", id="pull secret"),
        pytest.param("RESERVATION_RUNTIME_CLASS", "NVIDIA", "DNS-1123 subdomain", id="runtime class"),
        pytest.param("RESERVATION_PRIORITY_CLASS", "a b", "DNS-1123 subdomain", id="priority class"),
        pytest.param("RESERVATION_TOLERATIONS", "{}", "JSON list of tolerations", id="tolerations as an object"),
        pytest.param("RESERVATION_TOLERATIONS", "[1]", "JSON list of tolerations", id="tolerations as numbers"),
        pytest.param("RESERVATION_TOLERATIONS", '[{"op": "Exists"}]', "JSON list of tolerations", id="unknown field"),
        pytest.param("RESERVATION_TOLERATIONS", "[" * 100_000, "JSON list of tolerations", id="deep JSON"),
        pytest.param("RESERVATION_SECONDS", "0", "from 1 to 600", id="no second"),
        pytest.param("RESERVATION_SECONDS", "601", "from 1 to 600", id="too many seconds"),
        pytest.param("RESERVATION_SECONDS", "1.5", "from 1 to 600", id="a fraction of seconds"),
        pytest.param("SPARE_GROUPS", "-1", "from 0 to 64", id="fewer than no spare groups"),
        pytest.param("SPARE_GROUPS", "65", "from 0 to 64", id="too many spare groups"),
        pytest.param("ISOLATION", "cuda", "none, mps, hami-core", id="unknown isolation"),
    ],
)
def test_bad_settings_of_reservations_are_refused_with_the_rule(name: str, given: str, want_rule: str) -> None:
    with pytest.raises(BadSetting) as refused:
        variables.read({f"GPUPLANE_{name}": given})
    lines = [line for line in str(refused.value).splitlines() if f"GPUPLANE_{name}" in line]
    assert len(lines) == 1
    assert want_rule in lines[0]
