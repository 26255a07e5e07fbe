"""A real S3 server for tests and benchmarks: one-node Ceph with a RADOS gateway, on loopback.

    python tests/support/s3_server.py up [--port PORT]   start it and print its settings
    python tests/support/s3_server.py down               stop it and drop its data
    python tests/support/s3_server.py status             print the settings; exit 1 if down
    python tests/support/s3_server.py gc                 free deleted objects' memory now

Each takes `--dir DIR`, the folder of its state, so that several can run.

It needs Debian's or Ubuntu's packages `ceph-mon ceph-osd radosgw ceph-common`; `up` installs them
where it runs as root. Objects live in memory, so the data are gone after `down`. The keys are
fixed: this server holds test data only. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ACCESS_KEY = "testaccesskey"
SECRET_KEY = "testsecretkey"
# Of another user, called "guest", who may do what policies of the first one's buckets allow.
GUEST_ACCESS_KEY = "guestaccesskey"
GUEST_SECRET_KEY = "guestsecretkey"
REGION = "us-east-1"
DEFAULT_PORT = 9300

PACKAGES = ("ceph-mon", "ceph-osd", "radosgw", "ceph-common")
PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin")
STATE_FILE = "server.json"

COMMAND_TIMEOUT = 90.0  # seconds for one setup command; they take below three
READY_TIMEOUT = 60.0  # seconds from the gateway's start to its first answer
STOP_TIMEOUT = 15.0  # seconds from SIGTERM to SIGKILL


class ServerError(Exception):
    """What went wrong, and what to do about it, in words for the terminal."""


@dataclass(frozen=True)
class Daemon:
    """A process that `up` started."""

    name: str
    pid: int
    started: str  # the kernel's start time of the process: a pid alone may be another's by now

    @classmethod
    def of(cls, name: str, pid: int) -> Daemon:
        return cls(name, pid, process_start(pid) or "")

    def is_alive(self) -> bool:
        return process_start(self.pid) == self.started

    def stop(self) -> None:
        """End the process, gently at first. Does nothing if it has ended."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if not self.is_alive():
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sign)
            wait_until(lambda: not self.is_alive(), STOP_TIMEOUT)


