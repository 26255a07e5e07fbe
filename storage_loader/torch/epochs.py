"""Which epoch comes next, and the seed, in memory that torch's worker processes share.

Torch gives a dataset to its workers and tells none of them that an epoch has begun: ones that
persist ask for another iterator, others are new processes with a copy of the dataset as it was.
All of one iteration must agree, whichever asks first. What they have in common is the seed that
torch drew for them: they are a group, whose i-th iterations belong together.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ConfigError

MAX_SEED = 2**63 - 1
_GROUPS = 16  # remembered: late workers of an iteration that was left still find theirs
_NEXT, _RESUMES, _SEED, _TABLE = range(4)
_GROUP, _NUMBER, _EPOCH, _RESUMED = range(4)


class Epochs:
    """Written without a lock: whoever comes while a group is unknown writes the same.

    The group is looked for after `next` was read and written before `next` is, so that nobody
    who misses it has seen what it changed.
    """

    def __init__(self, seed: int) -> None:
        self._numbers = torch.zeros(_TABLE + 4 * _GROUPS, dtype=torch.int64)
        self._share()
        self._forget()
        self.seed = seed

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that begins next."""
        return int(self._numbers[_NEXT])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._numbers[_NEXT] = epoch

    @property
    def seed(self) -> int:
        """What all iterations that begin from now on are shuffled with, but for resumed ones."""
        return int(self._numbers[_SEED])

    @seed.setter
    def seed(self, seed: int) -> None:
        if seed > MAX_SEED:
            raise ConfigError(
                f"seed {seed}: at most {MAX_SEED} here, where torch's workers share it"
            )
        self._numbers[_SEED] = seed

    @property
    def resumes(self) -> bool:
        """Whether that iteration goes on where a loaded state stands."""
        return bool(self._numbers[_RESUMES])

    @resumes.setter
    def resumes(self, value: bool) -> None:
        self._numbers[_RESUMES] = int(value)

    def start(self, epoch: int, *, resumes: bool) -> None:
        """Begin anew with this epoch, for all that begin from now on."""
        self.epoch, self.resumes = epoch, resumes
        self._forget()

    def begin(
        self, group: int, number: int, resumed_stop: int | None, length: int
    ) -> tuple[int, bool]:
        """The first epoch of a group's iteration `number`, and whether it resumes.

        `resumed_stop`: where one that resumes ends. `length`: epochs of each iteration.
        """
        following, resumes = self.epoch, self.resumes and resumed_stop is not None
        entry = self._entry(group)
        if entry[_GROUP] != group:
            stop = resumed_stop if resumes and resumed_stop is not None else following + length
            self._write(group, number, stop, resumes)
            self.epoch, self.resumes = stop, False
            entry = self._entry(group)
        _, first, stop, resumed = entry
        # `stop` is where iteration `first` ends and the next one begins.
        return stop + (number - first - 1) * length, bool(resumed) and number == first

    def join(self, group: int, number: int, following: int, length: int) -> None:
        """A group's iteration `number` goes on elsewhere; `following` is the epoch after it."""
        self._write(group, number, following, False)
        self.epoch = following

    def _entry(self, group: int) -> list[int]:
        start = _TABLE + 4 * (group % _GROUPS)
        found: list[int] = self._numbers[start : start + 4].tolist()
        return found

    def _write(self, group: int, number: int, epoch: int, resumed: bool) -> None:
        start = _TABLE + 4 * (group % _GROUPS)
        entry = torch.tensor([group, number, epoch, resumed], dtype=torch.int64)
        self._numbers[start : start + 4] = entry

    def _forget(self) -> None:
        self._numbers[_TABLE:] = -1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()  # already is where torch's pickler brought it to a worker

    def _share(self) -> None:
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]
