"""The examples do what they say, and may be run again, and killed."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from storage_loader import DataConfig, Dataset, list_datasets
from tests.support.examples import DIGITS, EXAMPLES, run, run_example
from tests.support.spawned import SKLEARN, imported_once

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


def test_digits_in_the_default_folder_and_saved_once_more() -> None:
    output = run()
    infos = list_datasets()
    assert [(dict(i.config.additional), i.num_rows) for i in infos] == [
        ({"split": "test"}, 360),
        ({"split": "train"}, 1437),
    ]
    for info in infos:
        assert f"{info.config.storage}/{info.config.dataset_prefix}: " in output
        assert f"{info.num_rows} rows, {info.num_objects} objects" in output
    assert len(re.findall(r"[\d,]+ rows/s", output)) == 3
    again = "import digits; digits.preprocess(digits.parser().parse_args([]))"
    with imported_once(*SKLEARN):
        subprocess.run([sys.executable, "-c", again], cwd=DIGITS.parent, check=True, timeout=500)
    assert [i.num_rows for i in list_datasets()] == [360, 1437]
    assert [i.version for i in list_datasets()] != [i.version for i in infos]


def test_digits_on_s3(s3_storage: dict[str, str]) -> None:
    output = run(
        "--storage",
        s3_storage["storage"],
        "--endpoint",
        s3_storage["endpoint"],
        AWS_ACCESS_KEY_ID=s3_storage["access_key"],
        AWS_SECRET_ACCESS_KEY=s3_storage["secret_key"],
        AWS_REGION=s3_storage["region"],
    )
    assert s3_storage["storage"] in output
    assert [i.num_rows for i in list_datasets(**s3_storage)] == [360, 1437]


def run_killed(after: float | None, *options: str) -> str:
    """What examples/resume.py prints until it is killed, some seconds after its first line."""
    command = [sys.executable, EXAMPLES / "resume.py", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        begun = job.stdout.readline()
        try:
            rest, _ = job.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            job.kill()
            rest, _ = job.communicate()
        else:
            assert job.returncode == 0
    return begun + rest


@pytest.mark.usefixtures("library_once")
def test_a_job_that_is_killed_goes_on_when_it_is_started_again() -> None:
    starts = part = 0
    while starts < 2:  # a machine that was too busy to kill the job in time did not test this
        part += 1
        starts = start_until_done(part)
    dataset = Dataset(DataConfig("waves"))
    stop = 2000 * (part + 1)
    assert dataset[:]["number"].tolist() == list(range(2000, stop))
    angles = np.arange(2000, stop)[:, None] * np.linspace(0.1, 1, 32)
    assert (dataset[:]["wave"] == np.sin(angles).astype(np.float32)).all()
    again = run_killed(None, "--part", str(part))
    assert again.startswith("2000 rows are committed, going on\n")
    assert len(Dataset(DataConfig("waves"))) == stop - 2000


def start_until_done(part: int) -> int:
    """Start a part of the job and kill it, until it has come to its end; how often it began."""
    chance = random.Random(7)
    committed = starts = 0
    output = ""
    while f"part {part} is done: 2000 rows\n" not in output:
        # Longer each time: on a busy machine 0.4 s may be too short for a commit.
        output = run_killed(chance.uniform(0.1, 0.4) * 1.2**starts, "--part", str(part))
        begun = re.match(r"(\d+) rows are committed, going on\n", output)
        assert begun, output
        assert committed <= int(begun[1]) <= 2000
        committed, starts = int(begun[1]), starts + 1
    return starts


def printed(name: str) -> list[str]:
    """The lines of an example that takes no options."""
    return run_example(EXAMPLES / name).stdout.splitlines()


def test_two_processes_stop_and_go_on() -> None:
    """1,797 rows, batches of 64: 29 steps an epoch, so step 100 is the 13th of epoch 3."""
    first, resumed, last, accuracy = printed("distributed.py")
    assert first == "stopped after 100 steps, 3.4 epochs"
    assert resumed == f"goes on at epoch 3, row {13 * 64}"
    assert last == "stopped after 232 steps, 8.0 epochs"
    found = re.fullmatch(r"accuracy on these rows: (\d+\.\d)%", accuracy)
    assert found
    assert float(found[1]) >= 93


def test_on_a_gpu_or_the_cpu_where_there_is_none() -> None:
    *_, stats, accuracy = printed("gpu.py")
    assert re.match(r"epoch 1: 4,000 rows in .* waited \d+% \(fetch \d+%, gather \d+%, ", stats)
    found = re.fullmatch(r"training accuracy: (\d+\.\d)%", accuracy)
    assert found
    assert float(found[1]) >= 97


def test_documents_to_a_language_model() -> None:
    """The loss begins at that of 12 words drawn alike, and ends near what the grammar leaves."""
    row, first, *epochs = printed("tokens.py")
    assert re.match(r"row 17 of 2000: \d+ tokens, 'the ", row)
    losses = [re.search(r": (\d\.\d\d) nats a word", line) for line in (first, *epochs)]
    begun, *_, last = [float(found[1]) for found in losses if found]
    assert len(epochs) == 2
    assert begun > 2.2
    assert last < 0.9
    assert all("; 2,000 rows in " in line for line in epochs)
