"""The policies of docs/servers.md, tried with a user who has no other permission."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from storage_loader import (
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    check,
    collect_garbage,
    commit_log,
    delete,
    drop_commit,
    list_datasets,
    save,
    verify_dataset,
)
from storage_loader.errors import (
    DatasetNotFoundError,
    KeysRefusedError,
    PermissionDeniedError,
    SaverError,
)
from storage_loader.store import open_store
from tests.support import ROOT
from tests.support.documents import blocks
from tests.support.rows import ATTRIBUTES_1K, make, numbers_in
from tests.support.s3 import S3Server
from tests.support.s3_server import GUEST_ACCESS_KEY, GUEST_SECRET_KEY

NAMES = ("reader", "writer", "maintainer")
GUEST = {"AWS": ["arn:aws:iam:::user/guest"]}


def policies() -> dict[str, dict[str, Any]]:
    """The documents in docs/servers.md, by the word before each."""
    found = blocks((ROOT / "docs" / "servers.md").read_text())
    documents = [json.loads(b.text) for b in found if b.text.startswith("{")]
    return dict(zip(NAMES, documents, strict=True))


def test_each_policy_allows_what_the_one_before_does_and_more() -> None:
    allowed = [
        {action for one in policies()[name]["Statement"] for action in one["Action"]}
        for name in NAMES
    ]
    assert allowed[0] == {"s3:ListBucket", "s3:GetObject"}
    assert allowed[1] == allowed[0] | {"s3:PutObject"}
    assert allowed[2] > allowed[1]


def as_owner(server: S3Server, storage: str, name: str = "rows") -> DataConfig:
    return config_with(server, server.access_key, server.secret_key, storage, name)


def as_guest(server: S3Server, storage: str, name: str = "rows") -> DataConfig:
    return config_with(server, GUEST_ACCESS_KEY, GUEST_SECRET_KEY, storage, name)


def config_with(
    server: S3Server, access_key: str, secret_key: str, storage: str, name: str
) -> DataConfig:
    return DataConfig(
        name,
        ATTRIBUTES_1K,
        storage=storage,
        endpoint=server.endpoint,
        region=server.region,
        access_key=access_key,
        secret_key=secret_key,
        deadline=2,
    )


@pytest.fixture
def allow(s3_server: S3Server, s3_bucket: str) -> Callable[[str], None]:
    """Gives the guest a policy, for `team` in a new bucket in which two prefixes hold a dataset."""
    if not s3_server.real:
        pytest.skip("moto knows no permissions")
    try:
        list_datasets(**where(as_guest(s3_server, f"s3://{s3_bucket}/team")))
    except KeysRefusedError:
        pytest.skip("this server has no user `guest`")
    except PermissionDeniedError:
        pass
    for prefix in ("team", "other"):
        save(as_owner(s3_server, f"s3://{s3_bucket}/{prefix}"), make(range(20), ATTRIBUTES_1K))

    def give(name: str) -> None:
        text = json.dumps(policies()[name])
        assert "arn:aws:s3:::datasets" in text
        policy = json.loads(text.replace(":::datasets", f":::{s3_bucket}"))
        for statement in policy["Statement"]:
            statement["Principal"] = GUEST
        s3_server.client().set_bucket_policy(s3_bucket, json.dumps(policy))

    return give


def where(config: DataConfig) -> dict[str, Any]:
    """The storage of a config, as `check` and `list_datasets` take it."""
    names = ("storage", "endpoint", "region", "access_key", "secret_key")
    return {name: getattr(config, name) for name in names}


def numbers(config: DataConfig) -> list[int]:
    return numbers_in(DataLoader(config, batch_size=10), ATTRIBUTES_1K)


def cannot_reach_the_other_prefix(server: S3Server, bucket: str) -> None:
    other = as_guest(server, f"s3://{bucket}/other")
    for act in (
        lambda: list(open_store(other).list()),
        lambda: open_store(other).get(f"{other.dataset_prefix}/dataset.json"),
        lambda: open_store(other).put("rows", b""),
        lambda: open_store(other).delete([f"{other.dataset_prefix}/dataset.json"]),
    ):
        with pytest.raises(PermissionDeniedError):
            act()
    assert numbers(as_owner(server, f"s3://{bucket}/other")) == [*range(20)]


@pytest.mark.parametrize("name", NAMES)
def test_everybody_reads(
    s3_server: S3Server, s3_bucket: str, allow: Callable[[str], None], name: str
) -> None:
    team = f"s3://{s3_bucket}/team"
    guest = as_guest(s3_server, team)
    with pytest.raises(PermissionDeniedError, match="this needs s3:"):
        len(Dataset(guest))
    allow(name)
    assert numbers(guest) == [*range(20)]
    assert len(Dataset(guest)[3:5]) == len(ATTRIBUTES_1K)
    assert [info.num_rows for info in list_datasets(**where(guest))] == [20]
    assert verify_dataset(guest).problems == ()
    with pytest.raises(DatasetNotFoundError, match="the storage holds: 'rows'"):
        len(Dataset(as_guest(s3_server, team, "missing")))
    assert check(read_only=True, **where(guest)).falls_short == ()


def test_a_reader_changes_nothing(
    s3_server: S3Server, s3_bucket: str, allow: Callable[[str], None]
) -> None:
    allow("reader")
    team = f"s3://{s3_bucket}/team"
    guest = as_guest(s3_server, team)
    with pytest.raises(SaverError, match=r"no permission .* needs s3:PutObject"):
        save(guest, make(range(20, 30), ATTRIBUTES_1K))
    with pytest.raises(PermissionDeniedError):
        delete(guest)
    checked = check(**where(guest))
    assert [point.name for point in checked.falls_short] == ["put"]
    assert checked.left == ""
    cannot_reach_the_other_prefix(s3_server, s3_bucket)
    assert numbers(as_owner(s3_server, team)) == [*range(20)]


def test_a_writer_saves_and_removes_nothing(
    s3_server: S3Server, s3_bucket: str, allow: Callable[[str], None]
) -> None:
    allow("writer")
    team = f"s3://{s3_bucket}/team"
    guest = as_guest(s3_server, team)
    with DataSaver(guest, writer="part-0") as saver:
        saver(make(range(20, 30), ATTRIBUTES_1K))
        saver.commit()
        saver(make(range(30, 40), ATTRIBUTES_1K))
    assert sorted(numbers(guest)) == [*range(40)]
    drop_commit(guest, commit_log(guest)[0].id)
    assert sorted(numbers(guest)) == [*range(20, 40)]
    new = as_guest(s3_server, team, "new")
    save(new, make(range(5), ATTRIBUTES_1K))
    save(new, make(range(7), ATTRIBUTES_1K), refresh=True)
    assert numbers(new) == [*range(7)]
    with pytest.raises(PermissionDeniedError, match="needs s3:DeleteObject"):
        collect_garbage(guest)
    checked = check(**where(guest))
    assert [point.name for point in checked.falls_short] == ["delete"]
    for name in ("put", "get", "range", "create-only"):  # all that saving and loading need
        assert checked[name].state == "holds", checked[name]
    left = {info.key for info in open_store(guest).list(checked.left)}
    assert left == {f"{checked.left}/{name}" for name in ("put", "delete", "create")}
    cannot_reach_the_other_prefix(s3_server, s3_bucket)


@pytest.mark.usefixtures("speed_of_a_moment")
def test_a_maintainer_does_all(
    s3_server: S3Server, s3_bucket: str, allow: Callable[[str], None]
) -> None:
    allow("maintainer")
    guest = as_guest(s3_server, f"s3://{s3_bucket}/team")
    checked = check(**where(guest))
    assert [point for point in checked.points if point.state != "holds"] == []
    save(guest, make(range(7), ATTRIBUTES_1K), refresh=True)
    collect_garbage(guest)
    assert numbers(guest) == [*range(7)]
    delete(guest)
    with pytest.raises(DatasetNotFoundError):
        len(Dataset(guest))
    assert list(open_store(guest).list()) == []
    cannot_reach_the_other_prefix(s3_server, s3_bucket)
