"""Keys reach the server's client and nothing else: no text, log, error, file or name holds them."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import logging
import os
import pickle
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from storage_loader import (
    Attribute,
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    collect_garbage,
    commit_log,
    delete,
    drop_commit,
    list_datasets,
    save,
    split,
    verify_dataset,
)
from storage_loader.catalog import dataset_info
from storage_loader.credentials import Credentials
from storage_loader.errors import ConfigError, StorageLoaderError, StoreConnectionError, StoreError
from storage_loader.keywords import shown
from storage_loader.store import Store
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.minio_s3 import MinioS3
from storage_loader.store.s3_place import Failure, S3Place, raise_mapped
from tests.support.rows import config, make, numbers_in

# moto's, which runs in this process; its log says what it was sent.
SERVERS_OWN = ("werkzeug", "moto", "botocore", "boto3")


def chained(error: BaseException | None) -> list[str]:
    """All that an error shows: its text, that of its causes, the whole traceback."""
    texts = ["".join(traceback.format_exception(error))] if error else []
    while error is not None:
        texts += [str(error), repr(error), repr(error.args), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return texts


def test_no_text_file_or_log_holds_the_keys(
    s3_storage: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.captureWarnings(True)
    the_config = config(s3_storage)
    saver = DataSaver(the_config)
    with saver:
        saver(make(range(20)))
    loader = DataLoader(the_config, batch_size=5, shuffle=True, cache_dir=tmp_path / "cache")
    assert sorted(numbers_in(loader)) == list(range(20))
    index = DataLoader(the_config, batch_size=5, index=True, num_workers=1)
    assert numbers_in(index) == list(range(20))
    dataset = Dataset(the_config)
    row = dataset[3]
    the_config.save(tmp_path / "config.json")
    infos = list_datasets(**s3_storage)
    place = S3Place.of(the_config)
    clients: list[Store] = [DirectS3(place), MinioS3(place)]
    texts = [
        *map(repr, (the_config, saver, loader, index, dataset, loader.stats, infos, row, place)),
        *map(str, (the_config, loader.version, dataset.spec, loader.state_dict(), index.stats)),
        the_config.to_json(),
        repr(the_config.identity),
        *(repr(pickle.dumps(value)) for value in (dataset.open(), loader.state_dict(), row)),
    ]
    del index  # and its worker: from here on errors hold this frame for a while
    for client in clients:
        stored = {info.key: bytes(client.get(info.key)) for info in client.list()}
        texts += [repr(stored), repr(client), client.url, client.origin]
        client.put("some/key", b"x", create=True)
        client.delete(["some/key"])
    gone = {**s3_storage, "storage": "s3://no-such-bucket-at-all"}
    dead = {**s3_storage, "endpoint": "http://127.0.0.1:1"}
    for wrong in (gone, dead):
        for read in (lambda w: Dataset(config(w)).open(), lambda w: list_datasets(**w)):
            with pytest.raises(StorageLoaderError) as caught:
                read(wrong)
            texts += chained(caught.value)
    for client in clients:
        with pytest.raises(StoreError) as failed:
            client.get("no such object")
        texts += chained(failed.value)
    texts += [
        f"{record.name} {record.getMessage()} {vars(record)}"
        for record in caplog.records
        if not record.name.startswith(SERVERS_OWN)
    ]
    texts += [f"{path} {path.read_bytes()!r}" for path in tmp_path.rglob("*") if path.is_file()]
    assert len(texts) > 20
    for secret in (s3_storage["access_key"], s3_storage["secret_key"]):
        for form in (secret, quote(secret, safe="")):
            assert [text[:300] for text in texts if form in text] == []
    logging.captureWarnings(False)


def refused(place: S3Place, said: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        raise_mapped(place, Failure("get", "a/b", detail=said), ValueError(said))
    return caught.value


@pytest.mark.parametrize("key", ["a", "at", "minio", "key"])
def test_short_keys_do_not_mangle_texts(key: str) -> None:
    place = S3Place("bucket", "", "http://127.0.0.1:9000", "us-east-1", key, key)
    said = f"what the minio key {key} says at a bucket"
    error = refused(place, said)
    assert str(error) == f"get s3://bucket/a/b at http://127.0.0.1:9000: {said}"


def test_long_keys_are_taken_out_however_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    secret, token = "a+very/secret+key", "session/token=="
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    place = S3Place("bucket", "", "http://127.0.0.1:9000", "us-east-1", "an access key", secret)
    said = f"an access key, {secret}, {quote(secret, safe='')}, {token}, {quote(token, safe='')}"
    error = refused(place, said)
    assert str(error).endswith(": ***, ***, ***, ***, ***")
    for text in chained(error):
        if "raise_mapped" not in text and "said" not in text:  # a traceback shows source lines
            assert secret not in text
    assert secret not in str(error.__cause__)


# Keys where they do not belong


SECRET = "wJalrXUt/nFEMIbPxRfiCY+KEYEXAMPLE"
ACCESS = "AKIAIOSFODNN7EXAMPLE"
SETTINGS = {"storage": "s3://bucket", "access_key": ACCESS, "secret_key": SECRET}
IN_A_URL = [
    f"s3:/{ACCESS}:{SECRET}@b",
    f"s3://{ACCESS}:{SECRET}@bucket/prefix",
    f"s3:{ACCESS}:{SECRET}@bucket",
    f"s3://{ACCESS}:{SECRET}/bucket",
    f"s3://b?secret_key={SECRET}",
    f"s3://bucket/prefix?secret_key={SECRET}&access_key={ACCESS}",
    f"s3://bucket/prefix?region=x&aws_secret_access_key={SECRET}",
    f"s3//{ACCESS}:{SECRET}@bucket",
    f"s3a://{ACCESS}:{SECRET}@bucket",
    f"https://{ACCESS}:{SECRET}@host/bucket",
    f"https://host/bucket?X-Amz-Credential={ACCESS}&X-Amz-Signature={SECRET}",
    f"s3:/b?secret_key={SECRET}",
    f"file://host?secret_key={SECRET}",
    f"memory://?secret_key={SECRET}",
]
KEYS = {"access_key": ACCESS, "secret_key": SECRET}
TAKERS: dict[str, Any] = {
    "DataLoader": DataLoader,
    "Dataset": Dataset,
    "DataSaver": DataSaver,
    "save": lambda config: save(config, {}),
    "delete": delete,
    "verify_dataset": verify_dataset,
    "collect_garbage": collect_garbage,
    "commit_log": commit_log,
    "drop_commit": lambda config: drop_commit(config, "x"),
    "split": lambda config: split(config, [0.5, 0.5]),
    "dataset_info": dataset_info,
}


def assert_hidden(error: BaseException) -> None:
    """Frames of this file hold the secret by the test's own hand; what errors hold is asserted."""
    one: BaseException | None = error
    while one is not None:
        for text in (str(one), repr(one), repr(one.args), repr(vars(one))):
            for part in (SECRET, SECRET.split("/")[1], ACCESS):
                assert part not in text
        one = one.__cause__ or one.__context__


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    "given",
    [
        {"dataset_name": "x", **SETTINGS},
        [SETTINGS],
        ("x", {"nested": {"deep": SETTINGS}}),
        json.dumps(SETTINGS),
        f"s3://{ACCESS}:{SECRET}@bucket",
    ],
    ids=["dict", "list", "nested", "json", "url"],
)
def test_what_is_given_instead_of_a_config_is_not_shown(taker: str, given: Any) -> None:
    text = rf"takes a DataConfig, not {type(given).__name__}($|; give)"
    with pytest.raises(ConfigError, match=text) as e:
        TAKERS[taker](given)
    assert_hidden(e.value)


