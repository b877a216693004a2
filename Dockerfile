# Partage's own programs: scheduler service, webhook, node agent. Non-root but for the agent, and nothing is written but /tmp.
#   docker build -t registry.example.com/partage:0.1.0 .
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY examples examples
RUN python -m venv /opt/partage && /opt/partage/bin/pip install --no-cache-dir '.[fast,node,nvidia,solver,trace]'

# The enforcement library asks for no symbol newer than GLIBC_2.17, whatever it is built with.
FROM gcc:14 AS native
COPY native /native
RUN make -C /native OUT=/out /out/libpartage-isolation.so

FROM python:3.13-slim
COPY --from=native /out/libpartage-isolation.so /usr/local/lib/partage/
COPY --from=build /opt/partage /opt/partage
# Compiled kernels are kept beside the temporary files, which is all that may be written.
ENV PATH=/opt/partage/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/tmp/numba
USER 65532:65532
ENTRYPOINT ["partage"]
CMD ["--help"]
