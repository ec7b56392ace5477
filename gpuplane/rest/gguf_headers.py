"""REST of GGUF headers: a file's first megabytes in, the estimate of its memory out; kept with a model where asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import msgspec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from typing_extensions import override

from access.errors import BadInput
from allocations.engine.gguf import KvType, estimate
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import checked
from gpuplane.rest.inference_schema import KV_TYPES, EstimateSchema
from inference.gguf_headers import estimate_of, header_of, stored_header
from inference.services import model_header_put
from storage.clock import database_now

CONTEXT_MOST = 2**31 - 1
PARALLEL_MOST = 65_536
GPUS_MOST = 1_024


class Bytes(BaseParser):
    """`application/octet-stream`, left unread."""

    media_type = "application/octet-stream"

    @override
    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The bytes."""
        return stream.read()


class HeaderFilters(serializers.Serializer[Any]):
    """Query of `gguf-headers/`."""

    model = serializers.CharField(
        required=False, max_length=200, help_text="keep the header with this model, whose settings count (admins)"
    )
    context = serializers.IntegerField(  # type: ignore[assignment]  # the estimate's name, as Field's own
        required=False, min_value=1, max_value=CONTEXT_MOST, help_text="tokens of one request; what the file says"
    )
    parallel = serializers.IntegerField(required=False, min_value=1, max_value=PARALLEL_MOST, default=4)
    kv = serializers.ChoiceField(required=False, choices=KV_TYPES, default=KvType.F16.value)
    gpus = serializers.IntegerField(required=False, min_value=1, max_value=GPUS_MOST, default=1)


class GgufHeaders(APIView):
    """Estimates."""

    parser_classes = (Bytes,)

    @extend_schema(
        summary="Estimate the memory of a GGUF file",
        description="The body is the file's first megabytes, up to the end of its header at least. With `model` the "
        "header is kept with the model, and its slots are planned by it.",
        parameters=[HeaderFilters],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=EstimateSchema,
    )
    def post(self, request: Request) -> Response:
        """The estimate for one number of GPUs."""
        query = checked(HeaderFilters, request.query_params)
        body: Any = request.data
        if not isinstance(body, bytes) or not body:
            raise BadInput("the body is the beginning of a GGUF file", rule="required")
        if query.get("model"):
            actor = request_actor(request)
            model = model_header_put(name=query["model"], beginning=body, actor=actor, now=database_now())
            header = stored_header(model)
            assert header is not None
            found = estimate_of(model, header, query["gpus"])
        else:
            header = header_of(body)
            kv, context = KvType(query["kv"]), query.get("context") or 0
            found = estimate(header, context=context, parallel=query["parallel"], kv=kv, gpus=query["gpus"])
        return Response(msgspec.to_builtins(found))
