"""`DataConfig`: what settings mean, what stays secret, and the text of each refusal."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig
from storage_loader.codecs import Codec
from storage_loader.config import parse_endpoint
from storage_loader.errors import ConfigError, SchemaError, UnknownNameError
from storage_loader.schema import Schema

ACCESS, SECRET = "an-access-key-AKIA", "the-secret-key-42"
KEYS = {"access_key": ACCESS, "secret_key": SECRET}

scalars = st.one_of(
    st.text(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)
additionals = st.dictionaries(st.text(min_size=1), scalars, max_size=5)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_LOADER_STORAGE", raising=False)


def s3(**settings: object) -> DataConfig:
    """A config on S3 with every setting that S3 takes."""
    given = {"storage": "s3://bucket/some prefix", "endpoint": "http://127.0.0.1:9000", **KEYS}
    return DataConfig("digits", [("x", "int64")], **{**given, **settings})  # type: ignore[arg-type]


# Identity


def test_names() -> None:
    for name in ["d", "0", "digits", "Digits-v1.2_x", "a" * 128]:
        assert DataConfig(name).dataset_name == name


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", ".a", "-a", "_a", "a b", "a\n", "ü", "a" * 129, None, 5]
)
def test_a_wrong_name_is_refused(name: object) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig(name)  # type: ignore[arg-type]
    assert str(error.value) == (
        f"dataset_name {name!r}: 1 to 128 letters, digits, '.', '_' and '-', "
        "beginning with a letter or digit; up to 8 such parts may be joined by '/', as in "
        "'vision/digits'"
    )


@given(additionals)
def test_additional_in_any_order_is_one_identity(additional: dict[str, object]) -> None:
    config = DataConfig("d", additional=additional, storage="memory://x")
    turned = OrderedDict(reversed(additional.items()))
    assert DataConfig("d", additional=turned, storage="memory://x") == config
    assert DataConfig("d", additional=turned, storage="memory://x").dataset_prefix == (
        config.dataset_prefix
    )
    assert config.identity == {"name": "d", "additional": additional}
    assert list(config.additional) == sorted(additional)


@given(additionals, additionals)
def test_other_additional_is_another_dataset(
    one: dict[str, object], other: dict[str, object]
) -> None:
    configs = [DataConfig("d", additional=a, storage="memory://x") for a in (one, other)]
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (configs[0] == configs[1]) == same
    assert (configs[0].dataset_prefix == configs[1].dataset_prefix) == same


def test_equal_numbers_of_other_types_are_other_datasets() -> None:
    configs = [DataConfig("d", additional={"v": v}) for v in (1, 1.0, True, "1")]
    assert len({c.dataset_prefix for c in configs}) == 4
    assert len(set(configs)) == 4
    assert all(a != b for a in configs for b in configs if a is not b)


def test_the_prefix_is_the_formats() -> None:
    """Stored datasets lie there, so it never changes."""
    texts = {
        '["digits",{}]': DataConfig("digits"),
        '["digits",{"split":"träin","v":1}]': DataConfig(
            "digits", additional={"v": 1, "split": "träin"}
        ),
    }
    for text, config in texts.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        assert config.dataset_prefix == f"digits/{digest[:16]}"


def test_numpy_scalars_become_json_scalars() -> None:
    values = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": np.str_("x")}
    config = DataConfig("d", additional=values)
    assert config == DataConfig("d", additional={"a": 3, "b": 0.5, "c": True, "d": "x"})


@pytest.mark.parametrize(
    ("additional", "text"),
    [
        ([("a", 1)], "additional: a dict of JSON scalars, not list"),
        ("split", "additional: a dict of JSON scalars, not str"),
        ({1: "a"}, "additional: keys are non-empty strings, not int"),
        ({"": "a"}, "additional: keys are non-empty strings, not ''"),
        ({"a": [1]}, "additional['a'] = [1]: a JSON scalar is needed (str, int, finite float,"),
        ({"a": {"b": 1}}, "additional['a'] = {'b': 1}: a JSON scalar is needed"),
        ({"a": float("nan")}, "additional['a'] = nan: a JSON scalar is needed"),
        ({"a": np.float32("inf")}, "additional['a'] = inf: a JSON scalar is needed"),
        ({"a": 1j}, "additional['a'] = 1j: a JSON scalar is needed"),
        ({"a": b"x"}, "additional['a'] = b'x': a JSON scalar is needed"),
        ({"a": "\ud800"}, "additional: text that is not valid Unicode: "),
        ({"\ud800": 1}, "additional: text that is not valid Unicode: "),
    ],
)
def test_wrong_additional_is_refused(additional: object, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig("d", additional=additional)  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


# Storage


@pytest.mark.parametrize(
    ("storage", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/some prefix", "s3://bucket/some prefix"),
        ("s3://bucket/%20+#?~ü@x", "s3://bucket/%20+#?~ü@x"),
        ("s3://my.bucket-1/a..b", "s3://my.bucket-1/a..b"),
        ("memory://x", "memory://x"),
        ("memory://x/", "memory://x"),
        ("memory://some name@home/y", "memory://some name@home/y"),
        ("file:///data", "file:///data"),
        ("file:///data/", "file:///data"),
        ("file:///a b/%20/~/#?", "file:///a b/%20/~/#?"),
        ("file:///data/x/../y", "file:///data/y"),
        ("/data", "file:///data"),
        (Path("/data/x"), "file:///data/x"),
        ("/data/s3:/x", "file:///data/s3:/x"),
    ],
)
def test_storage_is_taken_literally(storage: str, url: str) -> None:
    assert DataConfig("d", storage=storage).storage == url


def test_relative_and_home_paths_become_absolute_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    configs = [DataConfig("d", storage=s) for s in ("data", "./data/", Path("data"), "~/data", "~")]
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/elsewhere")
    assert [c.storage for c in configs] == [
        *[f"file://{tmp_path}/data"] * 3,
        "file:///home/someone/data",
        "file:///home/someone",
    ]


def test_without_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = DataConfig("d").storage
    assert folder.startswith(f"file://{tmp_path}/")
    assert folder.endswith("/storage_loader")
    assert DataConfig("d", endpoint="127.0.0.1:9000").storage == "s3://storage-loader"
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", "s3://other/x")
    assert DataConfig("d").storage == "s3://other/x"
    assert DataConfig("d", endpoint="127.0.0.1:9000").storage == "s3://other/x"
    assert DataConfig("d", storage="memory://x").storage == "memory://x"
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", "")
    assert DataConfig("d").storage == folder


@pytest.mark.parametrize(
    ("storage", "text"),
    [
        ("", "storage '': a URL or a folder's path"),
        ("  ", "storage '  ': a URL or a folder's path"),
        (5, "storage 5: a URL or a folder's path"),
        (b"/data", "storage b'/data': a URL or a folder's path"),
        ("/a\0b", "storage '/a\\x00b': a path holds no NUL byte"),
        ("file://data", "storage 'file://data': file:// takes an absolute path, file:///data/..."),
        ("file://", "storage 'file://': file:// takes an absolute path, file:///data/..."),
        ("memory://", "storage 'memory://': give it a name, memory://name"),
        ("memory:///", "storage 'memory:///': give it a name, memory://name"),
        ("gs://b/x", "storage 'gs://b/x': unknown scheme 'gs'; use s3://bucket/prefix, file:///"),
        ("S3://b/x", "storage 'S3://b/x': unknown scheme 'S3'; use s3://bucket/prefix, file:///"),
        (Path("s3://bucket/x"), "storage 's3:/bucket/x': a URL is a string with '://', s3://bucket/x"),
        ("file:/data", "storage 'file:/data': a URL is a string with '://', file://data"),
        ("s3//b/x", "storage 's3//b/x': did you mean 's3://b/x'? A folder is './s3/b/x'"),
        ("file///data", "storage 'file///data': did you mean 'file:///data'? A folder is '"),
        ("memory:x", "storage 'memory:x': a URL is a string with '://', memory://x"),
        ("s3://", "storage 's3://': '' is no bucket name (3 to 63 of a-z, 0-9, '.', '-')"),
        ("s3:///x", "storage 's3:///x': '' is no bucket name (3 to 63 of a-z, 0-9, '.', '-')"),
        ("s3://Bucket", "storage 's3://Bucket': 'Bucket' is no bucket name"),
        ("s3://bu", "storage 's3://bu': 'bu' is no bucket name"),
        ("s3://" + "b" * 64, f"storage 's3://{'b' * 64}': '{'b' * 64}' is no bucket name"),
        ("s3://-bucket", "storage 's3://-bucket': '-bucket' is no bucket name"),
        ("s3://b_cket/x", "storage 's3://b_cket/x': 'b_cket' is no bucket name"),
        ("s3://bucket/a//b", "storage 's3://bucket/a//b': a prefix has no empty, '.' or '..' part"),
        ("s3://bucket//a", "storage 's3://bucket//a': a prefix has no empty, '.' or '..' part"),
        ("s3://bucket/../a", "storage 's3://bucket/../a': a prefix has no empty, '.' or '..' part"),
        ("s3://bucket/.", "storage 's3://bucket/.': a prefix has no empty, '.' or '..' part"),
        ("s3://bucket/a\nb", "storage 's3://bucket/a\\nb': a prefix has no empty, '.' or '..'"),
        ("s3://bucket/a\x7f", "storage 's3://bucket/a\\x7f': a prefix has no empty, '.' or '..'"),
    ],
)  # fmt: skip
def test_wrong_storage_is_refused(storage: object, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig("d", storage=storage)  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"storage": f"s3://{ACCESS}:{SECRET}@bucket/x"},
        {"storage": f"S3://{ACCESS}:{SECRET}@bucket/x"},
        {"storage": f"https://{ACCESS}:{SECRET}@host:9000/bucket"},
        {"storage": "s3://bucket", "endpoint": f"http://{ACCESS}:{SECRET}@host:9000"},
        {"storage": "s3://bucket", "endpoint": f"{ACCESS}:{SECRET}@host:9000"},
        {"storage": "s3://bucket", "endpoint": f"ftp://{ACCESS}:{SECRET}@host:9000"},
        {"storage": "s3://bucket", "endpoint": f"http://[{ACCESS}:{SECRET}@host:9000"},
    ],
)
def test_keys_in_a_url_are_refused_and_not_repeated(settings: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"no keys in the \w+; use access_key= and secret_key="
    ) as e:
        DataConfig("d", **settings)  # type: ignore[arg-type]
    assert ACCESS not in str(e.value)
    assert SECRET not in str(e.value)


# Endpoint and keys


@pytest.mark.parametrize(
    ("endpoint", "secure", "url"),
    [
        ("127.0.0.1:9000", None, "https://127.0.0.1:9000"),
        ("127.0.0.1:9000", True, "https://127.0.0.1:9000"),
        ("127.0.0.1:9000", False, "http://127.0.0.1:9000"),
        ("http://host:9000", None, "http://host:9000"),
        ("http://host:9000/", False, "http://host:9000"),
        ("https://host", None, "https://host"),
        ("https://host", True, "https://host"),
        ("[::1]:9000", False, "http://[::1]:9000"),
        ("s3.example.com", None, "https://s3.example.com"),
    ],
)
def test_the_endpoints_scheme(endpoint: str, secure: bool | None, url: str) -> None:
    assert parse_endpoint(endpoint, secure).url == url
    config = DataConfig("d", storage="s3://bucket", endpoint=endpoint, secure=secure)
    assert (config.endpoint, config.secure) == (endpoint, secure)


@pytest.mark.parametrize(
    ("endpoint", "secure", "text"),
    [
        ("http://h:1", True, "endpoint 'http://h:1' contradicts secure=True; leave secure out"),
        ("https://h", False, "endpoint 'https://h' contradicts secure=False; leave secure out"),
        ("ftp://h", None, "endpoint 'ftp://h': the scheme is http or https"),
        ("s3://h", None, "endpoint 's3://h': the scheme is http or https"),
        *(
            (wrong, None, f"endpoint {wrong!r}: give host:port or http(s)://host:port")
            for wrong in [
                "http://", ":9000", "http://:9000", "h:99999", "h:0", "h:port", "h/path",
                "http://h/bucket", "h?x=1", "h#x", "a b", "h\n:9000", "h\t", "[", "[::1", "//h",
                "h\x01", "hö:9000",
            ]
        ),
        ("", None, "endpoint: a string, not an empty one; or leave it out"),
        (9000, None, "endpoint: a string, not int; or leave it out"),
    ],
)  # fmt: skip
def test_a_wrong_endpoint_is_refused(endpoint: object, secure: object, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig("d", storage="s3://bucket", endpoint=endpoint, secure=secure)  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"access_key": ACCESS}, "access_key is given without secret_key; give both or neither"),
        ({"secret_key": SECRET}, "secret_key is given without access_key; give both or neither"),
        ({"access_key": "", "secret_key": ""}, "access_key: a string, not an empty one; or leave"),
        ({"access_key": "", "secret_key": SECRET}, "access_key: a string, not an empty one; or"),
        (
            {"access_key": ACCESS, "secret_key": 42},
            "secret_key: a string, not int; or leave it out",
        ),
        ({"region": 1}, "region: a string, not int; or leave it out"),
        ({"secure": "false"}, "secure 'false': True, False or None"),
    ],
)
def test_wrong_s3_settings_are_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig("d", storage="s3://bucket", **settings)  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("endpoint", {"endpoint": "http://h:1"}),
        ("access_key", KEYS),
        ("secure", {"secure": False}),
        ("region", {"region": "eu-1"}),
    ],
)
@pytest.mark.parametrize("storage", ["memory://x", "/data"])
def test_s3_settings_elsewhere_are_refused(name: str, settings: dict, storage: str) -> None:
    url = DataConfig("d", storage=storage).storage
    with pytest.raises(ConfigError) as error:
        DataConfig("d", storage=storage, **settings)
    assert str(error.value) == f"{name} is for s3:// storage, not for {url!r}"


# The other settings


@pytest.mark.parametrize("size", [64 * 1024, 64 * 2**20, np.int64(2**20), 5 * 2**30])
def test_object_sizes(size: int) -> None:
    assert DataConfig("d", max_object_size=size).max_object_size == size
    assert type(DataConfig("d", max_object_size=size).max_object_size) is int


@pytest.mark.parametrize("size", [0, -1, 64 * 1024 - 1, 5 * 2**30 + 1, 1e6, "1MB", True, None])
def test_a_wrong_object_size_is_refused(size: object) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig("d", max_object_size=size)  # type: ignore[arg-type]
    assert str(error.value) == (
        f"max_object_size {size!r}: bytes, a whole number from 65536 (64 KiB) to 5368709120 (5 GiB)"
    )


def test_a_compressor() -> None:
    zstd = {"complib": "zstd", "complevel": 7, "shuffle": False}
    own = Attribute("y", "float32", (2,), compressor={"complib": "lz4"})
    config = DataConfig("d", [("x", "int64"), own, Attribute("z", "str", compressor=False)],
                        compressor=zstd)  # fmt: skip
    assert config.compressor == Codec("zstd", 7, False)
    lz4 = Codec("lz4", 1, True)
    assert config.codecs(config.schema) == {"x": config.compressor, "y": lz4}
    stored = Schema.of([("x", "int64"), ("y", "float32", (2,)), ("z", "str")])
    assert stored == config.schema
    assert stored.hash == config.schema.hash
    again = DataConfig.from_json(config.to_json())
    assert again == config
    assert again.codecs(stored) == config.codecs(stored)
    assert [a.compressor for a in again.attributes or ()] == [None, lz4, False]
    assert json.loads(config.to_json())["compressor"] == zstd
    assert "compressor" not in json.dumps(config.schema.to_json())
    assert DataConfig("d", compressor={}).compressor == Codec("zstd", 3, True)
    alone = DataConfig("d", compressor={"complib": "zlib"})
    assert alone.codecs(stored) == dict.fromkeys("xyz", Codec("zlib", 4, True))


@pytest.mark.parametrize(
    ("compressor", "error", "text"),
    [
        ("zstd", ConfigError, "compressor: a dict such as {'complib': 'zstd', 'complevel': 3}, "
         "not 'zstd'"),
        ({"complib": "bzip2"}, ConfigError, "compressor: unknown complib 'bzip2'; 'zstd' is the "
         "nearest there is; there are zlib, zstd, lz4, blosc:blosclz, blosc:lz4, blosc:lz4hc, "
         "blosc:zlib, blosc:zstd"),
        ({"complib": "lzo"}, ConfigError, "compressor: unknown complib 'lzo'; 'lz4' is"),
        ({"complib": "lzf"}, ConfigError, "compressor: unknown complib 'lzf'; 'lz4' is"),
        ({"complib": "gzip"}, ConfigError, "compressor: unknown complib 'gzip'; 'zlib' is"),
        ({"complib": "zsdt"}, ConfigError, "compressor: unknown complib 'zsdt'; did you"),
        ({"complib": 3}, ConfigError, "compressor: unknown complib 3"),
        ({"complevel": 23}, ConfigError, "compressor: complevel 23: of zstd from 1 to 22"),
        ({"complevel": True}, ConfigError, "compressor: complevel True: of zstd from 1 to 22"),
        ({"complib": "lz4", "complevel": 2}, ConfigError,
         "compressor: complevel 2: of lz4 1, the only one"),
        ({"shuffle": 1}, ConfigError, "shuffle 1"),
        ({"level": 3}, UnknownNameError, "unknown compressor key 'level'; did you"),
    ],
)  # fmt: skip
def test_a_compressor_that_there_is_not(compressor: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        DataConfig("d", compressor=compressor)
    assert str(caught.value).startswith(text)
    with pytest.raises(error) as caught:
        Attribute("x", "int64", compressor=compressor)
    if error is ConfigError and not text.startswith("shuffle"):
        assert str(caught.value).startswith(f"attribute 'x': {text}")


def test_attributes_are_checked() -> None:
    config = DataConfig("d", [("x", "int64"), Attribute("y", "bool", (2,))])
    assert config.attributes == (Attribute("x", "int64"), Attribute("y", "bool", (2,)))
    assert config.schema is not None
    assert config.schema.names == ("x", "y")
    assert DataConfig("d").attributes is DataConfig("d").schema is None
    with pytest.raises(SchemaError, match="a dataset needs at least one attribute"):
        DataConfig("d", [])


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("atributes", "unknown DataConfig keyword 'atributes'; did you mean 'attributes'?"),
        ("accesskey", "unknown DataConfig keyword 'accesskey'; did you mean 'access_key'?"),
        (
            "zzz",
            "unknown DataConfig keyword 'zzz'; valid: 'access_key', 'additional', 'attributes'",
        ),
    ],
)
def test_an_unknown_keyword_names_the_nearest(keyword: str, text: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        DataConfig("d", **{keyword: 1})  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


def test_a_config_is_a_frozen_value() -> None:
    config = s3(additional={"a": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.storage = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.additional["a"] = 2  # type: ignore[index]
    assert config == s3(additional={"a": 1})
    assert hash(config) == hash(s3(additional={"a": 1}))
    assert config != s3(additional={"a": 1}, region="eu-1")
    assert config != s3(additional={"a": 1}, secret_key="another")
    assert config != "config"
    assert dataclasses.replace(config, region="eu-1").region == "eu-1"
    assert dataclasses.replace(config, additional={}).additional == {}


def test_the_callers_dict_is_not_kept() -> None:
    additional: dict[str, int | str] = {"a": 1}
    config = DataConfig("d", additional=additional)
    additional["a"] = 2
    assert config.additional == {"a": 1}


def test_making_a_config_touches_nothing(tmp_path: Path) -> None:
    DataConfig("d", [("x", "int8")], storage=tmp_path / "new")
    s3(endpoint="http://127.0.0.1:1")
    assert os.listdir(tmp_path) == []


# Text forms

configs = st.builds(
    DataConfig,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    st.none() | st.just([("x", "int64"), ("y z", "bfloat16", (2, 0))]),
    additionals,
    storage=st.sampled_from(["s3://bucket/a b", "s3://bucket"]),
    endpoint=st.none() | st.just("http://h:9000"),
    region=st.none() | st.just("eu-1"),
    secure=st.none() | st.just(False),
    max_object_size=st.integers(2**16, 5 * 2**30),
)


@given(configs)
def test_json_round_trips(config: DataConfig) -> None:
    assert DataConfig.from_json(config.to_json()) == config
    assert DataConfig.from_json(config.to_json().encode()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert copy.copy(config) == config


def test_files_round_trip(tmp_path: Path) -> None:
    config = DataConfig("d", [("x", "int64")], {"split": "träin"}, storage="memory://x")
    config.save(tmp_path / "config.json")
    assert DataConfig.load(tmp_path / "config.json") == config
    assert DataConfig.load(str(tmp_path / "config.json")) == config
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == config.to_json() + "\n"
    with pytest.raises(FileNotFoundError):
        DataConfig.load(tmp_path / "missing.json")
    broken = tmp_path / "broken.json"
    for data, kind, text in [
        (b'{"dataset_name": "\xff"}', ConfigError, "config: not JSON"),
        (b'{"dataset_name": "a b"}', ConfigError, "dataset_name 'a b': 1 to 128 letters"),
        (b'{"dataset_name": "d", "sotrage": 1}', UnknownNameError, "unknown config key 'sotrage'"),
        (b'{"dataset_name": "d", "attributes": [5]}', SchemaError, "an attribute is an object"),
    ]:  # fmt: skip
        broken.write_bytes(data)
        with pytest.raises(kind) as caught:
            DataConfig.load(broken)
        assert str(caught.value).startswith(f"{broken}: {text}")


def test_a_config_moved_elsewhere_names_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = DataConfig("d", storage="data").to_json()
    monkeypatch.chdir("/")
    assert DataConfig.from_json(text).storage == f"file://{tmp_path}/data"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ConfigError, "config: not JSON: "),
        ("{", ConfigError, "config: not JSON: "),
        (b"\xff\xff", ConfigError, "config: not JSON: "),
        ("[]", ConfigError, "config: a JSON object is needed, not list"),
        ("null", ConfigError, "config: a JSON object is needed, not NoneType"),
        ("{}", ConfigError, "config: 'dataset_name' is missing"),
        ('{"dataset_name": "d", "storag": 1}', UnknownNameError,
         "unknown config key 'storag'; did you mean 'storage'?"),
        ('{"dataset_name": "d", "secret_key": "x"}', ConfigError,
         "config: keys do not belong in a text; leave them out and set AWS_ACCESS_KEY_ID and "),
        ('{"dataset_name": 5}', ConfigError, "dataset_name 5: 1 to 128 letters"),
        ('{"dataset_name": "d", "storage": 5}', ConfigError, "storage 5: a URL or a folder's path"),
        ('{"dataset_name": "d", "attributes": {}}', SchemaError, "attributes: a list, not dict"),
        ('{"dataset_name": "d", "additional": {"a": NaN}}', ConfigError, "additional['a'] = nan"),
        ('{"dataset_name": "d", "max_object_size": "1"}', ConfigError, "max_object_size '1': "),
    ],
)  # fmt: skip
def test_wrong_json_is_refused(text: str | bytes, error: type, message: str) -> None:
    with pytest.raises(error) as raised:
        DataConfig.from_json(text)
    assert str(raised.value).startswith(message)


def test_secrets_stay_out_of_every_text_but_travel_to_workers(tmp_path: Path) -> None:
    config = s3()
    config.save(tmp_path / "config.json")
    texts = [
        repr(config),
        str(config),
        f"{config}",
        config.to_json(),
        (tmp_path / "config.json").read_text(),
        repr(config.identity),
        config.dataset_prefix,
    ]
    assert [t for t in texts if ACCESS in t or SECRET in t] == []
    restored = DataConfig.from_json(config.to_json())
    assert (restored.access_key, restored.secret_key) == (None, None)
    assert dataclasses.replace(restored, **KEYS) == config  # type: ignore[arg-type]
    pickled = pickle.dumps(config)
    assert ACCESS.encode() in pickled
    assert SECRET.encode() in pickled
    assert pickle.loads(pickled) == config
