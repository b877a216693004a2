# Partage's own programs: scheduler service and webhook. Non-root, and nothing is written but /tmp.
#   docker build -t registry.example.com/partage:0.1.0 .
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/partage && /opt/partage/bin/pip install --no-cache-dir '.[fast,node,solver]'

FROM python:3.13-slim
COPY --from=build /opt/partage /opt/partage
# Compiled kernels are kept beside the temporary files, which is all that may be written.
ENV PATH=/opt/partage/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/tmp/numba
USER 65532:65532
ENTRYPOINT ["partage"]
CMD ["--help"]
