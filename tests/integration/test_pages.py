"""Pages by the test client: who sees what, who may do what, and what hostile input does (nothing)."""

import re
from pathlib import Path
from unittest.mock import ANY
from uuid import UUID

import pytest
from django.utils import timezone

from access.choices import Role
from access.models import Profile
from allocations.choices import State
from allocations.models import Allocation, PodRefusal
from audit.choices import EventKind
from audit.models import Event
from claims.models import GpuClaim
from nodes.models import Device
from tests.extender import bound, filtered, pod_manifest
from tests.factories import PASSWORD, DeviceFactory, GpuClaimFactory, NodeFactory, UserFactory
from tests.fakes.apiserver import ApiServer

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOBODY = UUID(int=1)
OPEN_PAGES = [
    "/",
    "/nodes/",
    "/claims/",
    "/queues/",
    "/queues/default/",
    "/gangs/",
    "/allocations/",
    "/pending/",
    "/events/",
    "/simulate/",
    "/pending/count/",
    "/pending/count/?list=1",
    "/pending/count/?plain=1",
    "/events/newest/",
]


@pytest.fixture
def fleet(ledger_db):
    """A node whose first GPU research holds through a claim, and whose second GPU secret holds; two pods wait."""
    node = NodeFactory(name="n1", gpus=3)
    for namespace in ("research", "secret"):
        GpuClaimFactory(namespace=namespace, name=f"{namespace}-claim")
        pod = pod_manifest(f"{namespace}-pod", namespace=namespace, claim=f"{namespace}-claim")
        assert bound(pod, filtered(pod, ["n1"])) == ""
        large = pod_manifest(f"{namespace}-large", namespace=namespace, resources={"nvidia.com/gpu": "8"})
        assert filtered(large, ["n1"]) is None
    return node


@pytest.fixture
def as_user(client):
    """Signs somebody in and gives the client: `as_user(Role.VIEWER, "research")`."""

    def sign_in(role, *namespaces, **fields):
        client.force_login(UserFactory(role=role, namespaces=namespaces, **fields))
        return client

    return sign_in


def allocation_of(namespace):
    return Allocation.objects.get(namespace=namespace, state=State.BOUND)


def object_pages(namespace):
    return [
        f"/claims/{namespace}/{namespace}-claim/",
        f"/allocations/{allocation_of(namespace).pk}/",
        f"/pending/{namespace}/{namespace}-large/",
        f"/pending/{namespace}/{namespace}-pod/",
    ]


@pytest.mark.parametrize(
    "path", [*OPEN_PAGES, "/nodes/n1/", "/nodes/n1/devices/", "/claims/new/", "/devices/1/card/", "/fleet/holders/"]
)
def test_every_page_asks_for_a_sign_in(client, fleet, path):
    """VIEW-6 nothing is shown to anybody unknown, and a refresh is sent to the sign-in page."""
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/sign-in/?next=")
    refresh = client.get(path, headers={"HX-Request": "true"})
    assert (refresh.status_code, refresh["HX-Redirect"]) == (204, "/sign-in/")


@pytest.mark.parametrize("role", Role)
def test_pages_open_for_every_role(as_user, fleet, role):
    """VIEW-2 each page named there opens, filled and empty."""
    client = as_user(role, "research")
    device = fleet.devices.first()
    for path in [
        *OPEN_PAGES,
        "/nodes/n1/",
        "/nodes/n1/devices/",
        f"/devices/{device.pk}/card/",
        *object_pages("research"),
    ]:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "no-store" in answer["Cache-Control"]
        assert "default-src 'self'" in answer["Content-Security-Policy"]


def test_pages_open_on_an_empty_fleet(as_user):
    client = as_user(Role.ADMIN)
    for path in OPEN_PAGES:
        assert client.get(path).status_code == 200, path


