# The agent of a GPU node (python -m agent), and reservation pods (python -m agent.reserve): Python, its libraries, the
# two programs, and nothing of a distribution beside them.
#
#   docker build -f docker/agent.Dockerfile -t gpuplane-agent .
#
# BASE is Debian 12 or newer, or has python3 with venv already. The driver's library, libnvidia-ml, comes from the node.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
    || (apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv ca-certificates)
WORKDIR /opt/gpuplane/app
COPY requirements/agent.txt docker/python_files.py /tmp/
RUN python3 -m venv /tmp/venv \
    && /tmp/venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile \
        --require-hashes -r /tmp/agent.txt --target /opt/gpuplane/lib \
    && rm -rf /opt/gpuplane/lib/bin
COPY agent agent
COPY kube/__init__.py kube/device_types.py kube/keys.py kube/
RUN mkdir -p /opt/gpuplane/bin && ln -s "$(readlink -f "$(command -v python3)")" /opt/gpuplane/bin/python \
    && python3 /tmp/python_files.py /image /opt/gpuplane \
    && python3 -m compileall -q -s /image -p / --invalidation-mode unchecked-hash /image

FROM scratch
ARG VERSION=0.0.0
ARG REVISION=""
LABEL org.opencontainers.image.title="gpuplane-agent" \
    org.opencontainers.image.description="Agent of gpuplane on a GPU node, and its reservation pods" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image /
ENV PATH=/opt/gpuplane/bin:/usr/bin:/bin PYTHONPATH=/opt/gpuplane/app:/opt/gpuplane/lib \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /opt/gpuplane/app
USER 10001:10001
CMD ["python", "-m", "agent"]
