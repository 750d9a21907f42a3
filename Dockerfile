# Two images from the constraints file:
#   docker build .                      worker: holds the target, on the NVIDIA CUDA runtime (the default, last stage)
#   docker build --target metadata .    answers metadata only, without PyTorch
# Another package index: --secret id=pip_conf,src=pip.conf
ARG PYTHON_IMAGE=docker.io/library/python:3.12.12-slim-bookworm
ARG CUDA_IMAGE=docker.io/nvidia/cuda:13.0.2-runtime-ubuntu24.04

FROM ${PYTHON_IMAGE} AS metadata-build
ARG CONSTRAINTS=constraints-cuda.txt
WORKDIR /src
COPY pyproject.toml README.md LICENSE ${CONSTRAINTS} ./
COPY app app
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python3 -m venv /opt/draftport \
    && /opt/draftport/bin/python -m pip install --no-cache-dir --no-compile --constraint ${CONSTRAINTS} '.[otel]' \
    && /opt/draftport/bin/python -m pip uninstall --yes pip \
    && /opt/draftport/bin/python3 -m compileall -q /opt/draftport

FROM ${PYTHON_IMAGE} AS metadata
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="draftport-metadata" \
      org.opencontainers.image.description="Drafting metadata over REST, for speculative decoding" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=10001 --group=10001 --mode=0700 /run/draftport /var/cache/draftport
COPY --from=metadata-build /opt/draftport /opt/draftport
# void: only what a pod asks for. Images with the variable unset or "all" can see every GPU of the node.
ENV PATH=/opt/draftport/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DRAFTPORT_HOST=0.0.0.0 \
    DRAFTPORT_WORKER=off \
    DRAFTPORT_RUNTIME_DIR=/run/draftport \
    DRAFTPORT_CACHE_DIR=/var/cache/draftport \
    HF_HOME=/var/cache/draftport/huggingface \
    NVIDIA_VISIBLE_DEVICES=void
USER 10001:10001
EXPOSE 8000
HEALTHCHECK CMD ["draftport", "healthcheck"]
ENTRYPOINT ["tini", "--", "draftport"]
CMD ["serve"]

FROM ${CUDA_IMAGE} AS worker-build
ARG CONSTRAINTS=constraints-cuda.txt
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ${CONSTRAINTS} ./
COPY app app
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python3 -m venv /opt/draftport \
    && /opt/draftport/bin/python -m pip install --no-cache-dir --no-compile --constraint ${CONSTRAINTS} '.[worker,otel]' \
    && /opt/draftport/bin/python -m pip uninstall --yes pip \
    && /opt/draftport/bin/python3 -m compileall -q /opt/draftport/lib/python3*/site-packages/app

FROM ${CUDA_IMAGE} AS worker
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="draftport" \
      org.opencontainers.image.description="Drafting metadata and drafter hidden states, for speculative decoding" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 tini \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=10001 --group=10001 --mode=0700 /run/draftport /var/cache/draftport
COPY --from=worker-build /opt/draftport /opt/draftport
# void: the CUDA images set "all", which shows every GPU of the node to a pod that asked for none.
ENV PATH=/opt/draftport/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DRAFTPORT_HOST=0.0.0.0 \
    DRAFTPORT_RUNTIME_DIR=/run/draftport \
    DRAFTPORT_CACHE_DIR=/var/cache/draftport \
    HF_HOME=/var/cache/draftport/huggingface \
    NVIDIA_VISIBLE_DEVICES=void
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --start-period=30s CMD ["draftport", "healthcheck"]
ENTRYPOINT ["tini", "--", "draftport"]
CMD ["serve"]