@pytest.mark.parametrize("url", IN_A_URL)
def test_keys_in_a_url_are_refused_and_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(make: Any) -> None:
        with pytest.raises(StorageLoaderError) as caught:
            make()
        assert_hidden(caught.value)

    refused(lambda: DataConfig("x", storage=url))
    refused(lambda: DataConfig.from_json(json.dumps({"dataset_name": "x", "storage": url})))
    refused(lambda: list_datasets(url))
    refused(lambda: DataConfig("x", storage="s3://bucket", endpoint=url))
    refused(lambda: DataConfig("x", storage="s3://bucket", endpoint=url, secure=True))
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", url)
    refused(lambda: DataConfig("x"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    refused(lambda: S3Place.of(DataConfig("x", storage="s3://bucket")))


@pytest.mark.parametrize(
    "make",
    [
        DataConfig,
        lambda v: DataConfig("x", storage=v),
        lambda v: DataConfig("x", attributes=[v]),
        lambda v: DataConfig("x", attributes=[("a", v)]),
        lambda v: DataConfig("x", attributes=[("a", "int8", v)]),
        lambda v: DataConfig("x", additional={"a": v}),
        lambda v: DataConfig("x", additional={"secret_key": [SECRET]}),
        lambda v: DataConfig("x", additional=[v]),
        lambda v: DataConfig("x", additional={(SECRET,): 1}),
        lambda v: DataConfig("x", storage="s3://bucket", endpoint=v),
        lambda v: DataConfig("x", storage="s3://bucket", region=v),
        lambda v: DataConfig("x", storage="s3://bucket", secure=v),
        lambda v: DataConfig("x", credentials=v),
        lambda v: DataConfig("x", max_object_size=v),
        lambda v: DataConfig("x", timeout=v),
        lambda v: DataConfig("x", deadline=v),
        lambda v: DataConfig.from_json(json.dumps(SETTINGS)),
        lambda v: DataConfig.from_json(json.dumps(SETTINGS)[:-1]),
        lambda v: DataConfig.from_json(json.dumps(SETTINGS)[:-1].encode() + b"\xff"),
        lambda v: DataConfig.from_json(json.dumps({"dataset_name": v})),
        lambda v: DataConfig.from_json(json.dumps({"dataset_name": "x", "attributes": v})),
        lambda v: DataConfig.from_json(json.dumps({"dataset_name": "x", "attributes": [v]})),
        list_datasets,
        lambda v: list_datasets("memory://x", name=v),
        lambda v: list_datasets("memory://x", where=[v]),
        lambda v: DataLoader(config({"storage": "memory://x"}), batch_size=v),
        lambda v: DataLoader(config({"storage": "memory://x"}), shuffle=v),
        lambda v: DataLoader(config({"storage": "memory://x"}), last_batch=v),
        lambda v: DataLoader(config({"storage": "memory://x"}), extras=[v]),
        lambda v: DataLoader(config({"storage": "memory://x"}), transform=v),
        lambda v: DataLoader(config({"storage": "memory://x"}), cache_dir=v),
        lambda v: DataLoader(config({"storage": "memory://x"}), verify=v),
        lambda v: DataLoader(config({"storage": "memory://x"})).load_state_dict(v),
        lambda v: DataSaver(config({"storage": "memory://x"}), writer=v),
        lambda v: DataSaver(config({"storage": "memory://x"}), num_worker_threads=v),
        lambda v: DataSaver(config({"storage": "memory://x"}), commit_every=v),
        lambda v: DataSaver(config({"storage": "memory://x"}), refresh=v),
        lambda v: collect_garbage(config({"storage": "memory://x"}), grace=v),
        lambda v: verify_dataset(config({"storage": "memory://x"}), num_threads=v),
    ],
)
def test_settings_in_the_place_of_a_value_are_not_shown(make: Any) -> None:
    with pytest.raises(StorageLoaderError) as caught:
        make({"nested": [SETTINGS], **SETTINGS})
    assert_hidden(caught.value)


def test_a_wrong_value_is_shown_where_it_holds_no_key() -> None:
    for value, text in [
        ({"a": 1, "access_key": None}, "{'a': 1, 'access_key': ***}"),
        ({"token": "t", "max_tokens": 5}, "{'max_tokens': ***, 'token': ***}"),
        ("s3://bucket/a@b", "'s3://***@b'"),
        ("http://127.0.0.1:9000/x", "'http://127.0.0.1:9000/x'"),
        ("a folder/with: a colon", "'a folder/with: a colon'"),
    ]:
        assert shown(value) == text


# Objects that were not made


def test_what_could_not_be_made_has_a_repr() -> None:
    """A debugger asks for it, and so does what prints the frames of a traceback."""
    the_config = config({"storage": "memory://half-made"})
    for kind, wrong in [
        (DataConfig, {"dataset_name": "a//b"}),
        (Attribute, {"name": "/", "dtype": "int8"}),
        (Attribute, {"name": "a", "dtype": "no such"}),
        (DataLoader, {"config": the_config, "shuffle": 3}),
        (DataLoader, {"config": the_config, "index": 3}),
        (DataLoader, {"config": None}),
        (Dataset, {"config": None}),
        (Dataset, {"config": the_config, "as_tuple": 3}),
        (DataSaver, {"config": None}),
        (DataSaver, {"config": the_config, "refresh": 3}),
        (DataSaver, {"config": the_config, "commit_every": "x"}),
        (Credentials, {"access_key": SECRET, "secret_key": ""}),
    ]:
        half = kind.__new__(kind)
        assert kind.__name__ in repr(half)
        with pytest.raises(StorageLoaderError):
            half.__init__(**wrong)
        assert kind.__name__ in repr(half)
        assert SECRET not in repr(half)


def test_what_is_made_has_the_repr_of_its_values() -> None:
    made = DataConfig("x", [("a", "int8")], {"k": 1}, "s3://bucket", **KEYS)
    assert repr(made) == (
        "DataConfig(dataset_name='x', attributes=(Attribute(name='a', dtype='int8', shape=()),), "
        "additional=mappingproxy({'k': 1}), storage='s3://bucket', endpoint=None, secure=None, "
        "region=None, compressor=None, max_object_size=67108864, timeout=20.0, deadline=120.0)"
    )


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that nobody else signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + signed.public_bytes(pem)
    )
    return path


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.send_header("Last-Modified", "Fri, 20 Nov 2026 12:00:00 GMT")
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, *args: Any) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, address: Any) -> None:
        pass  # a client that refused us


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[_Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with _Server(("127.0.0.1", 0), _Answers) as server:
        server.seen = []  # type: ignore[attr-defined]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def place_at(server: _Server, scheme: str) -> S3Place:
    endpoint = f"{scheme}127.0.0.1:{server.server_port}"
    keys = {"access_key": "an access key", "secret_key": "a secret key"}
    return S3Place.of(DataConfig("x", storage="s3://bucket", endpoint=endpoint, **keys))


@pytest.mark.parametrize("client", [DirectS3, MinioS3])
@pytest.mark.parametrize("scheme", ["https://", ""])
def test_a_server_whose_certificate_is_not_trusted_is_refused(
    tls_server: Any, client: type[Store], scheme: str
) -> None:
    place = place_at(tls_server, scheme)
    with pytest.raises(StoreError, match=r"certificate is not trusted: .* SSL_CERT_FILE") as caught:
        client(place).get("a/b")  # type: ignore[call-arg]
    assert f"at https://127.0.0.1:{tls_server.server_port}: " in str(caught.value)
    assert tls_server.seen == []


@pytest.mark.parametrize("client", [DirectS3, MinioS3])
def test_a_certificate_of_ones_own_ca_can_be_trusted(
    tls_server: Any, client: type[Store], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert bytes(client(place_at(tls_server, "https://")).get("a/b")) == b"hi"  # type: ignore[call-arg]


def test_a_certificate_of_another_name_is_refused(
    tls_server: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    place = replace(
        place_at(tls_server, ""), endpoint=f"https://localhost:{tls_server.server_port}"
    )
    with pytest.raises(StoreError, match="certificate is not trusted"):
        DirectS3(place).get("a/b")
    assert tls_server.seen == []


@pytest.mark.parametrize("client", [DirectS3, MinioS3])
def test_no_key_is_sent_without_tls_unless_asked_for(client: type[Store]) -> None:
    """An endpoint without a scheme means https: to a server that has none nothing is said."""
    with _Server(("127.0.0.1", 0), _Answers) as server:
        server.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(
                StoreConnectionError, match="needs an endpoint that begins with http://"
            ):
                client(place_at(server, "")).get("a/b")  # type: ignore[call-arg]
            assert server.seen == []  # type: ignore[attr-defined]
            assert bytes(client(place_at(server, "http://")).get("a/b")) == b"hi"  # type: ignore[call-arg]
        finally:
            server.shutdown()
            thread.join()


FORKED = """
import os, sys
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.s3_place import S3Place

store = DirectS3(S3Place("bucket", "", sys.argv[1], "us-east-1", "access", "secret"))
assert store.get("key") == b"hi"
pid = os.fork()
if not pid:
    sys.exit()  # the interpreter's own end, which frees all that it has
assert os.waitpid(pid, 0)[1] == 0
assert store.get("key") == b"hi"
"""


def test_a_child_that_ends_says_no_goodbye_to_the_parents_server(
    tls_server: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Answers, "protocol_version", "HTTP/1.1")  # connections stay
    ports: set[int] = set()

    class Answers(_Answers):
        def do_GET(self) -> None:
            ports.add(self.client_address[1])
            super().do_GET()

    tls_server.RequestHandlerClass = Answers
    tls_server.daemon_threads = True
    done = subprocess.run(
        [sys.executable, "-c", FORKED, f"https://127.0.0.1:{tls_server.server_port}"],
        capture_output=True,
        text=True,
        env={**os.environ, "SSL_CERT_FILE": str(certificate)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(tls_server.seen) == 2
    assert len(ports) == 1
