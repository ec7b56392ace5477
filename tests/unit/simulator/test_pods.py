"""What the make-believe teams ask for is what the dialects understand, in every kind there is."""

from __future__ import annotations

import random

import msgspec
import pytest

from claims.dialects.request import Policy
from kube.keys import CLAIM
from kube.objects import Pod
from simulator.fleet import KINDS
from simulator.pods import (
    DOOMED,
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    TEMPLATES,
    Template,
    bare,
    choose,
    claim_manifests,
    is_of_template,
    make_pod,
)

ALL = [pytest.param(template, id=template.name) for template in (*TEMPLATES, *DOOMED)]


def test_every_policy_and_every_form_of_share_occurs() -> None:
    devices = [template.claim["devices"] for template in TEMPLATES if template.claim is not None]
    assert {each["policy"] for each in devices} == {policy.value for policy in Policy}
    assert any("memory" in each and "core" in each for each in devices)
    assert any("memoryRatio" in each for each in devices)
    names = {name for template in TEMPLATES for name in template.resources or ()}
    assert {name.partition("/")[0] for name in names} == {"nvidia.com", "koordinator.sh", "kubernetes.io"}


def test_models_exist_except_for_the_doomed() -> None:
    models = {kind.model for kind in KINDS}
    assert all(set(template.models) <= models for template in TEMPLATES)


@pytest.mark.parametrize("template", ALL)
def test_pod_is_one_that_a_cluster_would_send(template: Template) -> None:
    pod = make_pod(template, random.Random(1))
    read = msgspec.convert(pod.manifest, Pod)
    assert read.metadata.uid == pod.uid
    assert pod.label == f"{template.team}/{read.metadata.name}"
    assert (CLAIM in read.annotations) == (template.resources is None)
    assert SHORTEST_SECONDS <= pod.seconds <= LONGEST_SECONDS
    assert "uid" not in bare(pod.manifest)["metadata"]
    assert is_of_template(read.metadata.name, template)


def test_names_contain_the_template() -> None:
    ranker = next(template for template in TEMPLATES if template.name == "ranker")
    wide = next(template for template in TEMPLATES if template.name == "ranker-wide")
    assert is_of_template("ranker-wide-bcdfg", wide)
    assert not is_of_template("ranker-wide-bcdfg", ranker)
    assert not is_of_template("ranker", ranker)


def test_every_claim_named_has_its_manifest() -> None:
    made = {(manifest["metadata"]["namespace"], manifest["metadata"]["name"]) for manifest in claim_manifests()}
    named = {(t.team, t.name) for t in (*TEMPLATES, *DOOMED) if t.resources is None and t.name != "forgotten-claim"}
    assert made == named
    assert len(made) == len(claim_manifests())


def test_only_what_fits_is_chosen() -> None:
    rng = random.Random(1)
    assert all((choose(rng, fits=lambda t: t.devices == 2) or TEMPLATES[0]).devices == 2 for _ in range(50))
    assert choose(rng, fits=lambda _: False) is None
