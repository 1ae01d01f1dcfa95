# The whole testbed in one image, for one run in a pod (`testbed render X --kubernetes`, docs/kubernetes.md):
#
#   docker build --tag scale-across-testbed:VERSION-run .
#
#   BASE_IMAGE   Debian 12 or newer
#   TORCH_INDEX  package index that torch comes from; the default's torch is for CPUs alone
#
# The containers of a lab have another image, with the agents alone: agents/Dockerfile.

ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS build
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
        ca-certificates gcc libc6-dev python3-venv
# torch before the sources: docker remembers this step when only they change.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv /opt/testbed \
 && /opt/testbed/bin/python -m pip --disable-pip-version-check --no-cache-dir install \
        --no-deps --index-url "$TORCH_INDEX" 'torch>=2.4'
COPY . /tmp/testbed
# What is removed again is for those who compile against torch or test it.
RUN /opt/testbed/bin/python -m pip --disable-pip-version-check --no-cache-dir install '/tmp/testbed[agents]' \
 && cd /opt/testbed/lib/python3*/site-packages/torch \
 && rm -rf include test lib/*.a && find bin -type f ! -name torch_shm_manager -delete

FROM ${BASE_IMAGE}
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
        iperf3 iproute2 iputils-ping mount python3 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/testbed /opt/testbed
ENV PATH=/opt/testbed/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["testbed", "--help"]
