"""A run, or several, as one page that stands alone: `fedtailor report RUN`.

`view` makes tables and shapes from records, and templates write them down, with everything that comes from data
escaped. Style and script are in the page, allowed by their hashes and nothing else: it asks for nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...base.version import __version__
from .facts import Page
from .view import view_page

PACKAGE = "fedtailor.report.page"


def make_environment(*more: Any) -> Environment:
    """Templates of this folder, after `more` loaders."""
    from jinja2 import ChoiceLoader

    environment = Environment(
        loader=ChoiceLoader([*more, PackageLoader(PACKAGE)]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["data_url"] = data_url
    environment.globals["version"] = __version__
    return environment


@cache
def asset(name: str) -> str:
    """The style sheet or the script."""
    return (resources.files(PACKAGE) / "templates" / name).read_text()


def render(page: Page) -> str:
    style, script = Markup(asset("page.css")), Markup(asset("page.js"))  # our own files
    allowed = f"default-src 'none'; img-src data:; style-src {digest(style)}; script-src {digest(script)}"
    policy = f"{allowed}; base-uri 'none'; form-action 'none'"
    template = make_environment().get_template("report.html")
    return template.render(page=view_page(page), style=style, script=script, policy=policy)


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def data_url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
