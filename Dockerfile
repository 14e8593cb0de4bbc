# One image for every command of stream-svt: a worker by default, or check, watch, status, audit, demo, ...
#
#   docker build -t stream-svt .
#   docker build -t stream-svt --build-arg EXTRAS= .       # without the login of Amazon MSK
#
# The version of Python that the tests run on. For a build that can be repeated, pin it by digest.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS dependencies
ARG EXTRAS=msk
WORKDIR /source
# Without pip, which the image needs as little as this stage's compilers and caches.
RUN python -m venv --without-pip /opt/stream-svt
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml ./
# With an empty package: this layer is made anew for another pyproject.toml only, and releases share it.
RUN mkdir stream_svt && touch stream_svt/__init__.py README.md LICENSE \
    && python -m pip --python /opt/stream-svt/bin/python install ".${EXTRAS:+[$EXTRAS]}"

FROM dependencies AS build
COPY README.md LICENSE ./
COPY stream_svt stream_svt
RUN python -m pip --python /opt/stream-svt/bin/python install --no-deps --ignore-installed --prefix /opt/package .

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="stream-svt" \
      org.opencontainers.image.description="Differentially private alerts on Kafka streams" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 stream-svt \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin stream-svt
COPY --from=dependencies /opt/stream-svt /opt/stream-svt
COPY --from=build /opt/package /opt/stream-svt
WORKDIR /etc/stream-svt
ENV PATH=/opt/stream-svt/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    STREAM_SVT_CONFIG=/etc/stream-svt/monitors.yaml
# By number: Kubernetes checks that it is not root without looking into the image.
USER 10001:10001
EXPOSE 6066
# A worker that cannot go on says 503 before it ends. One that listens on another port says so in the environment.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('STREAM_SVT_WEB_PORT', 6066)}/health/live\", timeout=4)"]
ENTRYPOINT ["stream-svt"]
CMD ["run"]
