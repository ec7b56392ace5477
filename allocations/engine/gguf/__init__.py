"""Memory of a model that Ollama or llama.cpp serves, estimated from the header of its GGUF file.

`read_header` (a binary file in, a `Header` out), then `estimate`. Called by `manage.py estimate` and for models of
scenarios that name a file. Invariants:
- Pure: files are opened by the caller. No Django, no network.
- A file decides nothing about time or memory: counts and lengths in it are checked before they are used, nothing is
  allocated by them, and what is wrong with a file is a `GgufInvalid`, one sentence.
"""

from allocations.engine.gguf.estimate import Estimate, KvType, estimate, projectors
from allocations.engine.gguf.header import GgufInvalid, Header, read_header

__all__ = ["Estimate", "GgufInvalid", "Header", "KvType", "estimate", "projectors", "read_header"]
