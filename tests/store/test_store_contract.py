"""What `Store` promises, on every store there is."""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from storage_loader.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from storage_loader.store import FolderStore, MemoryStore, Store
from tests.support.places import CLIENTS, folder_store, s3_place
from tests.support.s3 import S3Server, new_bucket

LOCAL = ["folder", "memory"]
KINDS = [*LOCAL, *(pytest.param(kind, marks=pytest.mark.s3) for kind in CLIENTS)]
PREFIX = "some prefix/%20+#?~ü"

KEYS = [
    "plain",
    "a b",
    " lead",
    "trail ",
    "%20",
    "a%2Fb",
    "a+b",
    "c#d",
    "e?f=g&h",
    "~x",
    "ü/é/日本",
    "x:y",
    "(z)!'$",
    '"quoted"',
    "*star",
    "back\\slash",
    "[br]{cu}|^`<>",
    "trail.",
    "..dots",
    ".hidden",
    "a;b,c@d=e",
    "deep/" * 20 + "x",
    "k" * 200,
]
UNPRINTABLE = ["a\nb", "\x7f"]  # in a place of ours only others can have put them
REFUSED = ["", "/", "a/", "/a", "a//b", ".", "..", "../a", "a/..", "a/./b", "a\0", *UNPRINTABLE]


@pytest.fixture(scope="module")
def contract_bucket(s3_server: S3Server) -> Iterator[str]:
    """One bucket for the module: each test has a prefix of its own in it."""
    with new_bucket(s3_server) as bucket:
        yield bucket


