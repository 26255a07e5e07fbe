"""Text that came from elsewhere, as it may be shown: in a terminal, a log, an error. Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text in one line, where what is no letter, mark, digit, sign or " " is an escape.

    As Python writes it in a string's `repr`: "\x1b" for a control character, "\n" for a line's
    end, "\u202e" for what turns the direction of text, "\ud800" for half a character. A
    backslash stays as it is, so text that passes here twice is the same as after the first time.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Lines(str):
    """Text whose ends of lines are meant."""

    __slots__ = ()
