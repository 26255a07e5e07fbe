"""The examples learn what they say, and may be run again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage_loader import list_datasets

DIGITS = Path(__file__).parents[1] / "examples" / "digits.py"


def run(*options: str, **environment: str) -> str:
    """What the example prints; it must end with an accuracy of 97% at least."""
    done = subprocess.run(
        [sys.executable, DIGITS, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},  # other tests run beside it
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = re.fullmatch(r"test accuracy: (\d+\.\d)%", done.stdout.splitlines()[-1])
    assert last, done.stdout
    assert float(last[1]) >= 97
    return done.stdout


@pytest.mark.timeout(180)
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
    subprocess.run([sys.executable, "-c", again], cwd=DIGITS.parent, check=True, timeout=60)
    assert [i.num_rows for i in list_datasets()] == [360, 1437]
    assert [i.version for i in list_datasets()] != [i.version for i in infos]


@pytest.mark.timeout(180)
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