def test_objects_of_other_teams_do_not_exist(as_user, fleet):
    """VIEW-6 namespaces that no team of mine owns are hidden: 404 for objects, absent from lists, holders unnamed."""
    client = as_user(Role.OPERATOR, "research")
    for path in object_pages("secret"):
        assert client.get(path).status_code == 404, path
    assert client.post(f"/allocations/{allocation_of('secret').pk}/release/").status_code == 404
    assert client.post("/claims/secret/secret-claim/delete/").status_code == 404
    devices = [f"/devices/{device.pk}/card/" for device in fleet.devices.all()]
    for path in [
        *OPEN_PAGES,
        "/nodes/n1/",
        "/nodes/n1/devices/",
        *devices,
        "/allocations/?state=all",
        "/claims/?q=secret",
    ]:
        shown = client.get(path).content.decode().replace('value="secret"', "")
        assert "secret" not in shown.replace("?q=secret", ""), path
    assert "another team" in client.get("/nodes/n1/").content.decode()


def test_an_admin_sees_every_namespace(as_user, fleet):
    client = as_user(Role.ADMIN)
    for path in ["/claims/", "/allocations/", "/pending/", "/events/", "/nodes/n1/"]:
        shown = client.get(path).content.decode()
        assert "secret" in shown, path
        assert "research" in shown, path


@pytest.mark.parametrize(
    ("role", "namespace", "want"),
    [
        pytest.param(Role.VIEWER, "research", 403, id="a viewer"),
        pytest.param(Role.OPERATOR, "research", 302, id="an operator of the team"),
        pytest.param(Role.ADMIN, "", 302, id="an admin"),
    ],
)
def test_writes_follow_the_role_and_buttons_follow_the_writes(as_user, fleet, role, namespace, want):
    """VIEW-6 who may not write sees no button, and the server refuses all the same."""
    client = as_user(role, *filter(None, [namespace]))
    allocation = allocation_of("research")
    pages = {
        "/claims/": "/claims/new/",
        "/claims/research/research-claim/": "/claims/research/research-claim/delete/",
        f"/allocations/{allocation.pk}/": f"/allocations/{allocation.pk}/release/",
    }
    for path, button in pages.items():
        assert (button in client.get(path).content.decode()) == (want == 302), path
    assert client.get("/claims/new/").status_code == (200 if want == 302 else 403)
    manifest = "metadata: {name: made, namespace: research}\nspec: {devices: {count: 1}}"
    assert client.post("/claims/new/", {"manifest": manifest}).status_code == want
    assert client.post("/claims/research/research-claim/delete/").status_code == want
    assert client.post(f"/allocations/{allocation.pk}/release/").status_code == want
    names = set(GpuClaim.objects.filter(namespace="research").values_list("name", flat=True))
    allocation.refresh_from_db()
    if want == 302:
        assert (names, allocation.state) == ({"made"}, State.RELEASED)
        assert not fleet.devices.filter(core_used__gt=0).exclude(grants__allocation__namespace="secret").exists()
    else:
        assert (names, allocation.state) == ({"research-claim"}, State.BOUND)


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        pytest.param("metadata: {name: a, namespace: secret}\nspec: {devices: {count: 1}}", 403, id="other namespace"),
        pytest.param("metadata: {name: a, namespace: research}\nspec: {devices: {count: 0}}", 400, id="breaks a rule"),
        pytest.param("{{{", 400, id="no YAML"),
        pytest.param("a: &a [x]\nb: [*a, *a]", 400, id="aliases"),
        pytest.param("", 400, id="nothing"),
        pytest.param("x" * 200_000, 400, id="too long"),
        pytest.param("!!python/object/apply:os.system ['true']", 400, id="a tag that runs code"),
        pytest.param(
            "metadata: {name: research-claim, namespace: research}\nspec: {devices: {count: 1}}", 400, id="exists"
        ),
    ],
)
def test_a_claim_that_cannot_be_made_gets_the_reason(as_user, fleet, manifest, want):
    answer = as_user(Role.OPERATOR, "research").post("/claims/new/", {"manifest": manifest})
    assert answer.status_code == want
    assert GpuClaim.objects.count() == 2
    if want == 400:
        assert 'role="alert"' in answer.content.decode()


