"""The files around the package agree with each other."""

from __future__ import annotations

import os
import re
from importlib import import_module
from itertools import chain
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import ROOT
from tests.support.s3_server import DEFAULT_PORT, settings

TESTS = ROOT / "tests"
EXTRAS = {"torch", "tensorflow", "jax", "aws", "blosc", "plot", "dev"}
# What the pins have instead of a package: the same for processors alone.
INSTEAD = {"tensorflow": "tensorflow-cpu"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def pins(*names: str) -> dict[str, str]:
    """Return the pinned version of each package in requirements/*.txt, by its normalised name."""
    found: dict[str, str] = {}
    for name in names:
        for line in (ROOT / "requirements" / name).read_text().splitlines():
            if line and not line.startswith("#"):
                package, version = line.split("==")
                assert found.setdefault(canonicalize_name(package), version) == version, line
    return found


def test_ruff_is_pinned_the_same_in_pre_commit() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    revisions = {repo["repo"].split("/")[-1]: repo["rev"] for repo in config["repos"]}
    assert revisions["ruff-pre-commit"] == "v" + pins("dev.txt")["ruff"]


def test_extras(project: dict[str, Any]) -> None:
    assert set(project["optional-dependencies"]) == EXTRAS


def test_every_dependency_is_pinned_within_its_bounds(project: dict[str, Any]) -> None:
    pinned = pins("torch.txt", "runtime.txt", "frameworks.txt", "dev.txt")
    extras = project["optional-dependencies"].values()
    for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
        wanted = Requirement(line)
        name = INSTEAD.get(wanted.name, wanted.name)
        assert wanted.specifier.contains(pinned[canonicalize_name(name)]), line


def lowest() -> Any:
    """The program that `make test-oldest` takes its versions from."""
    pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    return import_module("tests.support.lowest")


def test_the_lowest_versions_are_those_of_the_bounds(project: dict[str, Any]) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    extras = [*project["optional-dependencies"]]
    found = dict(line.split("==") for line in lowest().constraints(text, *extras))
    for line in chain(project["dependencies"], *project["optional-dependencies"].values()):
        wanted = Requirement(line)
        if wanted.specifier:
            assert wanted.specifier.contains(found[wanted.name]), line
            below = [s for s in wanted.specifier if s.operator == ">="]
            assert [s.version for s in below] == [found[wanted.name]], line
        else:
            assert wanted.name not in found


@pytest.mark.parametrize("line", ["a<2", "a>1", "a>=1,>=2", "a==", "a; b"])
def test_a_dependency_without_a_lowest_version_is_no_other(line: str) -> None:
    with pytest.raises(ValueError, match=r"no lower bound|no requirement"):
        lowest().lowest(line)


def test_torch_is_pinned_in_a_file_of_its_own() -> None:
    assert "torch" in pins("torch.txt")
    assert "torch" not in pins("runtime.txt", "frameworks.txt", "dev.txt")


def test_the_package_is_typed_and_licensed(project: dict[str, Any]) -> None:
    assert (ROOT / "storage_loader" / "py.typed").is_file()
    assert project["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_ci_can_be_executed() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_compose_starts_only_local_and_pinned_servers() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert service["profiles"], name
        assert re.search(r":(RELEASE\.)?\d", service["image"]), f"{name}: no fixed version"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert name.endswith("-bucket") or service["healthcheck"]["test"], name
    assert "-master.telemetry=false" in services["seaweedfs"]["command"]  # reports to nobody
    assert {name for name in services if f"{name}-bucket" in services} == {"minio", "seaweedfs"}


def test_the_readme_names_what_make_s3_prints() -> None:
    text = (ROOT / "README.md").read_text()
    printed = dict(line.split()[1].split("=", 1) for line in settings(DEFAULT_PORT).splitlines())
    assert f'endpoint="{printed["STORAGE_LOADER_TEST_S3_ENDPOINT"]}"' in text
    named = set(re.findall(r"AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY)=\$(\w+)", text))
    assert named == {f"STORAGE_LOADER_TEST_S3_{key}" for key in ("ACCESS_KEY", "SECRET_KEY")}
    assert named <= set(printed)


def test_no_test_module_imports_another() -> None:
    other = re.compile(r"^\s*(from|import) tests\.([\w.]+\.)?test_\w+", re.MULTILINE)
    assert other.search("    from tests.saver.test_saver import WIDE")
    found = [path for path in TESTS.rglob("*.py") if other.search(path.read_text())]
    assert found == []


def test_each_folder_of_tests_is_a_package_that_the_readme_names() -> None:
    named = re.findall(r"^\| `([\w/]+)` \|", (TESTS / "README.md").read_text(), re.MULTILINE)
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    assert set(named) == folders - {"."}
    assert all((TESTS / folder / "__init__.py").is_file() for folder in folders)
