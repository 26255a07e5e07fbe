"""Peers in processes of their own: peer_loaders.py, or another program, asked line by line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .pages import at_hand
from .peer_loaders import Spec
from .setting import VARIABLE, Server, Setting

PROGRAM = Path(__file__).with_name("peer_loaders.py")
PATIENCE = 900.0  # seconds for one job; a loader that hangs is no reason to hang, too


class PeerError(Exception):
    """What a peer said, or that it said nothing."""


class PeerProcess:
    """A process that answers jobs; leave the `with` to end it."""

    def __init__(
        self, python: str, environment: Mapping[str, str], log: Path, program: Path = PROGRAM
    ) -> None:
        # What an error's text must not show, as it ends in the results.
        self._hidden = {environment[name]: "***" for name in _HIDDEN if name in environment}
        self._hidden |= {str(log.parent): "scratch"}
        if "AWS_ENDPOINT" in environment:
            self._hidden[environment["AWS_ENDPOINT"]] = "the server"
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                cwd=log.parent,  # some write into the folder where they are
                text=True,
                start_new_session=True,  # so that its workers can be ended, too
            )

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, job: Mapping[str, Any], patience: float = PATIENCE) -> dict[str, Any]:
        """The answer to a job; PeerError where it is an error, or none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(patience, self._kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise PeerError(f"ended with code {self._process.wait()}, or took {patience:.0f} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            text = str(answer["error"])
            for word, instead in self._hidden.items():
                text = text.replace(word, instead)
            raise PeerError(text)
        return answer

    def close(self) -> None:
        """End the process: by the end of its jobs, else by force."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            self._kill()
            self._process.wait()
            self._process.stdout.close()

    def _kill(self) -> None:
        """End it and its workers, which would keep its output open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Peers:
    """Starts processes of the Python that has the peers."""

    def __init__(self, setting: Setting, python: str, *, on_s3: bool = True) -> None:
        self._setting, self._python, self._on_s3 = setting, python, on_s3

    def process(self) -> PeerProcess:
        """A new one, that can reach the S3 server if it is to."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(VARIABLE)}
        if self._on_s3:
            environment |= variables(self._setting.s3)
        return PeerProcess(self._python, environment, self._setting.scratch / "peers.log")

    def write(self, peer: str, arrays: Path, out: Path, rows: int, shard: int) -> tuple[str, float]:
        """Store the first `rows` rows of `arrays` in the peer's format: its version, seconds."""
        job = {"do": "write", "peer": peer, "arrays": str(arrays), "out": str(out)}
        with self.process() as process:
            answer = process.ask({**job, "rows": rows, "shard": shard})
        return str(answer["version"]), float(answer["seconds"])

    def memory_at_hand(self, spec: Spec) -> None:
        """To be called just before a first epoch is timed; see pages.py."""
        at_hand(self._setting.scratch, 2 * spec.rows * spec.row_nbytes)

    def contender(self, name: str, spec: Spec, *, cold: bool, cached: bool) -> Contender:
        """A loader to time. `cold`: each time a new one, with an empty cache."""
        return Contender(self, name, spec, self._setting.folder(), cold=cold, cached=cached)


class Contender:
    """A peer's loader with its settings.

    Its epochs run in a process of its own: a new one for each first epoch, since a job has one
    loader. Of two loaders in a process, or in two at a time, some peers disturb each other.
    """

    def __init__(
        self, peers: Peers, name: str, spec: Spec, cache: Path, *, cold: bool, cached: bool
    ) -> None:
        self.name, self.spec = name, spec
        self.patience = PATIENCE  # seconds for an epoch
        self.faults: list[str] = []  # of the epochs that did not give every row once
        self._peers, self._cold, self._cached, self._cache = peers, cold, cached, cache
        self._process: PeerProcess | None = None

    def seconds(self) -> float:
        """Of a first epoch and its loader's construction; or of an epoch after the first."""
        if self._process is None:
            seconds = self._first()
            if self._cold:
                self.close()
                return seconds
        return self._epoch(None)

    def close(self) -> None:
        """End its process, and remove its cache."""
        if self._process is not None:
            self._process.close()
            self._process = None
        shutil.rmtree(self._cache, ignore_errors=True)

    def _first(self) -> float:
        self._process = self._peers.process()
        self._process.ask({"do": "prepare", "peer": self.spec.peer})
        if not self._cached:
            return self._epoch(self.spec)
        self._cache.mkdir()
        return self._epoch(replace(self.spec, cache=str(self._cache)))

    def _epoch(self, spec: Spec | None) -> float:
        assert self._process is not None
        if self._cold:
            self._peers.memory_at_hand(self.spec)
        job = {"do": "epoch", "spec": asdict(spec) if spec else None}
        answer = self._process.ask(job, self.patience)
        if answer["fault"]:
            self.faults.append(str(answer["fault"]))
        return float(answer["seconds"])


_HIDDEN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def variables(server: Server) -> dict[str, str]:
    """The server's settings under the names that boto3, object_store and streaming know."""
    return {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": server.region,
        "AWS_DEFAULT_REGION": server.region,
        "AWS_ENDPOINT": server.endpoint,
        "AWS_ENDPOINT_URL": server.endpoint,
        "S3_ENDPOINT_URL": server.endpoint,
        "AWS_ALLOW_HTTP": str(server.endpoint.startswith("http://")).lower(),
    }
