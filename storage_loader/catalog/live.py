"""Which commits are live while commits come and go, one after another. Pure.

`live_commits` says what is live of one set of commits. Asking it after each of a thousand commits
looks at a million, and who may write a commit can make that far more. Here a change costs as much
as it changes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .commits import Commit, CommitId


@dataclass(frozen=True)
class State:
    """What is live after a commit."""

    after: CommitId
    live: list[CommitId]  # in order
    ended: list[CommitId]  # what was live before it


def states(commits: Mapping[CommitId, Commit]) -> Iterator[State]:
    """After each commit, in order: what is live of it and those before it.

    Commits that are gone and that others replace count as if they had been there, with nothing
    replaced: a state that needs one names it.
    """
    named = {i for commit in commits.values() for i in commit.replaces}
    schema_hash = next((commit.schema_hash for commit in commits.values()), "")
    known = {**dict.fromkeys(named, Commit(schema_hash)), **commits}
    live = LiveCommits(known)
    for commit_id in sorted(known):
        ended = live.put(commit_id)
        if commit_id in commits:
            yield State(commit_id, live.now, ended)


class LiveCommits:
    """The live commits of those that were put and not taken since, as `live_commits` says it.

    Of the commits that name an id in `replaces`, at most one takes effect: it holds the id. So a
    commit takes effect where no later one holds an id that it names. Whether it does is asked from
    the latest on, and only of those that a change may concern.
    """

    def __init__(self, commits: Mapping[CommitId, Commit]) -> None:
        """Of no commit yet; `commits` are those that may be put."""
        self._ids = sorted(commits)
        self._places = {commit_id: place for place, commit_id in enumerate(self._ids)}
        places = dict(self._places)
        self._names = [  # by place: the ids in `replaces`, by place, or a number if never put
            {places.setdefault(i, len(places)) for i in commits[commit_id].replaces}
            for commit_id in self._ids
        ]
        self._namers: list[list[int]] = [[] for _ in places]  # by id: who names it, in order
        for place, names in enumerate(self._names):
            for name in names:
                self._namers[name].append(place)
        self._twins: dict[tuple[str, int], list[int]] = {}  # those of one writer and number
        self._counts = bytearray(len(self._ids))  # whether it was put and is the first twin
        self._effective = bytearray(len(self._ids))
        self._holders: dict[int, int] = {}
        self._is_live = bytearray(len(self._ids))
        self._live: list[int] = []  # in order
        self._live_ids: list[CommitId] = []  # the same
        self._waiting: list[int] = []  # a heap of places, the last first: negative
        self._touched: set[int] = set()

    @property
    def now(self) -> list[CommitId]:
        """The live commits, in their order."""
        return self._live_ids.copy()

    def put(self, commit_id: CommitId) -> list[CommitId]:
        """Add a commit; returns those that were live and are no more."""
        place = self._places[commit_id]
        twins = self._twins.setdefault((commit_id.writer, commit_id.number), [])
        insort(twins, place)
        if twins[0] == place:
            if len(twins) > 1:
                self._leave(twins[1])
            self._enter(place)
        return self._settled()[1]

    def take(self, commit_id: CommitId) -> bool:
        """Remove a commit that was put, if the others that are live stay so and no other becomes
        live; whether that is so."""
        place = self._places[commit_id]
        twins = self._twins[commit_id.writer, commit_id.number]
        was_first = twins[0] == place
        twins.remove(place)
        if was_first:
            self._leave(place)
            if twins:
                self._enter(twins[0])
        added, removed = self._settled()
        if added or removed:
            self.put(commit_id)
            return False
        return True

    def _enter(self, place: int) -> None:
        """A commit begins to count."""
        self._counts[place] = True
        heapq.heappush(self._waiting, -place)

    def _leave(self, place: int) -> None:
        """A commit does not count any more."""
        self._counts[place] = False
        if self._effective[place]:
            self._release(place)

    def _release(self, place: int) -> None:
        """A commit holds nothing any more: who names what it held is asked."""
        self._effective[place] = False
        self._touched.add(place)
        freed = [name for name in self._names[place] if self._holders[name] == place]
        self._touched.update(freed)
        for name in freed:
            del self._holders[name]
        self._ask_below(place, freed)

    def _ask_below(self, place: int, names: Iterable[int]) -> None:
        """Of each of these ids, which nobody holds, the last before `place` that may hold it."""
        for name in names:
            namers = self._namers[name]
            below = bisect_left(namers, place) - 1
            while below >= 0 and not self._counts[namers[below]]:
                below -= 1
            if below >= 0:
                heapq.heappush(self._waiting, -namers[below])

    def _ask(self, place: int) -> None:
        """Whether a commit takes effect, all later ones being settled."""
        names, holders = self._names[place], self._holders
        held = [name for name in names if name in holders]  # `holders.keys()` may be far more
        if any(holders[name] > place for name in held):
            if self._effective[place]:
                self._release(place)
            self._ask_below(place, [name for name in names if name not in holders])
        elif not self._effective[place]:
            self._effective[place] = True
            for earlier in {holders[name] for name in held}:
                heapq.heappush(self._waiting, -earlier)
            holders.update(dict.fromkeys(names, place))
            self._touched.add(place)
            self._touched |= names

    def _settled(self) -> tuple[list[CommitId], list[CommitId]]:
        """Ask all that wait, from the last on; what became live, and what ended."""
        asked = -1
        while self._waiting:
            place = -heapq.heappop(self._waiting)
            if place != asked and self._counts[place]:
                self._ask(place)
            asked = place
        added, removed = [], []
        for place in self._touched:
            if place >= len(self._ids):
                continue
            is_live = self._effective[place] and place not in self._holders
            if is_live == self._is_live[place]:
                continue
            self._is_live[place] = is_live
            index = bisect_left(self._live, place)
            if is_live:
                self._live.insert(index, place)
                self._live_ids.insert(index, self._ids[place])
                added.append(self._ids[place])
            else:
                del self._live[index], self._live_ids[index]
                removed.append(self._ids[place])
        self._touched.clear()
        return added, removed
