# specllama as a server: docs/install.md, section Docker.
#
# llama.cpp is compiled for the processor of the machine that builds the image. An image for other x86-64 machines
# with AVX2:  docker build --build-arg CMAKE_ARGS=-DGGML_NATIVE=OFF -t specllama .
FROM debian:bookworm-slim AS base
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libgomp1 libstdc++6 python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 specllama \
 && install -d -o specllama -g specllama /opt/specllama /models

FROM base AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
USER specllama
WORKDIR /opt/specllama
COPY --chown=specllama:specllama . .
ARG CMAKE_ARGS=
# The demo model gets into the image if it can be fetched; SPECLLAMA_DEMO=0 leaves it out.
ARG SPECLLAMA_DEMO=1
ENV SPECLLAMA_DATA=/opt/specllama/.data
RUN SPECLLAMA_BUILD=1 scripts/specllama --version && mkdir -p .data

FROM base
COPY --from=build --chown=specllama:specllama /opt/specllama /opt/specllama
USER specllama
WORKDIR /home/specllama
ENV PATH=/opt/specllama/.venv/bin:$PATH \
    SPECLLAMA_DATA=/opt/specllama/.data \
    SPECLLAMA_CACHE=/models/specllama \
    HF_HOME=/models/huggingface
VOLUME /models
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["specllama"]
# An address that other machines reach needs a key: -e SPECLLAMA_API_KEY=...
CMD ["serve", "--host", "0.0.0.0"]
