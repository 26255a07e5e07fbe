"""The light S3 server of the benchmarks: rows that were saved there come back, each once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import S3Store

from benchmarks import light_s3
from storage_loader import DataConfig, DataLoader, save

ROWS = 500
SHAPE = (500,)  # uint8
NUMBERS = np.arange(ROWS)

FAR = 0.001  # without nginx
NEAR = pytest.param(
    0.0,
    marks=pytest.mark.skipif(
        shutil.which("nginx", path=light_s3.search_path()) is None, reason="nginx is missing"
    ),
)


def config(endpoint: str) -> DataConfig:
    keys = {"access_key": light_s3.ACCESS_KEY, "secret_key": light_s3.SECRET_KEY}
    return DataConfig(
        "rows",
        [("x", "uint8", SHAPE), ("number", "int64")],
        storage="s3://bucket",
        endpoint=endpoint,
        region=light_s3.REGION,
        max_object_size=2**16,  # several objects
        **keys,
    )


@pytest.mark.parametrize("seconds", [FAR, NEAR])
def test_rows_come_back_whole_and_by_index(tmp_path: Path, seconds: float) -> None:
    (tmp_path / "bucket").mkdir()
    x = np.random.default_rng(0).integers(0, 256, (ROWS, *SHAPE), np.uint8)
    with light_s3.serving(tmp_path, seconds) as endpoint:
        save(config(endpoint), {"x": x, "number": NUMBERS})
        for settings in ({"shuffle": True}, {"shuffle": "global", "index": True}):
            batches = list(DataLoader(config(endpoint), batch_size=64, **settings))
            numbers = np.concatenate([batch["number"] for batch in batches])
            assert sorted(numbers) == NUMBERS.tolist()
            assert (np.concatenate([batch["x"] for batch in batches]) == x[numbers]).all()
    assert len(list(tmp_path.rglob("*.h5"))) > 1


@pytest.mark.parametrize("seconds", [FAR, NEAR])
def test_objects(tmp_path: Path, seconds: float) -> None:
    (tmp_path / "bucket").mkdir()
    with light_s3.serving(tmp_path, seconds) as endpoint:
        store = S3Store(
            "bucket",
            endpoint=endpoint,
            access_key_id="any",
            secret_access_key="any",
            region=light_s3.REGION,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        for i in range(1100):  # more than a page of a list
            (tmp_path / "bucket" / f"many-{i:04d}").touch()
        for key in ("a b", "deep/ü+%20", "deep/er/x"):
            obstore.put(store, key, key.encode(), mode="create")
            assert obstore.get(store, key).bytes() == key.encode()
            assert obstore.get_range(store, key, start=1, end=3) == key.encode()[1:3]
            with pytest.raises(AlreadyExistsError):
                obstore.put(store, key, b"other", mode="create")
        listed = [found["path"] for page in obstore.list(store) for found in page]
        many = [f"many-{i:04d}" for i in range(1100)]
        assert listed == ["a b", "deep/er/x", "deep/ü+%20", *many]
        top = obstore.list_with_delimiter(store, "deep")
        assert [found["path"] for found in top["objects"]] == ["deep/ü+%20"]
        assert list(top["common_prefixes"]) == ["deep/er"]
        tags = {found["path"]: found["e_tag"] for found in obstore.list(store, "deep").collect()}
        assert tags == {key: obstore.head(store, key)["e_tag"] for key in tags}
        obstore.delete(store, ["a b", "deep/er/x", "none", "deep"])
        for key in ("a b", "none", "deep"):
            with pytest.raises(FileNotFoundError):
                obstore.head(store, key)
        with pytest.raises(GenericError, match="NotImplemented"):
            obstore.put(store, "parts", b"x" * 2**23, use_multipart=True)


def test_without_nginx_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_s3, "search_path", lambda: str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get install nginx"), light_s3.serving(tmp_path):
        pass
