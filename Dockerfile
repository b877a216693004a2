# Partage's own programs: scheduler service, webhook, node agent. Non-root but for the agent, and nothing is written but /tmp.
#   docker build -t registry.example.com/partage:0.1.0 .
# `make image` does that, and says what else it can do: deploy/image.
ARG BASE=docker.io/library/debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f

# Debian's own Python: there is no pip beside it, and its security fixes come with Debian's.
FROM ${BASE} AS python
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 >/dev/null \
    # What a container that may gain no privileges has no use for, and what differs from build to build.
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/cache/ldconfig/* /var/log/* /var/lib/dpkg/*-old \
       /usr/share/man \
    && find /usr/share/doc -type f ! -name copyright -delete

FROM python AS build
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    binutils ca-certificates gcc libc6-dev make python3-venv >/dev/null
# The enforcement library asks for no symbol newer than GLIBC_2.17, whatever it is built with.
COPY native /native
RUN make -C /native OUT=/out /out/libpartage-isolation.so
# Where packages come from by a certificate of one's own: --build-arg PIP_CERT=FILE, with the file mounted.
ARG PIP_CERT
# Every package is the one of the lock file, by its hash; only ready-made wheels are taken.
COPY requirements /requirements
RUN python3 -m venv /build && python3 -m venv --without-pip /opt/partage \
    && /build/bin/pip install -q --no-cache-dir --require-hashes --no-deps --only-binary :all: -r /requirements/build.txt \
    && /build/bin/pip --python /opt/partage/bin/python install -q --no-cache-dir --no-compile --require-hashes --no-deps \
       --only-binary :all: -r /requirements/image.txt \
    # Tests of the packages and symbols for debuggers are a third of them.
    && find /opt/partage -type d \( -name tests -o -name include \) -prune -exec rm -rf {} + \
    && find /opt/partage -name '*.so*' -type f -exec strip --strip-unneeded {} +
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY examples examples
# Compiled sources that do not know when they were made: the same sources make the same image.
RUN /build/bin/pip wheel -q --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /build/bin/pip --python /opt/partage/bin/python install -q --no-cache-dir --no-compile --no-deps /wheel/*.whl \
    && PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash /opt/partage/lib
# Loops in which prices are made, for all servers since about 2015; on others the first such process compiles them.
RUN PYTHONHASHSEED=0 /opt/partage/bin/python -m partage.daemon.learning_process /opt/partage/machine-code

FROM python
COPY --from=build /out/libpartage-isolation.so /usr/local/lib/partage/
COPY --from=build /opt/partage /opt/partage
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="partage" \
      org.opencontainers.image.description="Fractions of accelerators on Kubernetes: scheduler service, webhook, node agent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Numba reads machine code only where it may write it: beside the temporary files, where links to ours are made.
ENV PATH=/opt/partage/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/tmp/numba \
    PARTAGE_MACHINE_CODE=/opt/partage/machine-code
USER 65532:65532
ENTRYPOINT ["partage"]
CMD ["--help"]