def test_a_claims_page_explains_and_shows_its_history(as_user, fleet):
    """VIEW-3 a claim's page says who holds what through it, and why the others wait."""
    waiting = pod_manifest("late", claim="wide")
    GpuClaimFactory(name="wide", spec={"devices": {"count": 3}})
    assert filtered(waiting, ["n1"]) is None
    client = as_user(Role.VIEWER, "research")
    wide = client.get("/claims/research/wide/").content.decode()
    assert "late" in wide
    assert "fewer than 3 whole gpu devices free" in wide
    held = client.get("/claims/research/research-claim/").content.decode()
    for words in ("research-pod", "n1", "is bound to n1", "gpu 0"):
        assert words in held, words


def test_pods_that_got_devices_no_longer_wait(as_user, fleet):
    PodRefusal.objects.create(
        pod_uid="uid-research-pod",
        namespace="research",
        pod_name="research-pod",
        summary="was refused",
        first_at=timezone.now(),
        last_at=timezone.now(),
    )
    client = as_user(Role.ADMIN)
    shown = client.get("/pending/").content.decode()
    assert "research-large" in shown
    assert "research-pod" not in shown
    assert client.get("/pending/count/?plain=1").content.decode().strip() == "2"


@pytest.mark.parametrize(
    "path",
    [
        "/nodes/?q=%01&state=x&model=%27%22&sort=-;drop&page=-1",
        "/nodes/?page=99999999999999999999&sort=used",
        "/nodes/?sort=-memory&page=2",
        "/claims/?q=%25&sort=-allocated&phase=nope&page=abc",
        "/allocations/?state=nope&namespace=%01&node=%F0%9F%8E%83&q=" + "x+" * 200,
        "/events/?group=x&q=%27%3B--&page=%F0%9D%9F%99",
        "/pending/?q=%01&page=9999",
        "/events/?page=7",
    ],
)
def test_odd_filters_are_harmless(as_user, fleet, path):
    assert as_user(Role.ADMIN).get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/nodes/nope/",
        "/nodes/%01/",
        "/nodes/nope/devices/",
        "/claims/research/nope/",
        "/claims/%01/x/",
        f"/allocations/{NOBODY}/",
        "/allocations/not-a-uuid/",
        "/devices/999999/card/",
        "/pending/research/nope/",
        "/no/such/page/",
    ],
)
def test_what_does_not_exist_is_a_page_in_style(as_user, fleet, path):
    answer = as_user(Role.ADMIN).get(path)
    assert answer.status_code == 404
    assert "Back to the fleet" in answer.content.decode()


@pytest.mark.parametrize(
    "path", ["/nodes/%00/", "/claims/%00/x/", "/nodes/?q=%00", "/pending/?q=%00&page=9999", "/nowhere/%00"]
)
def test_a_nul_in_the_address_is_refused_on_a_page_in_style(as_user, fleet, path):
    answer = as_user(Role.ADMIN).get(path)
    assert answer.status_code == 400
    assert "Back to the fleet" in answer.content.decode()


def test_what_is_shown_is_escaped(as_user, fleet):
    GpuClaim.objects.filter(name="research-claim").update(created_by="<script>alert(1)</script>")
    shown = as_user(Role.ADMIN).get("/claims/research/research-claim/").content.decode()
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert" in shown


def test_pages_bring_no_inline_scripts_or_styles(as_user, fleet):
    """A strict content security policy holds."""
    client = as_user(Role.ADMIN)
    for path in [*OPEN_PAGES, "/nodes/n1/", *object_pages("research"), "/claims/new/"]:
        shown = client.get(path).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", shown), path
        assert not re.search(r"\s(style|on\w+)=", re.sub(r"<(textarea|pre).*?</\1>", "", shown, flags=re.DOTALL)), path


