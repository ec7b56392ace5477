"""The gateway: OpenAI's paths under `/v1/`, passed on to slots. Plain ASGI, on the main listener alone.

`app` answers a request: token, body (`request_body`), a place (`dispatcher`), the runtime's answer as it comes
(`upstream`). `dispatcher` is the process's part of the queue: it reports to `inference.dispatch`, waits for places, and
keeps the row by which others know that this process lives. Rules: docs/inference.md. Invariants:
- Nothing of an answer is kept back: each piece that a runtime sends is sent on before the next is read, and nothing is
  read while the client does not.
- A request that has been given a place gives it back, whatever ends it.
- Neither the caller's token nor any header of theirs reaches a runtime.
- Bodies are bounded one by one and together; so are the time that a request waits, that a runtime is silent, that a
  client reads nothing, and that an answer takes.
"""
