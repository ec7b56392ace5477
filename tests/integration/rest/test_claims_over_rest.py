import pytest
import yaml

from audit.models import Event
from claims.models import GpuClaim
from tests.integration.rest.conftest import claim_manifest

pytestmark = pytest.mark.django_db


def world():
    return list(GpuClaim.objects.order_by("id").values())


def test_a_claim_travels_as_its_manifest(operator):
    """CLAIM-1 the object over REST has the shape that kubectl knows, and reads back as it was written."""
    written = claim_manifest(core=50, memory="16Gi", policy="binpack")
    written["metadata"]["labels"] = {"team": "a"}
    status, made = operator.post("claims/", written)
    assert status == 201
    assert made["apiVersion"] == "gpu.scheduling/v1"
    assert made["kind"] == "GpuClaim"
    assert made["spec"] == written["spec"]
    assert made["metadata"]["labels"] == {"team": "a"}
    assert (made["metadata"]["generation"], made["metadata"]["resourceVersion"]) == (1, "1")
    assert made["status"] == {"phase": "Pending", "conditions": [], "allocated": 0, "allocations": []}
    assert operator.get("claims/team-a/train/") == (200, made)
    assert operator.get("claims/")[1] == {"next": None, "previous": None, "results": [made]}
    assert operator.put("claims/team-a/train/", made) == (200, made)


def test_yaml_is_as_good_as_json(operator):
    """CLAIM-1 the same YAML serves kubectl and REST."""
    text = yaml.safe_dump(claim_manifest(memory="16Gi"))
    for media_type in ("application/yaml", "application/x-yaml", "text/yaml; charset=utf-8"):
        status, made = operator.post("claims/", raw=text.encode(), content_type=media_type)
        assert (status, made["spec"]["devices"]["memory"]) == (201, "16Gi")
        assert operator.delete("claims/team-a/train/")[0] == 204


def test_generation_grows_with_the_spec_and_the_version_with_everything(operator):
    _, made = operator.post("claims/", claim_manifest())
    relabelled = {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}}
    _, first = operator.put("claims/team-a/train/", relabelled)
    assert (first["metadata"]["generation"], first["metadata"]["resourceVersion"]) == (1, "2")
    first["spec"]["devices"]["count"] = 2
    _, second = operator.put("claims/team-a/train/", first)
    assert (second["metadata"]["generation"], second["metadata"]["resourceVersion"]) == (2, "3")
    assert operator.put("claims/team-a/train/", second) == (200, second)
    assert list(Event.objects.order_by("id").values_list("kind", flat=True)) == [
        "claim.created",
        "claim.changed",
        "claim.changed",
    ]


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"resourceVersion": "1"}, id="a stale resourceVersion"),
        pytest.param({"uid": "00000000-0000-0000-0000-000000000000"}, id="another object of the same name"),
    ],
)
def test_a_write_to_what_is_no_longer_there_is_refused(operator, metadata):
    """CLAIM-1 optimistic locking, as the API server does it."""
    _, made = operator.post("claims/", claim_manifest())
    made["spec"]["devices"]["count"] = 2
    operator.put("claims/team-a/train/", made)
    before = world()
    late = claim_manifest(count=7)
    late["metadata"] |= metadata
    assert operator.put("claims/team-a/train/", late)[0] == 409
    assert operator.patch("claims/team-a/train/", {"metadata": metadata, "spec": {"ttlSeconds": 60}})[0] == 409
    assert world() == before


def test_a_merge_patch_changes_what_it_names_and_null_removes(operator):
    operator.post("claims/", claim_manifest(core=50, memory="16Gi"))
    status, patched = operator.patch(
        "claims/team-a/train/",
        {"spec": {"ttlSeconds": 60, "devices": {"memory": None, "count": 2}}},
        content_type="application/merge-patch+json",
    )
    assert status == 200
    assert patched["spec"] == {"devices": {"count": 2, "core": 50}, "ttlSeconds": 60}


def test_a_claim_with_a_gang_is_accepted(operator):
    """A gangRef is accepted; its pods wait until gangs exist."""
    manifest = claim_manifest()
    manifest["spec"]["gangRef"] = "crew"
    assert operator.post("claims/", manifest)[0] == 201


