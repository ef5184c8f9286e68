# syntax=docker/dockerfile:1
# One image for all processes of the example project; the command says which one a container is.
# docs/operations/containers.md has how to run it, and what to change for a project of your own.

FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --upgrade "pip>=25.1"
COPY setup.py pyproject.toml README.md LICENSE pyspark_delayed_queue.py ./
COPY delayed_queue delayed_queue
# Neither Spark nor a Java runtime: they are no part of a worker, and 700 MB. httptools has uvicorn
# parse HTTP in C.
RUN /venv/bin/pip install --no-cache-dir ".[metrics,notifications]" --group example \
    "psycopg[binary]" httptools

FROM python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home queue
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=example_project.settings
WORKDIR /app
COPY --from=build /venv /venv
COPY manage.py ./
COPY example_project example_project
USER queue
EXPOSE 8000
STOPSIGNAL SIGTERM
# In the exec form: a shell in front of the worker would keep the signals to itself.
CMD ["python", "manage.py", "runqueueworker"]
