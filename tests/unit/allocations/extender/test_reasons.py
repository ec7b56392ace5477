"""The extender's reasons: each is one value, with the text that people read and the kind that is counted."""

from __future__ import annotations

import json

import pytest

from allocations.engine.decision import Reason, ReasonKind
from allocations.extender import counters, pod_filter, reasons, views
from allocations.extender import filter as filtering
from allocations.extender.filter_result import refused
from tests.extender import pod_manifest
from tests.measured import growth

OWN = {name: value for name, value in vars(reasons).items() if isinstance(value, Reason)}
REFUSED = "gpuplane_filter_refusals_total"


def test_no_two_reasons_share_a_kind_or_a_text() -> None:
    every = [*OWN.values(), reasons.malformed("")]
    assert len({one.kind for one in every} | set(ReasonKind)) == len(every) + len(ReasonKind)
    assert len({one.text for one in every}) == len(every)


def test_texts_stand_in_one_place() -> None:
    """VIEW-5 no other module of the extender has names of its own for them."""
    for module in (counters, filtering, pod_filter, views):
        named = {name: value for name, value in vars(module).items() if name in OWN}
        assert all(value is OWN[name] for name, value in named.items()), module.__name__


@pytest.mark.parametrize("name", OWN)
def test_reasons_in_answers_are_those_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-5 every node is refused with the text, as resolvable or not, and the refusal counts once under the kind."""
    reason = OWN[name]
    asked = json.dumps({"Pod": pod_manifest("a", claim="one"), "NodeNames": ["n1"]}).encode()
    monkeypatch.setattr(views, "filter_pod", lambda request: refused(request.names, reason))
    with growth(REFUSED) as grown:
        answer = views.filter(asked)
    assert grown == {(REFUSED, reason.kind): 1}
    assert (b'"FailedNodes":{"n1"' in answer) is reason.resolvable
    assert reason.text.encode() in answer