class TestSignIn:
    """The door itself."""

    def attempt(self, client, password=PASSWORD, **fields):
        return client.post("/sign-in/", {"username": "ann", "password": password, **fields})

    def test_both_outcomes_are_recorded(self, client):
        """VIEW-6 sign-ins are in the audit trail, failed ones too, and never a password."""
        UserFactory(username="ann")
        assert self.attempt(client, "wrong-password").status_code == 401
        assert self.attempt(client).status_code == 302
        assert list(Event.objects.order_by("id").values_list("kind", "name", "data")) == [
            (EventKind.SIGN_IN_FAILED, "ann", ANY),
            (EventKind.SIGNED_IN, "ann", {"address": "127.0.0.1"}),
        ]
        failed = Event.objects.get(kind=EventKind.SIGN_IN_FAILED)
        assert (failed.data["address"], failed.data["count"]) == ("127.0.0.1", 1)
        assert "wrong-password" not in str(list(Event.objects.values()))

    @pytest.mark.parametrize(
        ("to", "want"),
        [
            pytest.param("/claims/", "/claims/", id="back to where one wanted to go"),
            pytest.param("https://evil.example/", "/", id="never elsewhere"),
            pytest.param("//evil.example/", "/", id="nor without a scheme"),
        ],
    )
    def test_where_it_leads(self, client, to, want):
        UserFactory(username="ann")
        assert self.attempt(client, next=to)["Location"] == want

    def test_odd_names_are_only_wrong_names(self, client):
        for name in ("\x00", "é" * 500, "", "' OR 1=1"):
            assert client.post("/sign-in/", {"username": name, "password": "x"}).status_code in {200, 401}

    def test_leaving_takes_a_post(self, as_user):
        client = as_user(Role.VIEWER)
        assert client.get("/sign-out/").status_code == 405
        assert client.post("/sign-out/")["Location"] == "/sign-in/"
        assert client.get("/").status_code == 302

    def test_a_form_without_its_token_is_refused_in_style(self, client):
        client.handler.enforce_csrf_checks = True
        answer = client.post("/sign-in/", {"username": "ann", "password": PASSWORD})
        assert answer.status_code == 403
        assert "The form is too old" in answer.content.decode()


@pytest.mark.parametrize(
    ("theme", "status", "want"),
    [
        pytest.param("dark", 302, "dark", id="dark"),
        pytest.param("", 302, "", id="the system's"),
        pytest.param("pink", 400, "light", id="no such theme"),
    ],
)
def test_the_theme_is_kept_with_the_account(as_user, theme, status, want):
    client = as_user(Role.VIEWER)
    client.post("/theme/", {"theme": "light"})
    assert client.post("/theme/", {"theme": theme}).status_code == status
    assert Profile.objects.get().theme == want
    assert f'data-theme-choice="{want}"' in client.get("/").content.decode()


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        pytest.param(
            None, 200, ["research/train-0", "one island", "fewer than 2 whole gpu devices free"], id="the example"
        ),
        pytest.param("nodes: 3", 400, ["nodes"], id="a rule is named"),
        pytest.param("{{{", 400, ['role="alert"'], id="no YAML"),
        pytest.param("nodes: []", 200, ["No pods to decide"], id="nothing to decide"),
        pytest.param(
            re.findall(r"```yaml\n(.*?)```", (DOCS / "queues.md").read_text(), re.DOTALL)[0],
            200,
            ["Evictions", "default/training", "reclaim", "Fair share"],
            id="queues",
        ),
        pytest.param(
            re.findall(r"```yaml\n(.*?)```", (DOCS / "inference.md").read_text(), re.DOTALL)[0],
            200,
            ["Slots to start", "new-1", "36 GiB", "1 served, 1 waiting", "no GPU has 90Gi free; best n1/1 with 35Gi"],
            id="slots",
        ),
        pytest.param("x" * 2_000_001, 400, ["at most"], id="too long"),
    ],
)
def test_what_if(as_user, text, status, words):
    """VIEW-4 the page runs a scenario and shows decisions and reasons; nothing real is touched."""
    client = as_user(Role.VIEWER)
    if text is None:
        shown = client.get("/simulate/").content.decode()
        text = shown.partition('<pre id="example" hidden>')[2].partition("</pre>")[0]
    answer = client.post("/simulate/", {"scenario": text})
    assert answer.status_code == status
    for word in words:
        assert word in answer.content.decode(), word
    assert not Allocation.objects.exists()


