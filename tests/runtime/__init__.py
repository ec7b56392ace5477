"""A real runtime, llama.cpp, under the runner: `make runtime-test`.

`tools` builds it once; `tiny` writes a model of random weights and an adapter for it.
"""
