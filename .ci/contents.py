"""Compare the sdist and the wheel in `dist` with the tree; exit 1 unless both have all they must.

The sdist has every file of the repository, the wheel every file of the library and no other.
"""

from __future__ import annotations

import fnmatch
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ("delayed_queue/", "pyspark_delayed_queue.py")
TOP_LEVEL = ("*.md", "*.py", "*.toml", "*.ini", "*.yaml", ".*.yaml", ".*ignore")
NAMED = ("Dockerfile", "LICENSE", "MANIFEST.in", "Makefile")
# What building adds.
MADE = ("PKG-INFO", "setup.cfg")


def folders() -> list[Path]:
    packages = {each.parent for each in ROOT.glob("*/__init__.py")}
    return sorted(packages | {ROOT / name for name in (".ci", ".github", "docs")})


def ignored(name: str) -> bool:
    """Return whether .gitignore has the file or a directory above it."""
    patterns = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    above = [name, *(str(each) for each in Path(name).parents)]
    tried = above + [Path(each).name for each in above]
    return any(fnmatch.fnmatch(each, pattern.rstrip("/")) for each in tried for pattern in patterns)


def repository() -> set[str]:
    """Return the files of the tree that version control does not ignore."""
    found = [path for folder in folders() for path in folder.rglob("*") if path.is_file()]
    found += [path for pattern in (*TOP_LEVEL, *NAMED) for path in ROOT.glob(pattern)]
    names = {path.relative_to(ROOT).as_posix() for path in found}
    return {name for name in names if not ignored(name)}


def of_sdist(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        files = [each.name.partition("/")[2] for each in archive if each.isfile()]
    return {name for name in files if name not in MADE and ".egg-info/" not in name}


def of_wheel(path: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}


def differences(name: str, found: set[str], expected: set[str]) -> list[str]:
    missing = [f"{name} lacks {each}" for each in sorted(expected - found)]
    return missing + [f"{name} has {each}" for each in sorted(found - expected)]


def main(directory: Path) -> list[str]:
    (sdist,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    expected = repository()
    library = {each for each in expected if each.startswith(LIBRARY)}
    wrong = differences(sdist.name, of_sdist(sdist), expected)
    return wrong + differences(wheel.name, of_wheel(wheel), library)


if __name__ == "__main__":
    sys.exit("\n".join(main(ROOT / "dist")) or None)
