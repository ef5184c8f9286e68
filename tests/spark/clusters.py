"""A standalone cluster of real processes, whose machines have only the submitted files."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil
import pyspark

from delayed_queue.spark.pipeline.bundles import bundle
from delayed_queue.spark.pipeline.session import find_java_home
from tests.spark.support import BRISK
from tests.support.processes import ROOT, kill_family, wait_until

TIMEOUT: Final = 300
# A program submitted with the module fleet uses its handlers.
HANDLERS: Final = ROOT / "tests" / "spark" / "programs" / "fleet.py"
GATING: Final = HANDLERS.with_name("pyspark_gating.py")
_DEPLOY: Final = "org.apache.spark.deploy"
# Shortens the detection of dead workers and slow tasks, for which tests wait.
_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": BRISK,
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "180s",
}


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


def without_package() -> dict[str, str]:
    """Return an environment without the package on its path, as on a cluster's machines."""
    found = environment(
        JAVA_HOME=str(find_java_home()), SPARK_LOCAL_IP="127.0.0.1", SPARK_SUBMIT_OPTS=BRISK,
        SPARK_DAEMON_JAVA_OPTS=BRISK, SPARK_LAUNCHER_OPTS=BRISK,
    )  # fmt: skip
    found.pop("DJANGO_SETTINGS_MODULE", None)
    del found["PYTHONPATH"]
    return found


@contextmanager
def spawned(
    command: Sequence[str], directory: Path, variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and kill its remaining processes at the end."""
    process = subprocess.Popen(
        command, cwd=directory, env=variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        kill_family(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def executors_of(pid: int) -> list[psutil.Process]:
    """Return the executors of this process, a worker or a driver."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for each in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a zombie too
                if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()):
                    found.append(each)
    return found


def spark_tool(name: str) -> list[str]:
    return [str(Path(pyspark.__file__).parent / "bin" / name)]


@dataclass
class Cluster:
    """A master, and workers of one core each, each on its own address."""

    directory: Path
    hosts: tuple[str, ...] = ("127.0.0.1", "127.0.0.1")
    master: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._spark_class("master", [
            f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", str(port),
            "--webui-port", "0",
        ])  # fmt: skip
        wait_until(lambda: "I have been elected leader" in self._said(), TIMEOUT)
        self.fill_up()

    def fill_up(self) -> None:
        """Start the missing workers, each at its address, and wait for them."""
        wanted = self._said().count("Registering worker")
        for place, host in enumerate(self.hosts):
            there = self.workers[place : place + 1]
            if not there or there[0].poll() is not None:
                self.workers[place : place + 1] = [self._worker(host)]
                wanted += 1
        wait_until(lambda: self._said().count("Registering worker") == wanted, TIMEOUT)

    def _worker(self, host: str) -> subprocess.Popen[bytes]:
        name = f"worker-{len([*self.directory.glob('worker-*.log')])}"
        return self._spark_class(name, [
            f"{_DEPLOY}.worker.Worker", "--cores", "1", "--memory", "600m",
            "--webui-port", "0", "--work-dir", str(self.directory / name),
            "--host", host, self.master,
        ])  # fmt: skip

    def stop(self) -> None:
        self._stack.close()

    def executors(self) -> list[psutil.Process]:
        """Return the running executors; they are children of the workers."""
        return [each for worker in self.workers for each in executors_of(worker.pid)]

    @contextmanager
    def submitted(
        self,
        *arguments: str,
        program: Path | None = None,
        conf: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[subprocess.Popen[str]]:
        """Submit a command of the pipeline, or a program; kill what remains at the end."""
        main = program or self._main()
        files = f"{bundle()},{HANDLERS},{GATING}"
        said = [f"{name}={value}" for name, value in {**_CONF, **conf}.items()]
        command = [
            *spark_tool("spark-submit"), "--master", self.master, "--py-files", files,
            *(each for one in said for each in ("--conf", one)), str(main), *arguments,
        ]  # fmt: skip
        with spawned(command, self.directory, without_package()) as process:
            yield process

    def answer(self, *arguments: str) -> dict[str, Any]:
        """Run a command to its end; return its output."""
        with self.submitted(*arguments, "--format", "json") as process:
            return answer_of(process)

    def _main(self) -> Path:
        """Return a copy of the program outside the package, whose modules it would hide."""
        path = self.directory / "program.py"
        source = ROOT / "delayed_queue" / "spark" / "__main__.py"
        path.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        return path

    def _said(self) -> str:
        return (self.directory / "master.log").read_text()

    def _spark_class(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("w") as out:
            process = subprocess.Popen(
                [*spark_tool("spark-class"), *arguments],
                env={**without_package(), "SPARK_DAEMON_MEMORY": "256m"},
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._stack.callback(kill_family, process)
        return process


def answer_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


@contextmanager
def cluster(directory: Path, *hosts: str) -> Iterator[Cluster]:
    """Run a master and two workers, each as a process."""
    found = Cluster(directory, hosts or Cluster.hosts)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def kill(pid: int) -> None:
    """Kill as an operating system without memory does."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
