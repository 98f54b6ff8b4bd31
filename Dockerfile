# The planner as an image: docker build -t sizing:0.2.0 .
FROM python:3.12.12-slim-bookworm AS build
WORKDIR /opt/sizing
COPY requirements.txt ./
# What runs, in the versions of the lock file. Nothing is compiled.
RUN python -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --only-binary :all: -r requirements.txt \
    && .venv/bin/pip uninstall --yes pip

FROM python:3.12.12-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin sizing \
    && install -d -o sizing -g sizing /var/lib/sizing /var/cache/sizing
WORKDIR /opt/sizing
COPY --from=build /opt/sizing/.venv .venv
COPY app.py serve.py LICENSE pyproject.toml CHANGELOG.md ./
COPY .streamlit/config.toml .streamlit/config.toml
COPY sizing sizing
COPY calibration calibration
COPY ui ui
COPY api api
COPY triton_tools triton_tools
COPY learn learn
COPY lab lab
COPY validation validation
COPY data data
COPY docs docs
ENV PATH=/opt/sizing/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OPENBLAS_NUM_THREADS=1 \
    NUMBA_CACHE_DIR=/var/cache/sizing \
    MPLCONFIGDIR=/var/cache/sizing \
    SIZING_DATABASE_URL=sqlite:////var/lib/sizing/calibration.db \
    SIZING_RECORDS=/var/lib/sizing/records
USER 10001
VOLUME ["/var/lib/sizing"]
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=6s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/healthz', timeout=5)"]
# Inside a container loopback is the container's own: what is published, and to whom, is said by docker run -p.
# browser.serverAddress is only for the line printed at the start; without it Streamlit asks the internet for its address.
CMD ["streamlit", "run", "serve.py", "--server.address=0.0.0.0", "--server.port=8501", \
     "--browser.serverAddress=localhost", "--secrets.files=/etc/sizing/secrets.toml"]
