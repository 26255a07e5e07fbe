"""Unknown names are errors that suggest the nearest valid one; every error is in one tree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_loader import DataConfig, DataLoader, DataSaver, Dataset, errors
from storage_loader.errors import ConfigError, StorageLoaderError, UnknownNameError
from storage_loader.keywords import (
    _MEANT,
    _TORCHS,
    checked_keywords,
    handed_on,
    nearest,
    reject_unknown,
)


@checked_keywords
def paint(color: str, *, width: int = 1) -> tuple[str, int]:
    """A function to decorate."""
    return color, width


class Brush:
    @checked_keywords
    def __init__(self, width: int = 1) -> None:
        self.width = width


class Frame(Brush):
    """Repeats the keywords of what it hands them on to."""

    @checked_keywords
    def __init__(self, width: int = 1, *, glass: bool = True) -> None:
        super().__init__(**handed_on(locals(), Brush))
        self.glass = glass


def test_known_keywords_pass() -> None:
    assert paint("red", width=2) == ("red", 2)
    assert paint(color="red") == ("red", 1)
    assert Brush(width=3).width == 3
    assert vars(Frame(glass=False, width=2)) == {"width": 2, "glass": False}
    assert paint.__name__ == "paint"
    assert list(inspect.signature(paint).parameters) == ["color", "width"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: paint("red", widht=2), "unknown paint keyword 'widht'; did you mean 'width'?"),
        (lambda: paint(colour="red"), "unknown paint keyword 'colour'; did you mean 'color'?"),
        (lambda: paint("x", zzz=1), "unknown paint keyword 'zzz'; valid: 'color', 'width'"),
        (lambda: Frame(widht=2), "unknown Frame keyword 'widht'; did you mean 'width'?"),
        (lambda: Frame(gloss=2), "unknown Frame keyword 'gloss'; did you mean 'glass'?"),
        (lambda: Frame(settings=2), "unknown Frame keyword 'settings'; valid: 'glass', 'width'"),
        (lambda: Brush(wdth=1), "unknown Brush keyword 'wdth'; did you mean 'width'?"),
        (lambda: Brush(self=1), "unknown Brush keyword 'self'; valid: 'width'"),
        (lambda: paint("red", 2), "paint(color, 2): name what follows color, e.g. width=2"),
        (lambda: Frame(1, False), "Frame(width, False): name what follows width, e.g. glass=False"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(call, text: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        call()
    assert str(error.value) == text
    assert isinstance(error.value, TypeError)


def test_a_missing_argument_stays_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'color'"):
        paint()


def test_the_first_unknown_name_is_reported() -> None:
    reject_unknown(["a", "b"], ["b", "a", "c"], what="key")
    reject_unknown([], [], what="key")
    with pytest.raises(UnknownNameError, match="unknown key 'x'; valid: 'a', 'b'"):
        reject_unknown(["a", "x", "y"], iter(["b", "a"]), what="key")
    with pytest.raises(UnknownNameError, match=r"unknown key 'x'$"):
        reject_unknown(["x"], [], what="key")


@pytest.mark.parametrize(
    ("name", "valid", "ending"),
    [
        ("tagret", ["image", "target"], "; did you mean 'target'?"),
        ("zz", ["image", "target"], "; valid: 'image', 'target'"),
        ("zz", [], ""),
        (5, ["image"], "; valid: 'image'"),
    ],
)
def test_nearest(name, valid: list[str], ending: str) -> None:
    assert nearest(name, valid) == ending


ERRORS = [e for _, e in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize(
    ("error", "standard"),
    [
        (errors.ConfigError, ValueError),
        (errors.UnknownNameError, TypeError),
        (errors.SchemaError, ValueError),
        (errors.CastError, ValueError),
        (errors.DatasetNotFoundError, FileNotFoundError),
        (errors.VersionNotFoundError, LookupError),
        (errors.FormatError, ValueError),
        (errors.ChecksumError, ValueError),
        (errors.SaverError, RuntimeError),
        (errors.LoaderError, RuntimeError),
        (errors.LoaderAttributeError, AttributeError),
        (errors.StoreError, OSError),
        (errors.ObjectNotFoundError, FileNotFoundError),
        (errors.ObjectExistsError, FileExistsError),
        (errors.BucketNotFoundError, FileNotFoundError),
        (errors.FolderNotFoundError, FileNotFoundError),
        (errors.PermissionDeniedError, PermissionError),
        (errors.StoreConnectionError, ConnectionError),
        (errors.StoreTimeoutError, TimeoutError),
    ],
)
def test_each_error_is_a_standard_one_too(error: type, standard: type) -> None:
    assert issubclass(error, standard)
    assert issubclass(error, StorageLoaderError)
    assert str(error("a text")) == "a text"


def test_every_error_is_in_the_tree() -> None:
    assert all(issubclass(e, StorageLoaderError) for e in ERRORS)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bucket", "did you mean storage='s3://bucket/prefix'?"),
        ("path", "did you mean 'storage'?"),
        ("endpoint_url", "did you mean 'endpoint'?"),
        ("aws_secret_access_key", "did you mean 'secret_key'?"),
        ("name", "did you mean 'dataset_name'?"),
        ("columns", "did you mean 'attributes'?"),
    ],
)
def test_what_others_call_it_names_what_it_is_called_here(name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        DataConfig("guesses", **{name: "x"})
    assert str(caught.value) == f"unknown DataConfig keyword {name!r}; {hint}"


def test_what_others_call_it_is_no_hint_where_there_is_no_such_thing() -> None:
    assert not {name for name in _MEANT if name in inspect.signature(DataConfig).parameters}
    with pytest.raises(UnknownNameError, match=r"unknown key 'bucket'; valid: 'a'$"):
        reject_unknown(["bucket"], ["a"], what="key")


def test_a_loader_of_arrays_points_to_those_that_know_devices(memory: dict[str, str]) -> None:
    config = DataConfig("devices", **memory)
    for name, module in (("device", "torch"), ("sharding", "jax")):
        with pytest.raises(UnknownNameError) as caught:
            DataLoader(config, **{name: "cuda:0"})
        assert str(caught.value) == (
            f"unknown DataLoader keyword {name!r}; storage_loader.{module}.DataLoader takes it"
        )
    valid = ["device", "seed"]  # as in the torch module
    with pytest.raises(UnknownNameError, match=r"'sharding'; did you mean 'device'\?$"):
        reject_unknown(["sharding"], valid, what="DataLoader keyword")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("sampler", "rows are ordered by shuffle=, seed= and subset="),
        ("batch_sampler", "storage_loader.torch.Dataset goes under torch's DataLoader"),
        ("collate_fn", "transform= gets each batch"),
        ("pin_memory", "storage_loader.torch.DataLoader(device='cuda')"),
        ("pin_memory_device", "give storage_loader.torch.DataLoader the device"),
        ("prefetch_factor", "prefetch= says how many bytes are fetched ahead"),
        ("persistent_workers", "live as long as the loader"),
        ("worker_init_fn", "transform=, which can prepare itself"),
        ("multiprocessing_context", "always spawned"),
        ("timeout", "DataConfig(timeout=, deadline=)"),
        ("generator", "set_epoch() chooses one"),
        ("in_order", "batches always come in order"),
    ],
)
def test_what_torchs_loader_takes_is_answered(name: str, instead: str, tmp_path: Path) -> None:
    config = DataConfig("torchs", storage=tmp_path)
    with pytest.raises(UnknownNameError) as caught:
        DataLoader(config, **{name: 1})
    assert str(caught.value).startswith(f"unknown DataLoader keyword {name!r}; ")
    assert instead in str(caught.value)
    known = {*inspect.signature(DataLoader).parameters, "dataset", name}
    assert set(inspect.signature(torch_loader()).parameters) - set(_TORCHS) - known == set()


def torch_loader() -> Callable[..., object]:
    data = pytest.importorskip("torch.utils.data")
    loader: Callable[..., object] = data.DataLoader
    return loader


def test_what_a_dataset_does_not_take_is_a_loaders(tmp_path: Path) -> None:
    config = DataConfig("torchs", storage=tmp_path)
    for name in ("batch_size", "shuffle", "seed", "subset", "num_workers", "drop_last"):
        with pytest.raises(UnknownNameError) as caught:
            Dataset(config, **{name: 1})
        assert str(caught.value) == f"unknown Dataset keyword {name!r}; DataLoader takes it"


@pytest.mark.parametrize("value", ["false", "no", 0, 1, None])
def test_a_flag_is_true_or_false_and_nothing_like_it(value: object, tmp_path: Path) -> None:
    config = DataConfig("flags", [("x", "int64")], storage=tmp_path)
    message = rf"^\w+ {value!r}: True or False$"
    for name in ("refresh", "progress"):
        with pytest.raises(ConfigError, match=message):
            DataSaver(config, **{name: value})  # type: ignore[arg-type]
    for name in ("as_tuple", "index", "drop_last"):
        with pytest.raises(ConfigError, match=message):
            DataLoader(config, **{name: value})  # type: ignore[arg-type]


def test_the_nearest_name_is_found_in_any_case() -> None:
    assert nearest("X", ["x", "why"]) == "; did you mean 'x'?"
    assert nearest("batchsize", ["BATCH_SIZE"]) == "; did you mean 'BATCH_SIZE'?"
