"""What a request asks for: read from its body, and written for the runtime that serves it.

Pure; called by `app`. Invariants: values of the body that the gateway does not need are passed on as the client wrote
them; what is not valid is refused with a sentence (400).
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.listeners.gateway.replies import GatewayRefusal

LORA: Final = ":lora:"
NAME_LONGEST: Final = 253
PRIORITY_MOST: Final = 100
"""Of the header X-Request-Priority, up and down."""

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RequestBody(msgspec.Struct):
    """A request. `fields`: the members of its body, not decoded, without `lora`."""

    model: str
    lora: str
    fields: dict[str, msgspec.Raw]

    def body(self, model_name: str) -> bytes:
        """The body for a runtime that calls the model so."""
        self.fields["model"] = msgspec.Raw(_ENCODER.encode(model_name))
        return _ENCODER.encode(self.fields)


def read_request_body(body: bytes) -> RequestBody:
    """Raises GatewayRefusal."""
    try:
        fields = _FIELDS.decode(body)
    except msgspec.ValidationError as error:
        raise GatewayRefusal(400, "the body must be a JSON object") from error
    except _UNREADABLE as error:
        raise GatewayRefusal(400, f"the body is no JSON: {error}"[:300], code="invalid_json") from error
    model = _name(fields, "model")
    if not model:
        raise GatewayRefusal(400, "the body must name a model in its field model", code="model_missing")
    model, separator, lora = model.partition(LORA)
    given = _name(fields, "lora")
    if separator and not (model and lora):
        raise GatewayRefusal(400, f"model and LoRA are written <model>{LORA}<lora>")
    if given and lora and given != lora:
        raise GatewayRefusal(400, f"the field lora says {given}, the field model {lora}")
    if len(model) > NAME_LONGEST or len(lora or given) > NAME_LONGEST:
        raise GatewayRefusal(400, f"names of models and LoRAs have at most {NAME_LONGEST} characters")
    fields.pop("lora", None)
    return RequestBody(model=model, lora=lora or given, fields=fields)


def _name(fields: dict[str, msgspec.Raw], key: str) -> str:
    raw = fields.get(key)
    if raw is None:
        return ""
    try:
        found = msgspec.json.decode(raw, type=str | None)
    except (*_UNREADABLE, msgspec.ValidationError) as error:
        raise GatewayRefusal(400, f"the field {key} must be a text") from error
    if found and not found.isprintable():
        raise GatewayRefusal(400, f"the field {key} has characters that no name has")
    return found or ""


def read_priority(header: bytes, *, may_raise: bool) -> int:
    """The priority that the header asks for. Raises GatewayRefusal."""
    if not header:
        return 0
    try:
        priority = int(header)
    except ValueError:
        priority = PRIORITY_MOST + 1
    if not -PRIORITY_MOST <= priority <= PRIORITY_MOST:
        raise GatewayRefusal(
            400, f"X-Request-Priority must be a whole number between {-PRIORITY_MOST} and {PRIORITY_MOST}"
        )
    if priority > 0 and not may_raise:
        raise GatewayRefusal(403, "only operators and admins may ask for a priority above 0")
    return priority
