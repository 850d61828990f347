"""The documentation as a site: `python scripts/build_site.py`, then open build/site/index.html.

The pages are those that are read on GitHub. They are copied to build/docs, README.md as the home page, and their links
are set to where things are there; a link to a file that is no page becomes its words. Zensical then builds the site,
and a link that leads nowhere ends it. Nothing is fetched, neither here nor by who reads the site.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from api_page import api_page

ROOT = Path(__file__).parent.parent
STAGED = ROOT / "build" / "docs"
HOMES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FOLDERS = {"docs": "", "lab": "lab/", "notebooks": "notebooks/"}
SUFFIXES = {".md", ".svg", ".png", ".css", ".ipynb"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
OUTSIDE = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^>]*>"""
    r"""|(?:url\(["']?|@import ["'])(?:https?:)?//[^)"']*"""
)
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def places() -> dict[str, str]:
    """Where in the site each file of the repository is."""
    found = dict(HOMES)
    for folder, prefix in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and ".ipynb_checkpoints" not in path.parts:
                found[path.relative_to(ROOT).as_posix()] = prefix + path.relative_to(ROOT / folder).as_posix()
    return found


def relinked(text: str, source: str, known: dict[str, str]) -> str:
    """A page's text, with links as they are in the site. Code stays as it is."""

    def link(match: re.Match[str]) -> str:
        bang, words, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or "://" in target:
            return match[0]
        there = os.path.relpath((ROOT / source).parent / path, ROOT)
        there = f"{there}/README.md" if (ROOT / there).is_dir() else there
        if there not in known:
            return words if (ROOT / there).exists() else match[0]  # of which Zensical will complain
        return f"{bang}[{words}]({os.path.relpath(known[there], Path(known[source]).parent)}{mark}{anchor})"

    # Code in a link's words is part of the link, so only code that holds a whole link is left out.
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        if not LINK.search(match[0]) and not match[0].startswith("```"):
            return match[0]
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    changed = LINK.sub(link, CODE.sub(keep, text))
    return re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], changed)


def stage() -> None:
    shutil.rmtree(STAGED, ignore_errors=True)
    known = places()
    for source, place in known.items():
        path = STAGED / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            path.write_text(relinked((ROOT / source).read_text(), source, known))
        else:
            shutil.copy(ROOT / source, path)
    (STAGED / "api.md").write_text(api_page())


def fetched(built: Path) -> list[str]:
    """What a browser would fetch from elsewhere to show these pages: it should be nothing."""
    pages = [path for path in sorted(built.rglob("*")) if path.suffix in {".html", ".css", ".svg"}]
    return [f"{path.relative_to(built)}: {found}" for path in pages for found in OUTSIDE.findall(path.read_text())]


def main() -> int:
    stage()
    program = Path(sys.executable).parent / "zensical"
    words, environment = [program, "build", "--strict", "--clean"], {**os.environ, "NO_COLOR": "1"}
    if code := subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode:
        return code
    if outside := fetched(ROOT / "build" / "site"):
        print("not to be fetched:", *outside, sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
