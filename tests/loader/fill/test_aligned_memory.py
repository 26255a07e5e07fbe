"""Memory of batches and windows that is used again: never while anything lies on it."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, DataLoader
from storage_loader.loader.fill import memory as memory_module
from storage_loader.loader.fill.memory import ALIGNMENT, AlignedMemory, ReusedMemory
from tests.support.rows import ROW, assert_rows, save_rows

LARGE = 2**16


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, LARGE - 1, LARGE, LARGE + 1])
def test_every_piece_is_aligned_and_alone(nbytes: int) -> None:
    memory = AlignedMemory()
    pieces = [memory.empty(nbytes) for _ in range(20)]
    for number, piece in enumerate(pieces):
        assert (piece.dtype, piece.shape) == (np.uint8, (nbytes,))
        assert address(piece) % ALIGNMENT == 0
        piece[...] = number
    for number, piece in enumerate(pieces):
        assert (piece == number).all()


def test_a_piece_is_given_again_once_nothing_lies_on_it() -> None:
    memory = AlignedMemory()
    piece = memory.empty(LARGE)
    place = address(piece)
    view = piece.view(np.float32).reshape(2, -1)[1:]
    del piece
    gc.collect()
    assert address(memory.empty(LARGE)) != place  # the view lies on it
    del view
    assert address(memory.empty(LARGE)) == place


def test_a_piece_is_given_to_its_size_alone() -> None:
    memory = AlignedMemory()
    place = address(memory.empty(LARGE))
    assert memory.empty(2 * LARGE).nbytes == 2 * LARGE
    assert address(memory.empty(LARGE)) == place


def test_two_free_pieces_of_a_size_are_kept() -> None:
    memory = AlignedMemory()
    pieces = [memory.empty(LARGE) for _ in range(10)]
    del pieces
    assert memory.num_free == 2


def test_a_window_gets_any_piece_that_is_enough_and_one_that_is_not_goes() -> None:
    memory = ReusedMemory()
    place = address(memory.empty(3 * LARGE))
    for nbytes in (2 * LARGE, 3 * LARGE, LARGE):
        piece = memory.empty(nbytes)
        assert (piece.nbytes, address(piece)) == (nbytes, place)
        del piece
    larger = memory.empty(3 * LARGE + 1)
    assert larger.nbytes == 3 * LARGE + 1
    assert memory.num_free == 0


def test_memory_outlives_its_giver_and_stays_at_home() -> None:
    memory = AlignedMemory()
    piece = memory.empty(LARGE)
    piece[...] = 7
    copy = pickle.loads(pickle.dumps(memory))
    assert copy.num_free == 0
    del memory
    gc.collect()
    assert (piece == 7).all()


WINDOWS = [
    Attribute(ROW, "int64"),
    Attribute("fixed", "uint8", (2000,)),
    Attribute("any", "int32", (None,)),
    Attribute("text", "str"),
]


def windowed(storage: dict[str, str], compressor: dict[str, str] | None) -> DataLoader:
    config = DataConfig("windows", WINDOWS, compressor=compressor, **storage)
    save_rows(config, 1000, 100)
    return DataLoader(config, 10, shuffle=True, window=100)  # of 200 kB and more


def test_two_pieces_of_memory_serve_all_windows_that_are_decoded(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = windowed(memory, {"complib": "lz4"})
    list(loader)
    made, new = [], memory_module._aligned

    def counted(nbytes: int) -> np.ndarray:
        made.append(nbytes)
        return new(nbytes)

    monkeypatch.setattr(memory_module, "_aligned", counted)
    for _ in range(5):
        list(loader)
    fixed = [nbytes for nbytes in made if nbytes >= 100 * 2000]
    assert len(fixed) <= 2  # of 50 windows


@pytest.mark.parametrize("compressor", [{"complib": "lz4"}, None], ids=str)
def test_windows_of_several_epochs_at_once_keep_apart(
    storage: dict[str, str], compressor: dict[str, str] | None
) -> None:
    """And no batch changes when its window's memory is used again."""
    loader = windowed(storage, compressor)
    for _ in range(2):
        epochs = [list(pairs) for pairs in zip(*(iter(loader) for _ in range(3)), strict=True)]
        for batches in zip(*epochs, strict=True):
            seen = np.concatenate([batch[ROW] for batch in batches])
            assert sorted(seen.tolist()) == list(range(1000))
            for batch in batches:
                assert_rows(batch, batch[ROW].tolist(), WINDOWS)
