"""A process forked from one that has imported is, to the test that starts it, like a new one."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each process imports by itself"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="there each imports by itself too"),
    pytest.mark.usefixtures("library_once"),
]

SEEN = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("SEEN"), os.getppid(), input(),
                  __name__, sorted(set(sys.modules) & {"storage_loader", "json"})]))
sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["code", "script"])
def test_words_folder_environment_files_and_parent(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SEEN)
    words = ["-c", SEEN] if kind == "code" else [str(script)]
    done = subprocess.run(
        [sys.executable, *words, "a", "b"],
        input="a line\n",
        cwd=tmp_path,
        env={**os.environ, "SEEN": "x=y"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout) == [
        [words[0] if kind == "script" else "-c", "a", "b"],
        str(tmp_path),
        "x=y",
        os.getpid(),
        "a line",
        "__main__",
        ["json", "storage_loader"],
    ]


def test_errors_interrupts_and_what_is_done_at_the_end() -> None:
    failed = subprocess.run(
        [sys.executable, "-c", "import atexit; atexit.register(print, 'end'); 1 / 0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (failed.returncode, failed.stdout) == (1, "end\n")
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    sleeps = "import time; print('ready', flush=True); time.sleep(100)"
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-c", sleeps], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(sign)
            assert process.wait(60) == -sign


def leave(code: int) -> None:
    os._exit(code)


def test_what_multiprocessing_spawns_is_a_child_too() -> None:
    process = multiprocessing.get_context("spawn").Process(target=leave, args=(7,))
    process.start()
    process.join(60)
    assert process.exitcode == 7
