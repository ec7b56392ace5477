"""Metrics of the gateway, by model. Only names of models that exist become labels; else it is empty."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

REQUESTS: Final = Counter("gpuplane_inference_requests", "Inference requests that ended", ["model", "outcome"])
QUEUE_SECONDS: Final = Histogram(
    "gpuplane_inference_queue_seconds",
    "From the arrival of a request until it had a place in a slot",
    ["model"],
    buckets=(0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120),
)
FIRST_TOKEN_SECONDS: Final = Histogram(
    "gpuplane_inference_first_token_seconds",
    "From the arrival of a request until the first piece of its answer",
    ["model"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
)
TOKENS: Final = Counter("gpuplane_inference_tokens", "Tokens of answers", ["model"])
TOKENS_A_SECOND: Final = Histogram(
    "gpuplane_inference_tokens_per_second",
    "Tokens a second of one answer, from its first piece on",
    ["model"],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
)
WAITING: Final = Gauge("gpuplane_inference_waiting", "Requests of this process that wait for a place", ["model"])
RUNNING: Final = Gauge("gpuplane_inference_running", "Requests of this process that have a place", ["model"])
REFUSED: Final = Counter(
    "gpuplane_inference_refused", "Requests that the gateway refused before they were queued", ["status"]
)