@dataclass(frozen=True)
class State:
    """What is known of a server between two calls of this program."""

    port: int
    daemons: tuple[Daemon, ...] = ()

    @classmethod
    def load(cls, root: Path) -> State | None:
        """Read the state kept in `root`; None where no server was ever started there."""
        try:
            raw = json.loads((root / STATE_FILE).read_text())
        except FileNotFoundError:
            return None
        return cls(raw["port"], tuple(Daemon(**daemon) for daemon in raw["daemons"]))

    def save(self, root: Path) -> None:
        temporary = root / (STATE_FILE + ".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.replace(root / STATE_FILE)

    def answers(self) -> bool:
        """Whether all daemons live and the gateway answers a request."""
        if not self.daemons or not all(daemon.is_alive() for daemon in self.daemons):
            return False
        try:
            with urllib.request.urlopen(endpoint(self.port), timeout=5):
                return True
        except OSError:
            return False


def endpoint(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def settings(port: int) -> str:
    """Return the shell lines that point the tests at the server."""
    values = {
        "ENDPOINT": endpoint(port),
        "ACCESS_KEY": ACCESS_KEY,
        "SECRET_KEY": SECRET_KEY,
        "REGION": REGION,
    }
    lines = (f"export STORAGE_LOADER_TEST_S3_{name}={value}" for name, value in values.items())
    return "\n".join(lines)


# ---------------------------------------------------------------------- the four commands


def up(root: Path, port: int) -> State:
    """Start a server whose files lie in `root`, or return the one that runs there.

    `port` 0 takes a free one. On an error everything that was started is stopped again; the logs
    stay in `root`.
    """
    state = State.load(root)
    if state is not None and state.answers():
        return state
    down(root)
    if root.exists() and any(root.iterdir()):
        raise ServerError(f"{root} holds files that are not a server's; choose another --dir")
    install_packages()
    if port == 0:
        port = free_ports(1)[0]
    elif not is_free(port):
        raise ServerError(f"port {port} is in use; choose another with --port (0: any free one)")
    for name in ("mon", "osd", "rgw", "log", "run"):
        (root / name).mkdir(parents=True, exist_ok=True)
    cluster = Cluster(root, port)
    try:
        cluster.start()
    except BaseException:
        stop_all(cluster.state.daemons)
        raise
    return cluster.state


def down(root: Path) -> None:
    """Stop the server of `root` and delete its files. Does nothing where there is none."""
    state = State.load(root)
    if state is None:
        return
    stop_all(state.daemons)
    shutil.rmtree(root)


def status(root: Path) -> State:
    state = State.load(root)
    if state is None or not state.answers():
        raise ServerError(f"no server runs in {root}")
    return state


def collect_garbage(root: Path) -> None:
    """Free the memory of deleted and overwritten objects; the server does so itself within 30 s."""
    status(root)
    run(root, "radosgw-admin", "gc", "process", "--include-all")


# ------------------------------------------------------------------------------ the server


class Cluster:
    """One monitor, one object store in memory, one gateway."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        self.state = State(port)
        self.fsid = str(uuid.uuid4())
        self.osd_uuid = str(uuid.uuid4())
        v2, v1 = [free for free in free_ports(3) if free != port][:2]
        self.mon_address = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"

    def start(self) -> None:
        """Set up and start the daemons in order; return when the gateway answers."""
        self.state.save(self.root)
        (self.root / "ceph.conf").write_text(self.config())
        self.make_keys()
        self.start_monitor()
        self.start_osd()
        self.start_gateway()

    def config(self) -> str:
        root = self.root
        options = {
            "fsid": self.fsid,
            "mon host": self.mon_address,
            "public addr": "127.0.0.1",
            "cluster addr": "127.0.0.1",
            "keyring": root / "keyring",
            "mon data": root / "mon",
            "osd data": root / "osd",
            "rgw data": root / "rgw",
            "run dir": root / "run",
            "pid file": "",
            "admin socket": root / "run" / "$name.asok",
            "log file": root / "log" / "$name.log",
            # One copy on one disk, few placement groups: nothing here has to survive a failure.
            "osd pool default size": 1,
            "osd pool default min size": 1,
            "osd pool default pg num": 8,
            "osd pool default pgp num": 8,
            "osd pool default pg autoscale mode": "off",
            "osd crush chooseleaf type": 0,
            "mon allow pool size one": "true",
            "auth allow insecure global id reclaim": "false",
            # The monitor must start on a nearly full disk too: the data are in memory.
            "mon data avail crit": 1,
            # The default gathers changes of the cluster for a second, and setting up makes many.
            "paxos propose interval": 0.05,
            "osd objectstore": "memstore",
            "memstore device bytes": memory_limit(),
            # Deleted objects hold memory until the collector runs, by default after two hours, and
            # a full store makes every PUT hang.
            "rgw gc obj min wait": 5,
            "rgw gc processor period": 15,
            "rgw gc processor max time": 15,
            # Without tcp_nodelay every small range read waits 40 ms for a delayed acknowledgement.
            "rgw frontends": f"beast endpoint=127.0.0.1:{self.state.port} tcp_nodelay=1",
        }
        return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in options.items())

    def make_keys(self) -> None:
        keyring = str(self.root / "keyring")
        everything = {"mon": "allow *", "osd": "allow *", "mgr": "allow *"}
        grants = {
            "mon.": {"mon": "allow *"},
            "client.admin": everything,
            "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
            "client.rgw": {"mon": "allow rwx", "osd": "allow rwx"},
        }
        run(self.root, "ceph-authtool", "--create-keyring", keyring)
        for name, caps in grants.items():
            words = [word for who, what in caps.items() for word in ("--cap", who, what)]
            run(self.root, "ceph-authtool", keyring, "--gen-key", "-n", name, *words)

    def start_monitor(self) -> None:
        monmap, keyring = str(self.root / "monmap"), str(self.root / "keyring")
        create = ("--create", "--clobber", "--fsid", self.fsid, "--addv", "a", self.mon_address)
        run(self.root, "monmaptool", *create, monmap)
        run(self.root, "ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self.spawn("mon", "ceph-mon", "-f", "-i", "a")

    def start_osd(self) -> None:
        run(self.root, "ceph", "osd", "new", self.osd_uuid)
        run(self.root, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", self.osd_uuid)
        location = ("root=default", "host=localhost")
        run(self.root, "ceph", "osd", "crush", "add", "osd.0", "1.0", *location)
        self.spawn("osd", "ceph-osd", "-f", "-i", "0")

    def start_gateway(self) -> None:
        for name, access_key, secret_key in (
            ("test", ACCESS_KEY, SECRET_KEY),
            ("guest", GUEST_ACCESS_KEY, GUEST_SECRET_KEY),
        ):
            keys = (f"--access-key={access_key}", f"--secret-key={secret_key}")
            user = (f"--uid={name}", f"--display-name={name}")
            run(self.root, "radosgw-admin", "user", "create", *user, *keys)
        self.spawn("rgw", "radosgw", "-f", "-n", "client.rgw")
        deadline = time.monotonic() + READY_TIMEOUT
        while not self.state.answers():
            self.check_daemons()
            if time.monotonic() > deadline:
                raise ServerError(f"no answer on port {self.state.port}; logs: {self.root / 'log'}")
            time.sleep(0.1)

    def spawn(self, name: str, *command: str) -> None:
        """Start a daemon in a session of its own, so that it outlives this program."""
        with (self.root / "log" / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(self.root),
                cwd=self.root,
                start_new_session=True,
            )
        daemon = Daemon.of(name, process.pid)
        self.state = State(self.state.port, (*self.state.daemons, daemon))
        self.state.save(self.root)

    def check_daemons(self) -> None:
        for daemon in self.state.daemons:
            if not daemon.is_alive():
                out = self.root / "log" / f"{daemon.name}.out"
                raise ServerError(f"{daemon.name} ended by itself: {last_lines(out.read_text())}")


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "CEPH_CONF": str(root / "ceph.conf")}


def run(root: Path, *command: str) -> None:
    """Run one of Ceph's tools to its end; its words go into the error if it fails."""
    words = " ".join(command[:3])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(root),
            timeout=COMMAND_TIMEOUT,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired as error:
        logs = root / "log"
        raise ServerError(f"{words} took over {COMMAND_TIMEOUT:.0f} s; logs: {logs}") from error
    if done.returncode:
        raise ServerError(f"{words} failed: {last_lines(done.stdout)}")


# ------------------------------------------------------------------------------- the machine


def install_packages() -> None:
    """Install what is missing with apt, or say what to do where that is not possible."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not missing:
        return
    lacking, packages = ", ".join(missing), " ".join(PACKAGES)
    if shutil.which("apt-get") is None:
        raise ServerError(
            f"missing: {lacking}. Without apt-get they are not installed from here: install Ceph's "
            "monitor, OSD and gateway yourself, or run the tests on moto, their default"
        )
    if os.geteuid() != 0:
        raise ServerError(f"missing: {lacking}. Run `sudo apt-get install {packages}` once")
    print(f"installing {packages}", file=sys.stderr)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES)
    for command in (("apt-get", "update", "-qq"), install):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=quiet, check=False
        )
        if done.returncode:
            raise ServerError(
                f"`{' '.join(command)}` failed. Are the package sources reachable, and are they "
                "Debian's or Ubuntu's? The tests run on moto without this server"
            )


def memory_limit() -> int:
    """Return how many bytes of objects the server takes: half the memory, 12 GiB at most."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(physical // 2, 12 * 2**30)


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on just now, each a different one."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def process_start(pid: int) -> str | None:
    """Return the kernel's start time of process `pid`, None where it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The program's name stands in parentheses and may hold spaces: count from behind it.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else fields[19]


def stop_all(daemons: Sequence[Daemon]) -> None:
    for daemon in reversed(daemons):
        daemon.stop()


def wait_until(condition: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def last_lines(text: str, count: int = 5) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3_server.py", description="A real S3 server (one-node Ceph) for tests, on loopback."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    default_dir = Path(tempfile.gettempdir()) / "storage-loader-s3"
    helps = {
        "up": "start it, or find it running, and print its settings as shell exports",
        "down": "stop it and drop its data",
        "status": "print the settings again; exit 1 if it does not run",
        "gc": "free the memory of deleted objects now",
    }
    for name, help_text in helps.items():
        command = commands.add_parser(name, help=help_text)
        command.add_argument("--dir", type=Path, default=default_dir, help="default: %(default)s")
        if name == "up":
            port_help = "0: any free one; default: %(default)s"
            command.add_argument("--port", type=int, default=DEFAULT_PORT, help=port_help)
    options = parser.parse_args(arguments)
    root = options.dir.absolute()
    try:
        if options.command == "up":
            print(settings(up(root, options.port).port))
        elif options.command == "down":
            down(root)
        elif options.command == "status":
            print(settings(status(root).port))
        else:
            collect_garbage(root)
    except ServerError as error:
        print(f"s3_server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
