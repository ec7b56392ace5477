"""The latest samples that say something about now, for pages and REST."""

from __future__ import annotations

from collections.abc import Mapping

from django.utils import timezone

from nodes.live.reads import latest_samples
from nodes.live.samples import SampleView


def fresh_samples() -> Mapping[str, SampleView]:
    """Node → its newest sample, of those that are not old."""
    now = timezone.now().timestamp()
    return {node: sample for node, sample in latest_samples().items() if not sample.is_old(now=now)}