def test_a_second_claim_of_the_name_is_refused(operator):
    operator.post("claims/", claim_manifest())
    assert operator.post("claims/", claim_manifest())[0] == 409
    assert GpuClaim.objects.count() == 1


def test_a_name_is_made_when_asked_for(operator):
    manifest = claim_manifest()
    manifest["metadata"] = {"generateName": "run-", "namespace": "team-a"}
    names = {operator.post("claims/", manifest)[1]["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("run-") for name in names)


def devices(**changes):
    return lambda manifest: manifest["spec"]["devices"].update(changes)


def top(**changes):
    return lambda manifest: manifest.update(changes)


def metadata(**changes):
    return lambda manifest: manifest["metadata"].update(changes)


@pytest.mark.parametrize(
    ("break_it", "field"),
    [
        pytest.param(devices(count=0), "spec.devices.count", id="no devices"),
        pytest.param(devices(count=-1), "spec.devices.count", id="negative count"),
        pytest.param(devices(count=10**30), "spec.devices.count", id="huge count"),
        pytest.param(devices(count=1.5), "spec.devices.count", id="half a device"),
        pytest.param(devices(count="1"), "spec.devices.count", id="count as text"),
        pytest.param(devices(core=101), "spec.devices.core", id="core over 100"),
        pytest.param(devices(memory="-1Gi"), "spec.devices.memory", id="negative memory"),
        pytest.param(devices(memory="1e400"), "spec.devices.memory", id="huge memory"),
        pytest.param(devices(memory="NaN"), "spec.devices.memory", id="NaN"),
        pytest.param(devices(memory="1Gi", memoryRatio=5), "spec.devices.memoryRatio", id="memory and ratio"),
        pytest.param(devices(memroyRatio=5), "spec.devices.memroyRatio", id="misspelt field"),
        pytest.param(devices(policy="best"), "spec.devices.policy", id="unknown policy"),
        pytest.param(top(spec=None), "spec", id="no spec"),
        pytest.param(top(spec=[]), "spec", id="spec of another type"),
        pytest.param(top(kind="Pod"), "kind", id="another kind"),
        pytest.param(top(metadata=None), "metadata", id="no metadata"),
        pytest.param(metadata(name="Upper"), "metadata.name", id="name not a subdomain"),
        pytest.param(metadata(name="x" * 254), "metadata.name", id="long name"),
        pytest.param(metadata(namespace="a.b"), "metadata.namespace", id="namespace not a label"),
        pytest.param(metadata(labels={"a": 1}), "metadata", id="label not text"),
        pytest.param(
            metadata(annotations=dict.fromkeys("abcde", "x" * 60_000)),
            "metadata.annotations",
            id="long annotations",
        ),
    ],
)
def test_a_claim_that_breaks_a_rule_is_refused_with_the_field(admin, break_it, field):
    """CLAIM-1 validation over REST."""
    manifest = claim_manifest()
    break_it(manifest)
    status, problem = admin.post("claims/", manifest)
    assert (status, problem["field"]) == (400, field), problem
    assert problem["rule"]
    assert not GpuClaim.objects.exists()


def test_the_address_and_the_manifest_must_agree(operator):
    operator.post("claims/", claim_manifest())
    before = world()
    for manifest, field in (
        (claim_manifest(name="other", count=2), "metadata.name"),
        (claim_manifest(namespace="team-b", count=2), "metadata.namespace"),
    ):
        status, problem = operator.put("claims/team-a/train/", manifest)
        assert (status, problem["field"]) == (400, field)
    assert operator.patch("claims/team-a/train/", {"metadata": {"name": "other"}})[0] == 400
    assert operator.patch("claims/team-a/train/", [1])[0] == 400
    assert world() == before


def test_deleting_is_final_and_writes_an_event(operator):
    operator.post("claims/", claim_manifest())
    assert operator.delete("claims/team-a/train/") == (204, None)
    assert operator.get("claims/team-a/train/")[0] == 404
    assert operator.delete("claims/team-a/train/")[0] == 404
    assert Event.objects.filter(kind="claim.deleted", claim="train", actor="olga").count() == 1


@pytest.mark.parametrize("query", ["namespace=team-a", "name=train", ""])
def test_the_list_is_filtered(operator, query):
    operator.post("claims/", claim_manifest())
    assert len(operator.get(f"claims/?{query}")[1]["results"]) == 1
    assert operator.get("claims/?name=other")[1]["results"] == []
