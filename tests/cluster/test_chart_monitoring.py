"""What the chart brings for being watched, as helm renders it: nothing unless asked for, and then what was
asked for.
"""

from __future__ import annotations

import json
import re

import yaml

from tests.cluster.controlplane.chart import CHART, NAMESPACE, RELEASE, of_kinds, render
from tests.cluster.recorder import Json

TRUST = {
    "serverName": f"{RELEASE}.{NAMESPACE}.svc",
    "ca": {"configMap": {"name": f"{RELEASE}-ca-bundle", "key": "ca.crt"}},
}
"""The certificate is for the Service's name, and of the chart's CA."""
KINDS = ("ServiceMonitor", "ScrapeConfig", "PrometheusRule")
FILE = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())


def dashboards(objects: list[Json]) -> list[Json]:
    """ConfigMaps that Grafana's sidecar would load."""
    return [one for one in of_kinds(objects, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]


def test_nothing_unless_asked_for() -> None:
    objects = render()
    assert of_kinds(objects, *KINDS) == []
    assert dashboards(objects) == []


def test_each_by_itself() -> None:
    """VIEW-5 processes are scraped each by itself, the fleet only where there is a token for it."""
    assert [one["kind"] for one in of_kinds(render({"alerts": {"enabled": True}}), *KINDS)] == ["PrometheusRule"]
    assert [one["kind"] for one in of_kinds(render({"monitoring": {"enabled": True}}), *KINDS)] == ["ServiceMonitor"]
    assert of_kinds(render({"grafana": {"enabled": True}}), *KINDS) == []


def test_monitors_find_the_listeners() -> None:
    labels = {"release": "prometheus"}
    values = {"monitoring": {"enabled": True, "labels": labels, "fleet": {"tokenSecret": "scraper"}}}
    objects = render(values)
    (monitor,) = of_kinds(objects, "ServiceMonitor")
    (service,) = of_kinds(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {one["name"] for one in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", TRUST)
    (fleet,) = of_kinds(objects, "ScrapeConfig")
    assert fleet["apiVersion"] == "monitoring.coreos.com/v1alpha1"
    assert fleet["spec"] == {
        "staticConfigs": [{"targets": [f"{RELEASE}.{NAMESPACE}.svc:8000"]}],
        "metricsPath": "/api/v1/fleet/metrics/",
        "scheme": "HTTPS",
        "tlsConfig": TRUST,
        "scrapeInterval": "30s",
        "honorLabels": True,
        "authorization": {"type": "Bearer", "credentials": {"name": "scraper", "key": "token"}},
    }
    for one in (monitor, fleet):
        assert labels.items() <= one["metadata"]["labels"].items()


def test_rules_are_those_of_the_file() -> None:
    """Prometheus' own braces come through helm as they are; alerts that are named are left out."""
    (rule,) = of_kinds(render({"alerts": {"enabled": True}}), "PrometheusRule")
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    assert rule["spec"] == FILE
    every = [one["alert"] for group in FILE["groups"] for one in group["rules"]]
    pods = [one["alert"] for group in FILE["groups"] if group["name"] == "gpuplane.pods" for one in group["rules"]]
    dropped = [*pods, every[0]]
    (rule,) = of_kinds(render({"alerts": {"enabled": True, "disabled": dropped}}), "PrometheusRule")
    left = [one["alert"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert left == [name for name in every if name not in dropped]
    assert "gpuplane.pods" not in {group["name"] for group in rule["spec"]["groups"]}


def test_dashboards_are_those_of_the_folder() -> None:
    found = dashboards(
        render({"grafana": {"enabled": True, "labels": {"team": "gpus"}, "annotations": {"grafana_folder": "GPUs"}}})
    )
    files = sorted((CHART / "dashboards").glob("*.json"))
    assert len(found) == len(files) == 2
    for one, path in zip(found, files, strict=True):
        assert one["metadata"]["labels"].items() >= {"grafana_dashboard": "1", "team": "gpus"}.items()
        assert one["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
        ((name, text),) = one["data"].items()
        assert name == f"gpuplane-{path.name}"
        assert json.loads(text) == json.loads(path.read_text())


def test_processes_for_the_agents_do_not_hide_that_all_others_are_gone() -> None:
    """VIEW-5 both are scraped, by the Services that stand before them; the alert is about those that the scheduler
    asks.
    """
    objects = render({"alerts": {"enabled": True}, "telemetry": {"replicas": 1}})
    services = {one["metadata"]["name"] for one in of_kinds(objects, "Service")}
    (rules,) = of_kinds(objects, "PrometheusRule")
    (down,) = (
        rule["expr"]
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "GpuplaneDown"
    )
    found = re.search(r'service!~"([^"]+)"', down)
    assert found is not None
    assert {name for name in services if re.fullmatch(found[1], name)} == {f"{RELEASE}-telemetry"}
