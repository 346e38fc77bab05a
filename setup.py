"""Build steps that pyproject.toml cannot express: the commit in the package, and the README for the package index."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
# Not imported: the package needs msgspec, which a build environment does not have.
ABOUT = runpy.run_path(str(ROOT / "src/evertick/version.py"))
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]


def write_commit(package: Path) -> None:
    # A wheel that is built from an sdist keeps the commit of the sdist.
    commit, path = ABOUT["commit"]() or "", package / ABOUT["COMMIT_FILE"]
    # An sdist has hard links to the files of its source.
    path.unlink(missing_ok=True)
    path.write_text(f"{commit}\n", encoding="ascii")


class BuildPackage(build_py):
    def run(self) -> None:
        super().run()
        # An editable install runs from the checkout, which knows its commit.
        if not self.editable_mode:
            write_commit(Path(self.build_lib) / "evertick")


class BuildSource(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / "src/evertick")


def absolute(link: re.Match[str]) -> str:
    target = link[1]
    if re.match(r"[a-z]+:|#", target):
        return link[0]
    if page := re.fullmatch(r"docs/(?:(.*/)?index|(.+))\.md(#.*)?", target):
        folder = page[1] or "" if page[2] is None else f"{page[2]}/"
        return f"]({URLS['Documentation']}{folder}{page[3] or ''})"
    return f"]({URLS['Source']}/blob/HEAD/{target})"


def readme() -> str:
    """The README, whose relative links would be dead on a package index."""
    return re.sub(r"\]\(([^)\s]+)\)", absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildPackage, "sdist": BuildSource},
)
