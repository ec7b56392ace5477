"""The program's own pod, read and patched over TLS at a stand-in for the API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.reserve.pod import Found, OwnPod, PodGone, Refused, ReserveError, TryAgain, place_of
from tests.certificates import Authority
from tests.fakes.pod_api import ANNOTATION, UID, Answer, PodApi, pod_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PodApi]:
    with pod_api(tmp_path / "account", gpus=2) as made:
        yield made


@pytest.fixture
def pod(api: PodApi) -> OwnPod:
    return OwnPod(place_of(api.environment()))


def test_it_is_read_and_written(api: PodApi, pod: OwnPod) -> None:
    """SHARE-4 SHARE-3 a merge patch of one annotation, under the pod's UID; the others stay."""
    found = pod.read()
    assert found == Found(UID, 2, "")
    pod.write(found, ["GPU-a", "GPU-b"])
    assert pod.read() == Found(UID, 2, "GPU-a,GPU-b")
    assert api.pod is not None
    assert api.pod["metadata"]["annotations"] == {"other": "stays", ANNOTATION: "GPU-a,GPU-b"}
    assert api.requests[1].body == {"metadata": {"uid": UID, "annotations": {ANNOTATION: "GPU-a,GPU-b"}}}


@pytest.mark.parametrize(
    ("answer", "want_error", "want_text"),
    [
        pytest.param(Answer(401), TryAgain, "answers 401: scripted", id="401"),
        pytest.param(Answer(408), TryAgain, "answers 408", id="408"),
        pytest.param(Answer(409), TryAgain, "answers 409", id="409"),
        pytest.param(Answer(429), TryAgain, "answers 429", id="429"),
        pytest.param(Answer(500), TryAgain, "answers 500", id="500"),
        pytest.param(
            Answer(503, body=b"<html>away</html>"), TryAgain, "answers 503: no explanation", id="503 of a proxy"
        ),
        pytest.param(Answer(403), Refused, "answers 403", id="403"),
        pytest.param(Answer(400), Refused, "answers 400", id="400"),
        pytest.param(Answer(422), Refused, "answers 422", id="422"),
        pytest.param(
            Answer(301, {"Location": "https://127.0.0.1/"}), Refused, "answers 301", id="no redirect is followed"
        ),
        pytest.param(Answer(404), Refused, "answers 404", id="404 of something that is no API server"),
        pytest.param(Answer(200, body=b"<html>hello</html>"), Refused, "answers 200: no explanation", id="no JSON"),
        pytest.param(Answer(200, body=b"[]"), Refused, "answers 200: no explanation", id="no object"),
        pytest.param(Answer(200, body=b"[" * 100_000), Refused, "no explanation", id="deep JSON"),
        pytest.param(Answer(200, body=b"{}"), Refused, "the API server's answer is no pod", id="no pod"),
        pytest.param(
            Answer(200, body=b'{"metadata": {"uid": "u"}, "spec": {"containers": [null]}}'),
            Refused,
            "is no pod",
            id="odd",
        ),
        pytest.param(
            Answer(200, body=b" " * (4 * 2**20 + 1)), TryAgain, "more than 4194304 bytes", id="a body too large"
        ),
        pytest.param(
            Answer(500, body=json.dumps({"message": "a\nb " + "c" * 1000}).encode()), TryAgain, "a b cc", id="one line"
        ),
    ],
)
def test_what_answers_mean(
    answer: Answer, want_error: type[ReserveError], want_text: str, api: PodApi, pod: OwnPod
) -> None:
    """SHARE-4 temporary and permanent are told apart."""
    api.say(answer)
    with pytest.raises(ReserveError) as raised:
        pod.read()
    assert type(raised.value) is want_error
    assert want_text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param("7", 7.0, id="seconds"),
        pytest.param("100000", 30.0, id="too long"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 GMT", 0.0, id="a date"),
        pytest.param("-1", 0.0, id="negative"),
        pytest.param("", 0.0, id="none"),
    ],
)
def test_the_pause_that_the_server_asks_for(given: str, want: float, api: PodApi, pod: OwnPod) -> None:
    api.say(Answer(429, {"Retry-After": given}))
    with pytest.raises(TryAgain) as raised:
        pod.read()
    assert raised.value.seconds == want


def test_a_token_that_was_rotated_is_read_again(api: PodApi, pod: OwnPod) -> None:
    """SHARE-4"""
    pod.read()
    api.rotate("token-2", file=False)
    with pytest.raises(TryAgain) as raised:
        pod.read()
    assert raised.value.unauthorized
    api.rotate("token-2")
    assert pod.read().uid == UID


def test_a_pod_that_is_gone(api: PodApi, pod: OwnPod) -> None:
    """SHARE-4"""
    found = pod.read()
    api.pod = None
    with pytest.raises(PodGone):
        pod.read()
    with pytest.raises(PodGone):
        pod.write(found, ["GPU-a"])


def test_another_pod_of_the_same_name_is_not_written(api: PodApi, pod: OwnPod) -> None:
    """SHARE-4 SHARE-7 names are deterministic; the UID tells a new pod from this one."""
    found = pod.read()
    assert api.pod is not None
    api.pod["metadata"]["uid"] = "uid-2"
    with pytest.raises(TryAgain):
        pod.write(found, ["GPU-a"])
    with pytest.raises(PodGone, match="another pod of this name"):
        pod.read()
    assert api.annotation is None


