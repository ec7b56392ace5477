# The runner of a GPU node (python -m runner), on the image of a runtime, whose programs it starts.
#
#   docker build -f docker/runner.Dockerfile --build-arg BASE=vllm/vllm-openai -t gpuplane-runner .
#
# BASE is Debian or Ubuntu with vllm or ollama in its PATH, or with llama-cpp-python, whose Python has to be named in
# GPUPLANE_RUNNER_LLAMACPP. It has Python 3.11 or newer as python3, else it gets the distribution's. Without a runtime,
# as by default, it starts the simulated one alone. The runner has packages and a `python` of its own, so that neither
# changes those of the runtime, whose `python3` stays what it was.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS system
USER 0:0
RUN python3 -c '' 2>/dev/null \
    || (apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 ca-certificates \
        && rm -rf /var/lib/apt/lists/*)

FROM system AS build
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
    || (apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv)
WORKDIR /opt/gpuplane/app
COPY requirements/runner.txt /tmp/
RUN python3 -m venv /opt/gpuplane/venv \
    && /opt/gpuplane/venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile \
        --require-hashes -r /tmp/runner.txt \
    && /opt/gpuplane/venv/bin/pip uninstall -q -y pip \
    && find /opt/gpuplane/venv/bin -mindepth 1 ! -name python -delete \
    && ln -sf "$(readlink -f "$(command -v python3)")" /opt/gpuplane/venv/bin/python
COPY runner runner
RUN find /opt/gpuplane -name __pycache__ -prune -exec rm -rf {} + \
    && /opt/gpuplane/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/gpuplane

FROM system
ARG VERSION=0.0.0
ARG REVISION=""
LABEL org.opencontainers.image.title="gpuplane-runner" \
    org.opencontainers.image.description="Starts model runtimes for gpuplane on a GPU node" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/gpuplane /opt/gpuplane
RUN mkdir -p /var/lib/gpuplane && chown 10001:10001 /var/lib/gpuplane
ENV PATH=/opt/gpuplane/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/var/lib/gpuplane
WORKDIR /opt/gpuplane/app
USER 10001:10001
# that of BASE would start a runtime
ENTRYPOINT []
CMD ["python", "-m", "runner"]
