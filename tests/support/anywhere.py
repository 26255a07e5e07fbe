"""A Ctrl-C after any call that the main thread makes, chosen by its number.

Python runs a signal's handler where a call has just returned, a function begins, or a loop goes
round (https://github.com/python/cpython/issues/74174). A trace function raises there.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

_WATCHED = ("storage_loader", "threading", "concurrent", "queue", "contextlib")
_CHECKED = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


@cache
def _moments(code: CodeType) -> frozenset[int]:
    """Offsets of what comes after an instruction at which handlers run."""
    found, is_after = set(), True
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        if is_after:
            found.add(instruction.offset)
        is_after = instruction.opname.startswith(_CHECKED)
    return frozenset(found)


class Moments:
    """Counts the moments of this thread, and raises `KeyboardInterrupt` at number `at`, from 0."""

    def __init__(self, at: int = -1) -> None:
        self.passed = 0
        self.at = at
        self.where = ""

    def _called(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not frame.f_globals.get("__name__", "").startswith(_WATCHED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if event == "opcode" and frame.f_lasti in _moments(frame.f_code):
            self.passed += 1
            if self.passed == self.at + 1:
                self.where = "".join(traceback.format_stack(frame)[-4:])
                raise KeyboardInterrupt
        return self._stepped

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, and until it has raised."""
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)


def everywhere(call: Callable[[], object], check: Callable[[], object]) -> None:
    """Interrupt `call` at each of its moments in turn; `check` ends each time, without an error."""
    at = 0
    while True:
        moments = Moments(at)
        with contextlib.suppress(KeyboardInterrupt), moments.watched():
            call()
        ends(check, moments.where)
        if not moments.where:
            assert at > 1
            return
        at += 1


def ends(call: Callable[[], object], where: str, *, seconds: float = 60) -> None:
    """It ends in another thread, and raises nothing, after a Ctrl-C there."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # raised below
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"somebody waits for ever after Ctrl-C in {where}"
    if errors:
        raise AssertionError(f"after Ctrl-C in {where}") from errors[0]
