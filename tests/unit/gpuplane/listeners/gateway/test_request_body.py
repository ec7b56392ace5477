"""What a body asks for, and what a runtime gets of it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.listeners.gateway.replies import GatewayRefusal
from gpuplane.listeners.gateway.request_body import read_priority, read_request_body

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param({"model": "chat"}, ("chat", ""), id="a model"),
        pytest.param({"model": "chat", "lora": None}, ("chat", ""), id="no LoRA"),
        pytest.param({"model": "chat", "lora": ""}, ("chat", ""), id="an empty LoRA"),
        pytest.param({"model": "org/chat:8b:lora:legal/v1"}, ("org/chat:8b", "legal/v1"), id="a LoRA in the model"),
        pytest.param({"model": "chat", "lora": "legal"}, ("chat", "legal"), id="a LoRA of its own"),
        pytest.param({"model": "a:lora:b:lora:c"}, ("a", "b:lora:c"), id="the first separator counts"),
    ],
)
def test_model_and_lora(body: dict[str, Any], want: tuple[str, str]) -> None:
    """SLOT-9"""
    asked = read_request_body(json.dumps(body).encode())
    assert (asked.model, asked.lora) == want


@given(fields=st.dictionaries(st.text().filter(lambda key: key not in {"model", "lora"}), JSON, max_size=5))
def test_what_is_not_the_gateways_is_passed_on_as_it_is(fields: dict[str, Any]) -> None:
    """SLOT-9 whatever the values are, numbers to their last digit."""
    asked = read_request_body(json.dumps({**fields, "model": "chat", "lora": "legal"}).encode())
    assert json.loads(asked.body("legal")) == {**fields, "model": "legal"}


def test_numbers_keep_their_digits() -> None:
    asked = read_request_body(b'{"model": "chat", "seed": 123456789012345678901234567890, "temperature": 0.10}')
    assert b'"seed":123456789012345678901234567890,"temperature":0.10' in asked.body("chat")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """SLOT-9"""
    with contextlib.suppress(GatewayRefusal):
        assert read_request_body(body).model


@pytest.mark.parametrize(
    ("header", "may_raise", "want"),
    [
        pytest.param(b"", False, 0, id="none"),
        pytest.param(b"-100", False, -100, id="lower"),
        pytest.param(b"100", True, 100, id="higher"),
        pytest.param(b"1", False, 403, id="higher, and not allowed"),
        pytest.param(b"101", True, 400, id="too high"),
        pytest.param(b"1e1", True, 400, id="no whole number"),
    ],
)
def test_priorities(header: bytes, may_raise: bool, want: int) -> None:
    """SLOT-9"""
    if want >= 400:
        with pytest.raises(GatewayRefusal) as refused:
            read_priority(header, may_raise=may_raise)
        assert refused.value.status == want
    else:
        assert read_priority(header, may_raise=may_raise) == want
