"""Memory of batches that is used again: never while anything lies on it."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

from storage_loader.loader.fill.memory import ALIGNMENT, AlignedMemory

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
    [kept] = memory._free.values()
    assert len(kept) == 2


def test_memory_outlives_its_giver_and_stays_at_home() -> None:
    memory = AlignedMemory()
    piece = memory.empty(LARGE)
    piece[...] = 7
    copy = pickle.loads(pickle.dumps(memory))
    assert copy._free == {}
    del memory
    gc.collect()
    assert (piece == 7).all()