def test_without_a_uid_in_the_environment_the_pod_found_is_meant(api: PodApi) -> None:
    """SHARE-4 as in KAI's reservation pods, which have none."""
    environment = api.environment()
    del environment["POD_UID"]
    pod = OwnPod(place_of(environment))
    pod.write(pod.read(), ["GPU-a"])
    assert api.annotation == "GPU-a"


def test_an_answer_that_is_lost(api: PodApi, pod: OwnPod) -> None:
    """SHARE-4 the patch may have been applied: the next read shows it."""
    found = pod.read()
    api.say(Answer(lost=True))
    with pytest.raises(TryAgain):
        pod.write(found, ["GPU-a"])
    assert pod.read().annotation == "GPU-a"


def test_nobody_listens(api: PodApi, tmp_path: Path) -> None:
    """SHARE-4"""
    place = place_of(api.environment())
    api.close()
    with pytest.raises(TryAgain, match="GET: ConnectionRefusedError"):
        OwnPod(place).read()


@pytest.mark.parametrize(
    ("file", "text", "want_text"),
    [
        pytest.param("token", "", "holds no token", id="an empty token"),
        pytest.param("token", "a\nb", "holds no token", id="a token of two lines"),
        pytest.param("token", "tök", "is not usable", id="a token that is not ASCII"),
        pytest.param("token", None, "is not usable", id="no token"),
        pytest.param("ca.crt", "", "is not usable", id="an empty CA"),
        pytest.param("ca.crt", None, "is not usable", id="no CA"),
    ],
)
def test_a_broken_service_account(file: str, text: str | None, want_text: str, api: PodApi, pod: OwnPod) -> None:
    """SHARE-4 permanent: the kubelet mounts the folder before it starts the container."""
    path = api.folder / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(Refused, match=want_text):
        pod.read()
    assert api.sent() == []


def test_the_server_of_another_ca_gets_no_token(api: PodApi, pod: OwnPod, tmp_path: Path) -> None:
    """SHARE-4"""
    (api.folder / "ca.crt").write_text(Authority(tmp_path / "other", "another CA").pem)
    with pytest.raises(Refused, match="the API server's certificate is not valid"):
        pod.read()
    assert api.sent() == []


def test_a_certificate_of_another_host_is_not_taken(tmp_path: Path) -> None:
    """SHARE-4"""
    with pod_api(tmp_path, host="127.0.0.2") as api:
        with pytest.raises(Refused, match="certificate is not valid"):
            OwnPod(place_of(api.environment())).read()
        assert api.sent() == []


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param({"POD_NAME": ""}, "POD_NAME", id="no name"),
        pytest.param({"POD_NAME": "../../nodes/n1"}, "POD_NAME", id="a name that leaves its place"),
        pytest.param({"POD_NAME": "a" * 254}, "POD_NAME", id="a name too long"),
        pytest.param({"POD_NAMESPACE": "kube-system/pods"}, "POD_NAMESPACE", id="a namespace with a slash"),
        pytest.param({"POD_NAMESPACE": "a\r\nX-Other: y"}, "POD_NAMESPACE", id="a namespace with a line end"),
        pytest.param({"KUBERNETES_SERVICE_HOST": ""}, "KUBERNETES_SERVICE_HOST", id="no host"),
        pytest.param({"KUBERNETES_SERVICE_HOST": "a b"}, "KUBERNETES_SERVICE_HOST", id="a host with a space"),
        pytest.param({"KUBERNETES_SERVICE_PORT": "0"}, "KUBERNETES_SERVICE_PORT", id="port 0"),
        pytest.param({"KUBERNETES_SERVICE_PORT": "65536"}, "KUBERNETES_SERVICE_PORT", id="port too high"),
        pytest.param({"KUBERNETES_SERVICE_PORT": "9" * 9000}, "KUBERNETES_SERVICE_PORT", id="a long port"),
        pytest.param({"KUBERNETES_SERVICE_PORT": "tcp://1"}, "KUBERNETES_SERVICE_PORT", id="a port that is none"),
        pytest.param({"POD_NAME": "", "POD_NAMESPACE": ""}, "POD_NAME, POD_NAMESPACE", id="two at once"),
    ],
)
def test_a_forged_environment(given: dict[str, str], want: str, api: PodApi) -> None:
    """SHARE-4 every variable that is wrong is named, and nothing is asked."""
    with pytest.raises(Refused, match=f"missing or invalid in the environment: {want}$"):
        place_of({**api.environment(), **given})
    assert api.sent() == []


def test_addresses_of_version_6_are_taken() -> None:
    environment = {"POD_NAME": "a", "POD_NAMESPACE": "b", "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert place_of(environment)[3:5] == ("fd00::1", 443)


@pytest.mark.parametrize(
    ("containers", "want"),
    [
        pytest.param([{"name": "a"}], None, id="no GPU"),
        pytest.param([{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "8"}}}], 8, id="eight"),
        pytest.param(
            [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}, {"name": "b"}], 1, id="a sidecar"
        ),
    ],
)
def test_how_many_gpus_the_pod_has(containers: list[Any], want: int | None, api: PodApi, pod: OwnPod) -> None:
    """SHARE-4 by its limits, as the kubelet counts."""
    assert api.pod is not None
    api.pod["spec"]["containers"] = containers
    assert pod.read() == Found(UID, want, "")
