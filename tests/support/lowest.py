"""The lowest versions that pyproject.toml admits, as constraints for pip.

    python tests/support/lowest.py [EXTRA ...] > constraints.txt

Needs nothing but Python 3.11.
"""

import re
import sys
from pathlib import Path

import tomllib

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(.*)")


def lowest(requirement: str) -> str | None:
    """`name==version`; None where any version will do. `ValueError` for what has no lower bound."""
    match = _REQUIREMENT.fullmatch(requirement.replace(" ", ""))
    if match is None:
        raise ValueError(f"{requirement!r} is no requirement")
    name, bounds = match.groups()
    found = re.findall(r"(?:^|,)>=([0-9.]+)(?=,|$)", bounds)
    if not bounds:
        return None
    if len(found) != 1:
        raise ValueError(f"{requirement!r} has no lower bound")
    return f"{name}=={found[0]}"


def constraints(pyproject: str, *extras: str) -> list[str]:
    """Those of the dependencies and of these extras."""
    project = tomllib.loads(pyproject)["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [found for line in lines if (found := lowest(line)) is not None]


if __name__ == "__main__":
    text = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    print("\n".join(constraints(text, *sys.argv[1:])))
