# The scheduler; from the checkout's root: docker build -f deploy/docker/scheduler.Dockerfile .
# --target loadtest: the load tool.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
# Two environments: what compiles the protos is not shipped.
COPY deploy/docker/requirements/ requirements/
RUN python -m venv --without-pip /opt/venv && python -m venv --without-pip /opt/tools \
    && pip --python /opt/tools install --no-cache-dir --no-compile -r requirements/tools.txt \
    && pip --python /opt/venv install --no-cache-dir --no-deps -r requirements/scheduler.txt
COPY protos/ protos/
RUN /opt/tools/bin/python protos/generate.py
COPY deploy/__init__.py deploy/health.py app/deploy/
COPY deploy/secrets/ app/deploy/secrets/
COPY scheduler/ app/scheduler/
RUN cp -r protos/nanoserve app/nanoserve && /opt/venv/bin/python -m compileall -q app \
    # A volume that is made on one of these is owned as they are.
    && mkdir -p volumes/models volumes/secrets/ca volumes/secrets/client \
    volumes/secrets/scheduler volumes/secrets/worker volumes/runs \
    && chmod -R 700 volumes/secrets

FROM ${PYTHON_IMAGE} AS scheduler
COPY --from=build /opt/venv /opt/venv
COPY --from=build /build/app /app
COPY --from=build --chown=10001:10001 /build/volumes /
# HOME: the user has no entry in /etc/passwd, and so no home.
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp NANOSERVE_LISTEN=127.0.0.1:50051
WORKDIR /app
USER 10001:10001
EXPOSE 50051 9101
# Docker only shows it; what restarts by it (Swarm, Nomad) must not restart a scheduler that
# waits for its worker.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-m", "deploy.health", "--service", "nanoserve.liveness"]
ENTRYPOINT ["python", "-m", "scheduler"]
# Last, so that a revision costs no other layer.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nanoserve scheduler" \
    org.opencontainers.image.description="Schedules requests of gRPC clients on a nanoserve worker" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"

FROM build AS build-loadtest
RUN pip --python /opt/venv install --no-cache-dir --no-deps -r requirements/loadtest.txt
COPY deploy/bench/__init__.py deploy/bench/machine.py app/deploy/bench/
COPY deploy/local/__init__.py deploy/local/progress.py deploy/local/stop_signals.py \
    app/deploy/local/
COPY deploy/loadtest/ app/deploy/loadtest/

FROM scheduler AS loadtest
LABEL org.opencontainers.image.title="nanoserve loadtest" \
    org.opencontainers.image.description="Puts load on a nanoserve server and reports"
COPY --from=build-loadtest /opt/venv /opt/venv
COPY --from=build-loadtest /build/app /app
ENV MPLCONFIGDIR=/tmp
HEALTHCHECK NONE
ENTRYPOINT ["python", "-m", "deploy.loadtest"]

# What is built without --target.
FROM scheduler
