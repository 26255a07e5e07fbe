"""Which epoch comes next, and the seed, in memory that torch's worker processes share.

Torch gives a dataset to its workers and tells none of them that an epoch has begun: ones that
persist ask for another iterator, others are new processes with a copy of the dataset as it was.
All of one iteration must agree, whichever asks first. What they have in common is the seed that
torch drew for them: they are a group, whose i-th iterations belong together.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ConfigError, LoaderError

MAX_SEED = 2**63 - 1
_GROUPS = 16  # remembered: late workers of an iteration that was left still find theirs
_START, _START_NUMBERS = (0, 4), 3  # places of the two copies; epoch, resumes, seed
_TABLE, _GROUP_NUMBERS = 8, 4  # group, number, the epoch where that iteration ends, resumed
_TRIES = 10_000  # a writer takes far less


class Epochs:
    """Written without a lock, which a worker that is killed would hold for ever.

    Numbers that belong together are a record with a check: who reads one that is being written
    sees that it is not whole. Of what comes next there are two, one of which always is. A group's
    that is not whole is unknown: whoever comes while it is writes the same. The group is looked
    for after the start was read and written before the start is, so that nobody who misses it
    has seen what it changed.
    """

    def __init__(self, seed: int) -> None:
        words = _TABLE + (_GROUP_NUMBERS + 1) * _GROUPS
        self._words = torch.zeros(words, dtype=torch.int64)
        self._share()
        self._write_start(0, 0, seed)

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that begins next."""
        return self._start()[0]

    @property
    def resumes(self) -> bool:
        """Whether that iteration goes on where a loaded state stands."""
        return bool(self._start()[1])

    @property
    def seed(self) -> int:
        """What all iterations that begin from now on are shuffled with, but for resumed ones."""
        return self._start()[2]

    def set(
        self, *, epoch: int | None = None, resumes: bool | None = None, seed: int | None = None
    ) -> Epochs:
        """Those that are given, at once; gives itself."""
        before = self._start()
        now = [a if b is None else b for a, b in zip(before, (epoch, resumes, seed), strict=True)]
        self._write_start(*now)
        return self

    def start(self, epoch: int, *, resumes: bool) -> None:
        """Begin anew with this epoch, for all that begin from now on."""
        self.set(epoch=epoch, resumes=resumes)
        self._words[_TABLE:] = 0

    def begin(
        self, group: int, number: int, resumed_stop: int | None, length: int
    ) -> tuple[int, bool]:
        """The first epoch of a group's iteration `number`, and whether it resumes.

        `resumed_stop`: where one that resumes ends. `length`: epochs of each iteration.
        """
        following, resumes, _ = self._start()
        entry = self._read(_place(group), _GROUP_NUMBERS)
        if entry is None or entry[0] != group:
            if not resumes or resumed_stop is None:
                entry = [group, number, following + length, 0]
            else:
                entry = [group, number, resumed_stop, 1]
            self._write(_place(group), entry)
            self.set(epoch=entry[2], resumes=False)
        _, first, stop, resumed = entry
        # `stop` is where iteration `first` ends and the next one begins.
        return stop + (number - first - 1) * length, bool(resumed) and number == first

    def join(self, group: int, number: int, following: int) -> None:
        """A group's iteration `number` goes on elsewhere; `following` is the epoch after it."""
        self._write(_place(group), [group, number, following, 0])
        self.set(epoch=following)

    def _start(self) -> list[int]:
        for _ in range(_TRIES):
            for place in _START:
                found = self._read(place, _START_NUMBERS)
                if found is not None:
                    return found
        raise LoaderError(
            "IterableDataset: several processes set the epoch at once, each another; make it again"
        )

    def _write_start(self, epoch: int, resumes: int, seed: int) -> None:
        if seed > MAX_SEED:
            raise ConfigError(
                f"seed {seed}: at most {MAX_SEED} here, where torch's workers share it"
            )
        for place in _START:
            self._write(place, [epoch, resumes, seed])

    def _read(self, place: int, length: int) -> list[int] | None:
        """A record's numbers; None where it is not whole."""
        *numbers, check = self._words[place : place + length + 1].tolist()
        return numbers if check == hash(tuple(numbers)) else None

    def _write(self, place: int, numbers: list[int]) -> None:
        record = torch.tensor([*numbers, hash(tuple(numbers))], dtype=torch.int64)
        self._words[place : place + len(record)] = record

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()  # already is where torch's pickler brought it to a worker

    def _share(self) -> None:
        self._words.share_memory_()  # type: ignore[no-untyped-call]


def _place(group: int) -> int:
    return _TABLE + (_GROUP_NUMBERS + 1) * (group % _GROUPS)