@pytest.fixture(params=KINDS)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Makes stores of one place, as several processes would."""
    kind = request.param
    if kind == "folder":
        return lambda: folder_store(tmp_path)
    if kind == "memory":
        url = f"memory://{uuid.uuid4().hex}"
        return lambda: MemoryStore(url)
    server = request.getfixturevalue("s3_server")
    bucket = request.getfixturevalue("contract_bucket")
    place = s3_place(server, bucket, f"{PREFIX}/{uuid.uuid4().hex}")
    return lambda: CLIENTS[kind](place)


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    return make_store()


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return request.node.callspec.params["make_store"]


def content(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).bytes(nbytes)


def keys_of(store: Store, prefix: str = "") -> list[str]:
    return sorted(info.key for info in store.list(prefix))


class TestStoreContract:
    # Whole objects

    @pytest.mark.parametrize("nbytes", [0, 1, 1000, 3 * 2**20 + 1])
    def test_an_object_comes_back(
        self, store: Store, make_store: Callable[[], Store], nbytes: int
    ) -> None:
        data = content(nbytes)
        store.put("a/b", data)
        for reader in (store, make_store()):
            assert reader.get("a/b") == data
            assert b"".join(reader.stream("a/b", 0, nbytes) if nbytes else []) == data
            assert reader.find_all(["a/b"]) == [data]
            info = reader.head("a/b")
            assert (info.key, info.nbytes) == ("a/b", nbytes)
            assert [(i.key, i.nbytes) for i in reader.list()] == [("a/b", nbytes)]

    @pytest.mark.parametrize(
        "data",
        [
            b"bytes",
            bytearray(b"bytearray"),
            memoryview(b"0123456789")[2:7],
            np.arange(10, dtype=np.uint8),
            np.arange(6, dtype=np.int32).reshape(2, 3),
            memoryview(np.arange(100, dtype=np.uint8))[10:],
        ],
        ids=range(6),
    )
    def test_any_buffer_is_stored(self, store: Store, data: object) -> None:
        store.put("key", data)  # type: ignore[arg-type]
        assert bytes(store.get("key")) == bytes(data)  # type: ignore[call-overload]

    def test_the_callers_memory_may_be_used_again(self, store: Store) -> None:
        data = bytearray(b"before")
        store.put("key", data)
        data[:] = b"after!"
        assert store.get("key") == b"before"

    @pytest.mark.parametrize("nbytes", [0, 10])
    def test_buffers_are_read_only_bytes(self, store: Store, nbytes: int) -> None:
        store.put("key", content(nbytes))
        buffers = [store.get("key"), *store.get_ranges("key", [(0, nbytes), (0, 0)])]
        for buffer in [*buffers, *store.get_many([("key", [(0, nbytes)])])[0]]:
            assert isinstance(buffer, memoryview)
            assert buffer.readonly
            assert (buffer.format, buffer.itemsize, buffer.ndim) == ("B", 1, 1)
            assert buffer.c_contiguous
            with pytest.raises(TypeError):
                buffer[0:1] = b"x"

    def test_buffers_outlive_the_object(self, store: Store) -> None:
        data, other = content(100_000), content(100_001)
        store.put("gone", data)
        store.put("changed", data)
        held = [
            buffer
            for key in ("gone", "changed")
            for buffer in [store.get(key), *store.get_ranges(key, [(0, 100_000)])]
        ]
        store.delete(["gone"])
        store.put("changed", other)
        assert all(buffer == data for buffer in held)

    def test_an_overwritten_object_is_seen(
        self, store: Store, make_store: Callable[[], Store]
    ) -> None:
        reader = make_store()
        for data in (b"first", b"other", b"", b"third!"):
            store.put("key", data)
            for each in (store, reader):
                assert each.get("key") == data
                assert each.get_ranges("key", [(0, len(data))]) == [data]
                assert each.head("key").nbytes == len(data)

    def test_a_stream_comes_in_pieces(self, store: Store, kind: str) -> None:
        data = content(5 * 2**20)
        store.put("key", data)
        for start, end in [(0, len(data)), (1, len(data) - 1), (2**20, 4 * 2**20), (7, 8)]:
            pieces = list(store.stream("key", start, end))
            assert b"".join(pieces) == data[start:end]
            if kind in CLIENTS and end - start >= 3 * 2**20:
                assert len(pieces) > 1

    def test_a_stream_ends_where_the_object_does(self, store: Store) -> None:
        data = content(1000)
        store.put("key", data)
        assert b"".join(store.stream("key", 100, 5000)) == data[100:]
        assert b"".join(store.stream("key", 999, 1001)) == data[999:]

    def test_a_stream_may_be_left(self, store: Store) -> None:
        data = content(5 * 2**20)
        store.put("key", data)
        for _ in range(50):
            stream = iter(store.stream("key", 0, len(data)))
            assert data.startswith(bytes(next(stream)))
            del stream
        assert store.get("key") == data

    def test_several_at_once_keep_their_order(self, store: Store) -> None:
        keys = [f"k{i}" for i in range(20)]
        for key in keys:
            store.put(key, key.encode())
        wanted = [*reversed(keys), keys[3], keys[3]]
        assert store.find_all(wanted) == [key.encode() for key in wanted]
        assert store.find_all([]) == []
        assert store.get_many([(key, [(1, len(key)), (0, 1)]) for key in wanted]) == [
            [key[1:].encode(), b"k"] for key in wanted
        ]
        assert store.get_many([]) == []

    # Ranges

    @pytest.mark.parametrize(
        "ranges",
        [
            [],
            [(0, 1000)],
            [(0, 1)],
            [(999, 1000)],
            [(3, 3)],
            [(1000, 1000)],
            [(0, 0), (0, 1000), (5, 5)],
            [(500, 600), (100, 200), (0, 50)],  # out of order
            [(100, 300), (200, 400), (150, 160)],  # overlapping
            [(7, 9), (7, 9), (7, 9)],
            [(0, 10), (10, 20), (20, 30)],  # touching
            [(i, i + 3) for i in range(0, 990, 10)],
        ],
    )
    def test_ranges(self, store: Store, ranges: list[tuple[int, int]]) -> None:
        data = content(1000)
        store.put("key", data)
        expected = [data[start:end] for start, end in ranges]
        assert store.get_ranges("key", ranges) == expected
        assert store.get_many([("key", ranges), ("key", ranges[::-1])]) == [
            expected,
            expected[::-1],
        ]

    @pytest.mark.parametrize(
        "wrong",
        [(900, 1001), (999, 1001), (1000, 1001), (1001, 1002), (0, 2000), (5, 3), (-1, 3)],
    )
    def test_a_range_outside_the_object_is_an_error(
        self, store: Store, wrong: tuple[int, int]
    ) -> None:
        store.put("a/key", content(1000))
        for ranges in ([wrong], [(0, 10), wrong]):
            with pytest.raises(StoreError, match="a/key"):
                store.get_ranges("a/key", ranges)
            with pytest.raises(StoreError, match="a/key"):
                store.get_many([("a/key", [(0, 1)]), ("a/key", ranges)])

    def test_an_empty_object_has_empty_ranges(self, store: Store) -> None:
        store.put("key", b"")
        assert store.get_ranges("key", [(0, 0), (0, 0)]) == [b"", b""]
        with pytest.raises(StoreError, match="key"):
            store.get_ranges("key", [(0, 1)])

    # Keys

    def test_keys_are_taken_literally(self, store: Store) -> None:
        for key in KEYS:
            store.put(key, key.encode(), create=True)
        for key in KEYS:
            assert store.get(key) == key.encode(), key
            assert store.get_ranges(key, [(0, 1)]) == [key.encode()[:1]], key
            assert b"".join(store.stream(key, 0, 200)) == key.encode(), key
            assert store.head(key).key == key
        assert keys_of(store) == sorted(KEYS)
        assert keys_of(store, "ü") == ["ü/é/日本"]
        assert store.list_folders() == ["deep", "ü"]
        assert store.list_folders("ü") == ["é"]
        store.delete(KEYS[:10])
        assert keys_of(store) == sorted(KEYS[10:])
        store.delete(KEYS)
        assert keys_of(store) == []

    @pytest.mark.parametrize("key", REFUSED, ids=repr)
    def test_keys_that_could_be_misread_are_refused(
        self, store: Store, kind: str, key: str
    ) -> None:
        text = f"key {key!r}: no empty, '.' or '..' part and no control character may be in it"
        verbs: list[Callable[[], object]] = [
            lambda: store.get(key),
            lambda: store.get_ranges(key, [(0, 1)]),
            lambda: store.get_many([(key, [(0, 1)])]),
            lambda: store.find_all([key]),
            lambda: list(store.stream(key, 0, 1)),
            lambda: store.put(key, b"x"),
            lambda: store.put(key, b"x", create=True),
            lambda: store.head(key),
        ]
        if kind in LOCAL and key in UNPRINTABLE:
            store.delete([key])  # what lies there must go, see test_folder_hostile.py
        else:
            verbs.append(lambda: store.delete([key]))
        if key:  # "" is the whole store
            verbs += [lambda: list(store.list(key)), lambda: store.list_folders(key)]
        for verb in verbs:
            with pytest.raises(StoreError) as error:
                verb()
            assert str(error.value) == text

    def test_a_missing_object(self, store: Store) -> None:
        store.put("there/x", b"x")
        for key in ("missing", "there", "there/y", "there/x2", "a/b/c"):
            verbs: list[Callable[[], object]] = [
                lambda key=key: store.get(key),
                lambda key=key: store.get_ranges(key, [(0, 1)]),
                lambda key=key: store.get_many([("there/x", [(0, 1)]), (key, [(0, 1)])]),
                lambda key=key: list(store.stream(key, 0, 1)),
                lambda key=key: store.head(key),
            ]
            for verb in verbs:
                with pytest.raises(ObjectNotFoundError) as error:
                    verb()
                assert key in str(error.value)
                assert isinstance(error.value, FileNotFoundError)
            assert store.find(key) is None
            assert store.find_all([key, "there/x", key]) == [None, b"x", None]
            assert keys_of(store) == ["there/x"]

    # Creating

    def test_create_never_overwrites(self, store: Store) -> None:
        store.put("a/key", b"first", create=True)
        for data in (b"second", b"", b"first"):
            with pytest.raises(ObjectExistsError, match="a/key") as error:
                store.put("a/key", data, create=True)
            assert isinstance(error.value, FileExistsError)
        assert store.get("a/key") == b"first"
        store.delete(["a/key"])
        store.put("a/key", b"again", create=True)
        assert [info.nbytes for info in store.list()] == [5]

    def test_of_several_creators_one_wins(
        self, make_store: Callable[[], Store], kind: str, request: pytest.FixtureRequest
    ) -> None:
        rounds, num = 5, 8
        stores = [make_store() for _ in range(num)]
        barrier = threading.Barrier(num)

        def race(i: int) -> list[bool]:
            won = []
            for r in range(rounds):
                barrier.wait()
                try:
                    stores[i].put(f"race/{r}", f"creator {i}".encode() * 1000, create=True)
                except ObjectExistsError:
                    won.append(False)
                else:
                    won.append(True)
            return won

        with ThreadPoolExecutor(num) as pool:
            won = list(pool.map(race, range(num)))
        # moto looks and then writes, so there several may take themselves for the first.
        exact = kind in LOCAL or request.getfixturevalue("s3_server").real
        for r in range(rounds):
            winners = [i for i in range(num) if won[i][r]]
            assert len(winners) == 1 if exact else winners
            stored = make_store().get(f"race/{r}")
            assert stored in [f"creator {i}".encode() * 1000 for i in winners]

    # Listing and deleting

    def test_listing(self, store: Store) -> None:
        keys = ["a/1", "a/2", "a/b/3", "ab/4", "a.5", "c", "d/e/f/6"]
        for key in keys:
            store.put(key, key.encode())
        assert keys_of(store) == sorted(keys)
        assert keys_of(store, "a") == ["a/1", "a/2", "a/b/3"]
        assert keys_of(store, "a/b") == ["a/b/3"]
        assert keys_of(store, "d/e") == ["d/e/f/6"]
        for empty in ("c", "a/1", "missing", "missing/x", "a/1/x", "d/e/f/6"):
            assert keys_of(store, empty) == []
            assert store.list_folders(empty) == []
        assert store.list_folders() == ["a", "ab", "d"]
        assert store.list_folders("a") == ["b"]
        assert store.list_folders("d") == ["e"]
        assert store.list_folders("a/b") == []
        assert {i.key: i.nbytes for i in store.list("a")} == {"a/1": 3, "a/2": 3, "a/b/3": 5}

    def test_an_empty_place_lists_nothing(self, store: Store) -> None:
        assert keys_of(store) == []
        assert store.list_folders() == []
        store.delete(["missing", "a/b"])
        assert keys_of(store) == []

    def test_times_are_the_stores_and_have_a_zone(self, store: Store) -> None:
        store.put("key", b"x")
        now = datetime.now(timezone.utc)
        for info in [store.head("key"), *store.list()]:
            assert abs(now - info.modified) < timedelta(minutes=10)

    def test_deleting(self, store: Store, make_store: Callable[[], Store]) -> None:
        reader = make_store()
        for i in range(25):
            store.put(f"d/{i}", b"x")
            assert reader.get(f"d/{i}") == b"x"
        store.delete(f"d/{i}" for i in range(10))
        assert keys_of(reader) == sorted(f"d/{i}" for i in range(10, 25))
        store.delete([])
        store.delete(["d/3", "d/11", "missing", "d", "d/12/x", "no/folder"])
        assert keys_of(reader) == sorted(f"d/{i}" for i in range(10, 25) if i not in (11,))
        with pytest.raises(ObjectNotFoundError):
            store.get("d/11")
        store.delete([f"d/{i}" for i in range(25)])
        assert keys_of(reader) == []
        assert store.list_folders() == []

    # Preparing, threads, text

    def test_prepare_may_be_called_again(self, store: Store) -> None:
        store.prepare()
        store.put("key", b"x")
        store.prepare()
        assert store.get("key") == b"x"

    def test_many_threads(self, store: Store) -> None:
        def work(i: int) -> bytes:
            store.put(f"t/{i % 4}/{i}", f"{i}".encode() * 100)
            assert store.get_ranges(f"t/{i % 4}/{i}", [(0, 1)]) == [f"{i}".encode()[:1]]
            return bytes(store.get(f"t/{i % 4}/{i}"))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(40))) == [f"{i}".encode() * 100 for i in range(40)]
        assert len(keys_of(store, "t")) == 40

    def test_its_text_names_the_place(
        self, store: Store, kind: str, request: pytest.FixtureRequest
    ) -> None:
        assert repr(store) == f"{type(store).__name__}({store.url!r})"
        assert store.url in store.origin
        assert store.is_local == (kind in ("folder", "memory"))
        if kind in CLIENTS:
            server = request.getfixturevalue("s3_server")
            assert store.url.startswith(f"s3://{request.getfixturevalue('contract_bucket')}/")
            for text in (repr(store), store.url, store.origin, str(store)):
                assert server.secret_key not in text
                assert server.access_key not in text


@pytest.fixture(scope="module")
def many(s3_server: S3Server, contract_bucket: str) -> tuple[str, list[str]]:
    """A prefix with more objects than one page of a listing holds."""
    prefix = f"many {uuid.uuid4().hex}"
    store = CLIENTS["direct"](s3_place(s3_server, contract_bucket, prefix))
    keys = [f"f{i % 3}/{i:05d}" for i in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))
    return prefix, sorted(keys)


@pytest.mark.s3
@pytest.mark.parametrize("client", ["direct", "minio"])
def test_more_than_a_page_is_listed(
    s3_server: S3Server, contract_bucket: str, many: tuple[str, list[str]], client: str
) -> None:
    prefix, keys = many
    store = CLIENTS[client](s3_place(s3_server, contract_bucket, prefix))
    assert keys_of(store) == keys
    assert keys_of(store, "f1") == [key for key in keys if key.startswith("f1/")]
    assert store.list_folders() == ["f0", "f1", "f2"]


@pytest.mark.s3
def test_more_than_a_page_is_deleted(s3_server: S3Server, contract_bucket: str) -> None:
    place = s3_place(s3_server, contract_bucket, f"delete {uuid.uuid4().hex}")
    for client in ("direct", "minio"):
        store = CLIENTS[client](place)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: store.put(f"k/{i}", b""), range(1001)))  # noqa: B023
        store.delete(f"k/{i}" for i in range(1000))
        assert keys_of(store) == ["k/1000"]
        store.delete(["k/1000"])
        assert keys_of(store) == []


@pytest.mark.s3
@pytest.mark.parametrize("create", [False, True])
def test_large_objects(s3_server: S3Server, contract_bucket: str, create: bool) -> None:
    store = CLIENTS["direct"](s3_place(s3_server, contract_bucket, uuid.uuid4().hex))
    data = content(12 * 2**20 + 1)
    store.put("key", data, create=create)
    assert store.get("key") == data
    assert store.get_ranges("key", [(0, 10), (len(data) - 10, len(data))]) == [
        data[:10],
        data[-10:],
    ]
    with pytest.raises(ObjectExistsError):
        store.put("key", data, create=True)


@pytest.mark.s3
@pytest.mark.parametrize("client", CLIENTS)
def test_marks_that_other_tools_leave_are_no_objects(
    s3_server: S3Server, contract_bucket: str, client: str
) -> None:
    """Consoles make empty objects whose keys end with a slash."""
    prefix = f"marks {uuid.uuid4().hex}"
    raw = s3_server.client()
    for key in (f"{prefix}/", f"{prefix}/folder/", f"{prefix}/folder/sub/"):
        raw.put_object(contract_bucket, key, io.BytesIO(b""), 0)
    store = CLIENTS[client](s3_place(s3_server, contract_bucket, prefix))
    store.put("folder/x", b"x")
    assert [info.key for info in store.list() if info.nbytes] == ["folder/x"]
    assert [info.key for info in store.list("folder") if info.nbytes] == ["folder/x"]
    assert store.list_folders() == ["folder"]
    assert store.list_folders("folder") == ["sub"]
    store.delete(keys_of(store))
    assert "folder/x" not in keys_of(store)


def test_the_same_key_in_two_places(tmp_path: Path) -> None:
    stores: list[Store] = [
        FolderStore(tmp_path / "a"),
        FolderStore(tmp_path / "b"),
        MemoryStore(f"memory://{uuid.uuid4().hex}"),
        MemoryStore(f"memory://{uuid.uuid4().hex}"),
    ]
    for i, store in enumerate(stores):
        store.put("key", f"{i}".encode())
    assert [bytes(store.get("key")) for store in stores] == [b"0", b"1", b"2", b"3"]
    assert len({store.origin for store in stores}) == 4
