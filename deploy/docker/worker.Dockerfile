# The worker; from the checkout's root: docker build -f deploy/docker/worker.Dockerfile .
# --build-arg DEVICE=cpu, cuda or simulated (no torch, for tests); --target model: what fetches
# and converts models.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY deploy/docker/requirements/ requirements/
# Two environments: what compiles the protos is not shipped.
RUN python -m venv --without-pip /opt/venv && python -m venv --without-pip /opt/tools \
    && pip --python /opt/tools install --no-cache-dir --no-compile -r requirements/tools.txt \
    && pip --python /opt/venv install --no-cache-dir --no-deps -r requirements/worker.txt
ARG DEVICE=cpu
# An index that has the build of torch for DEVICE; empty: pip's own, whose torch brings CUDA.
ARG TORCH_INDEX_URL=
RUN case "${DEVICE}" in \
    simulated) ;; \
    cpu | cuda) pip --python /opt/venv install --no-cache-dir -c requirements/constraints.txt \
    ${TORCH_INDEX_URL:+--extra-index-url "${TORCH_INDEX_URL}"} \
    -r "requirements/torch-${DEVICE}.txt" ;; \
    *) echo "DEVICE is '${DEVICE}', must be cpu, cuda or simulated" >&2; exit 1 ;; \
    esac
COPY protos/ protos/
RUN /opt/tools/bin/python protos/generate.py
COPY deploy/__init__.py deploy/health.py app/deploy/
COPY kernels/ app/kernels/
COPY worker/ app/worker/
RUN cp -r protos/nanoserve app/nanoserve && /opt/venv/bin/python -m compileall -q app \
    # A volume that is made on one of these is owned as they are.
    && mkdir -p volumes/models volumes/secrets/worker volumes/cache \
    && chmod -R 700 volumes/secrets

FROM ${PYTHON_IMAGE} AS worker
ARG DEVICE=cpu
# Triton compiles the stubs that launch its kernels with the C compiler that it finds.
# hadolint ignore=DL3008
RUN if [ "${DEVICE}" = cuda ]; then \
    apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*; fi
COPY --from=build /opt/venv /opt/venv
COPY --from=build /build/app /app
COPY --from=build --chown=10001:10001 /build/volumes /
# HOME: the user has no entry in /etc/passwd, and so no home. /cache: compiled kernels.
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp TRITON_CACHE_DIR=/cache/triton NUMBA_CACHE_DIR=/cache/numba \
    NANOSERVE_LISTEN=127.0.0.1:50052
WORKDIR /app
USER 10001:10001
EXPOSE 50052 9102
# A worker answers once its model is loaded, and ends itself when a step hangs.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "-m", "deploy.health"]
ENTRYPOINT ["python", "-m", "worker"]
# Last, so that a revision costs no other layer.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nanoserve worker" \
    org.opencontainers.image.description="Holds a Llama and its K/V pool, and runs steps (${DEVICE})" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"

FROM worker AS model
LABEL org.opencontainers.image.title="nanoserve model" \
    org.opencontainers.image.description="Fetches a model into a volume, and ends"
USER 0:0
COPY deploy/docker/requirements/model.txt deploy/docker/requirements/constraints.txt /tmp/
RUN pip --python /opt/venv install --no-cache-dir -c /tmp/constraints.txt -r /tmp/model.txt \
    && rm /tmp/*.txt
COPY deploy/model/ deploy/model/
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT ["python", "-m", "deploy.model.fetch"]

# What is built without --target.
FROM worker