def test_long_lists_are_paged(as_user, fleet, django_assert_max_num_queries):
    """Lists cost a fixed number of queries, however long they are."""
    for number in range(60):
        GpuClaimFactory(name=f"many-{number:02}")
        NodeFactory(name=f"node-{number:02}", gpus=1)
    client = as_user(Role.ADMIN)
    for path, first, last in (("/claims/", "many-00", "many-59"), ("/nodes/", "node-00", "node-59")):
        with django_assert_max_num_queries(12):
            page = client.get(path).content.decode()
        assert first in page
        assert last not in page
        assert last in client.get(f"{path}?page=2").content.decode()


def test_pages_say_that_the_cluster_is_away(as_user, fleet, settings, tmp_path):
    """VIEW-2 while the API server does not answer, pages open and say that what they show may be old."""
    settings.GPUPLANE_REDIS_URL = f"unix://{tmp_path}/nobody-listens.sock"
    page = as_user(Role.ADMIN)
    assert "may be out of date" not in page.get("/nodes/").content.decode()
    with ApiServer() as server:
        settings.GPUPLANE_KUBECONFIG = str(server.kubeconfig(tmp_path / "kubeconfig"))
        server.stop()
        for path in ("/nodes/", "/nodes/n1/"):
            answer = page.get(path)
            assert answer.status_code == 200
            assert "The API server does not answer" in answer.content.decode()


def test_a_sick_device_is_reported_where_its_holder_is(fleet, as_user):
    """The list marks it, the holder's own page says what it is; others see no mark."""
    held = allocation_of("research").devices.get()
    Device.objects.filter(pk=held.device_id).update(healthy=False, health_reason="Xid 79")
    browser = as_user(Role.ADMIN)
    page = browser.get(f"/allocations/{allocation_of('research').pk}/").content.decode()
    assert f"GPU {held.minor} is sick: Xid 79" in page
    assert browser.get("/allocations/").content.decode().count("chip-bad") == 1
    assert "is sick" not in browser.get(f"/allocations/{allocation_of('secret').pk}/").content.decode()


def test_a_manifest_that_may_not_be_stays_in_the_form(as_user):
    """VIEW-2, VIEW-6 what was typed is there to be mended, with the reason."""
    client = as_user(Role.OPERATOR, "research")
    manifest = "metadata: {name: made, namespace: secret}\nspec: {devices: {count: 1}}"
    answer = client.post("/claims/new/", {"manifest": manifest})
    shown = answer.content.decode()
    assert answer.status_code == 403
    assert "metadata: {name: made, namespace: secret}" in shown
    assert answer.context["problem"] in shown


@pytest.mark.parametrize("plain", ["", "?plain=1"])
@pytest.mark.parametrize(("pods", "want"), [(99, "99"), (100, "99+")])
def test_many_pending_pods_are_counted_alike(as_user, plain, pods, want):
    """VIEW-2 the menu and the fleet page say the same number."""
    now = timezone.now()
    PodRefusal.objects.bulk_create(
        PodRefusal(
            pod_uid=f"u{one}", namespace="research", pod_name=f"p{one}", summary="was", first_at=now, last_at=now
        )
        for one in range(pods)
    )
    shown = as_user(Role.ADMIN).get(f"/pending/count/{plain}").content.decode()
    assert re.sub("<[^>]*>", "", shown).strip() == want


def test_a_numa_node_that_is_not_known_is_not_a_number(as_user):
    """VIEW-2 as on the device's own page."""
    DeviceFactory(node=NodeFactory(name="n1", gpus=0), numa=-1, pcie="sw-1")
    shown = as_user(Role.ADMIN).get("/nodes/n1/devices/").content.decode()
    assert "NUMA – · sw-1" in shown
