"""Report and ui in Chromium: clicks, keys, pictures, and what axe-core finds. `pytest -m browser`"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from fedtailor.report.page import render
from fedtailor.runs.page import read_page
from pages import CLASSES, served

pytestmark = pytest.mark.browser
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SIZES, SCHEMES = (360, 800, 1400), ("light", "dark")
DROP = """(it, bytes) => {
    const given = new DataTransfer();
    given.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
    it.dispatchEvent(new DragEvent("drop", {dataTransfer: given, bubbles: true, cancelable: true}));
}"""
Visit = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The one of the machine, with a profile of its own that is thrown away."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[browser]'")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium, as `chromium` on the path")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def axe() -> str:
    pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install -e '.[browser]'")
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """A page at an address. At the end: no error on its console, and nothing asked for from elsewhere."""
    errors, asked, contexts, allowed = list[str](), list[str](), list[Any](), list[str]()

    def go(address: str, width: int = 800, scheme: str = "light") -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        allowed.append(address.partition("/?")[0])
        page = context.new_page()
        page.on("console", lambda it: errors.append(it.text) if it.type in ("error", "warning") else None)
        page.on("pageerror", lambda it: errors.append(str(it)))
        page.on("dialog", lambda it: errors.append(f"dialog: {it.message}"))
        page.on("request", lambda it: asked.append(it.url))
        page.goto(address)
        return page

    yield go
    for context in contexts:
        context.close()
    assert errors == []
    assert [url for url in asked if not url.startswith((*allowed, "data:", "blob:"))] == []


@pytest.fixture(scope="module")
def reports(strange: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of one run with pictures, and of two."""
    folder = tmp_path_factory.mktemp("pages")
    for name, paths, pictures in (("one", [strange / "one"], True), ("both", [strange], False)):
        (folder / f"{name}.html").write_text(render(read_page(paths, pictures)))
    return {name: (folder / f"{name}.html").as_uri() for name in ("one", "both")}


@pytest.fixture(scope="module")
def ui(strange: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(shutil.copytree(strange, tmp_path_factory.mktemp("ui") / "runs")) as address:
        yield address


def violations(page: Any, axe: str) -> list[str]:
    page.evaluate("document.querySelectorAll('details').forEach((it) => (it.open = true))")
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    return [f"{it['id']}: {it['nodes'][0]['html']}" for it in found]


def fits(page: Any) -> bool:
    """Nothing stands out at the side; what is wider scrolls within itself."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def column(page: Any, table: str, i: int) -> list[str]:
    return [text.strip() for text in page.locator(f"#{table} tbody tr > :nth-child({i})").all_inner_texts()]


# --- the report -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", SIZES)
def test_reports_at_every_size(visit: Visit, axe: str, reports: dict[str, str], width: int, scheme: str) -> None:
    for address in reports.values():
        page = visit(address, width, scheme)
        assert fits(page)
        assert violations(page, axe) == []


def test_names_stay_names(visit: Visit, reports: dict[str, str]) -> None:
    """A dialog would be an error."""
    page = visit(reports["one"])
    assert sorted(column(page, "run-1-classes", 1)) == sorted(CLASSES)
    page.wait_for_timeout(300)


def test_sorting(visit: Visit, reports: dict[str, str]) -> None:
    """By a click and by keys; numbers from the largest, names from A; what has no number is last."""
    page = visit(reports["one"], 1400)
    head = page.get_by_role("columnheader", name="global tuned").first
    place = 1 + head.evaluate("cell => cell.cellIndex")
    head.get_by_role("button").click()
    values = [float(text) for text in column(page, "run-1-classes", place)]
    assert values == sorted(values, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").press("Enter")
    assert [float(text) for text in column(page, "run-1-classes", place)] == sorted(values)
    names = page.locator("#run-1-classes thead button").first
    names.focus()
    page.keyboard.press("Space")
    found = column(page, "run-1-classes", 1)
    assert found == page.evaluate(
        "(names) => names.sort((a, b) => a.localeCompare(b, undefined, {numeric: true}))", found
    )
    assert head.get_attribute("aria-sort") is None


def test_a_matrix_by_keys_and_pointer(visit: Visit, reports: dict[str, str], strange: Path) -> None:
    page = visit(reports["one"], 1400)
    data = json.loads((strange / "one" / "data.json").read_text())
    order = [data["classes"].index(name) for name in column(page, "run-1-classes", 1)]
    area = page.locator("[data-grid]").first
    reading = page.locator("output").first
    area.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    wanted = f"{data['clients'][1]}, {data['classes'][order[1]]}: {data['counts'][1][order[1]]} pictures"
    assert reading.inner_text() == wanted
    svg = page.locator("#run-1-holdings")
    (left, top), (width, height) = (json.loads(svg.get_attribute(name)) for name in ("data-corner", "data-cell"))
    svg.hover(position={"x": left + 2.5 * width, "y": top + 0.5 * height})
    assert (
        reading.inner_text()
        == f"{data['clients'][0]}, {data['classes'][order[2]]}: {data['counts'][0][order[2]]} pictures"
    )


def test_the_way_of_the_focus(visit: Visit, reports: dict[str, str]) -> None:
    """From the link to the content on, in the order of the page; every stop has a name and a mark to be seen."""
    page, names = visit(reports["one"]), list[str]()
    page.evaluate("() => (window.before = document.body)")
    for _ in range(12):
        page.keyboard.press("Tab")
        it = page.evaluate("""() => {
            const at = document.activeElement, style = getComputedStyle(at), before = window.before;
            window.before = at;
            return {name: at.getAttribute("aria-label") || at.textContent.trim(),
                    mark: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
                    later: Boolean(before.compareDocumentPosition(at) & Node.DOCUMENT_POSITION_FOLLOWING)};
        }""")
        assert (it["mark"], it["later"], bool(it["name"])) == (True, True, True)
        names.append(it["name"])
    assert names[0] == "To the content"
    assert {"The same as numbers", "class", "global tuned"} <= set(names)


def test_a_run_of_several(visit: Visit, reports: dict[str, str]) -> None:
    """Its link in the list unfolds it."""
    page = visit(reports["both"])
    assert not page.locator("#run-2-summary").is_visible()
    page.locator("#runs").get_by_role("link", name="two").click()
    assert page.locator("#run-2-summary").is_visible()
    assert not page.locator("#run-1-summary").is_visible()


def test_in_print(visit: Visit, reports: dict[str, str]) -> None:
    """Everything is unfolded, and no table is cut."""
    page = visit(reports["both"])
    assert len(page.pdf()) > 30_000
    page.emulate_media(media="print")
    assert page.evaluate("[...document.querySelectorAll('details')].every((it) => it.open)")
    assert page.locator(".scroll").first.evaluate("(it) => getComputedStyle(it).overflowX") == "visible"


# --- the ui ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", SIZES)
def test_ui_at_every_size(visit: Visit, axe: str, ui: str, width: int, scheme: str) -> None:
    page, base = visit(ui, width, scheme), ui.partition("/?")[0]
    for path in ("/", "/start", "/predict", "/run/one", "/compare?run=one&run=two"):
        page.goto(base + path)
        assert fits(page), path
        assert violations(page, axe) == [], path


def test_filter_and_compare(visit: Visit, ui: str) -> None:
    page = visit(ui)
    compare = page.get_by_role("button", name="Compare chosen runs")
    assert compare.is_disabled()
    page.get_by_label("Filter").fill("fedavg")
    assert page.locator("#runs tbody tr:visible").count() == 1
    assert page.locator("#count").inner_text() == "1 of 2 shown."
    page.get_by_label("Filter").fill("")
    for name in ("one", "two"):
        page.get_by_label(f"Compare {name}").check()
    compare.click()
    assert page.locator("h1").inner_text() == "2 runs"
    assert page.locator("#runs tbody tr").count() == 2


def test_a_picture_by_every_way(visit: Visit, ui: str, pictures: Path) -> None:
    """By choosing, by dropping, by keys; and one that is none."""
    page, (photo, other) = visit(ui), sorted((pictures / "test" / "red_dot").iterdir())[:2]
    page.get_by_role("link", name="Try a picture").first.click()
    answers = page.locator("#answers section")

    def shown() -> list[str]:
        answers.nth(2).wait_for()
        found = answers.all_inner_texts()
        page.locator("#answers").evaluate("(it) => (it.textContent = '')")
        return [str(text) for text in found]

    page.locator("#picture").set_input_files(photo)
    chosen = shown()
    assert [text.splitlines()[0] for text in chosen][:2] == ["Zero-shot CLIP", "Global model"]
    page.locator("#shown").wait_for(state="visible")
    page.locator("#drop").evaluate(DROP, list(photo.read_bytes()))
    assert shown() == chosen
    page.locator("#client").focus()
    page.keyboard.press("Tab")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Space")
    chooser.value.set_files(other)
    by_keys = shown()
    assert by_keys != chosen
    page.locator("#client").select_option("1")
    other_client = shown()
    assert other_client[:2] == by_keys[:2]
    assert other_client[2] != by_keys[2]


def test_a_broken_picture(chromium: Any, ui: str, tmp_path: Path) -> None:
    """Is told of beside the question. (Chromium notes the refusal on its console.)"""
    (tmp_path / "broken.png").write_bytes(b"no picture")
    page = chromium.new_page()
    page.goto(ui)
    page.goto(ui.partition("/?")[0] + "/predict")
    page.locator("#picture").set_input_files(tmp_path / "broken.png")
    assert "it is no picture that can be read" in page.get_by_role("alert").inner_text()
    page.close()


def test_start_watch_stop_resume(visit: Visit, ui: str, small: dict[str, Any]) -> None:
    """A run from its form to its end, without loading the page anew."""
    page = visit(ui, 1400)
    page.get_by_role("link", name="Start a run").first.click()
    page.get_by_label("Method").select_option("promptfl")
    page.get_by_label("Data").fill(small["data"])
    page.get_by_label("Rounds").fill("400")
    rest = {key: value for key, value in small.items() if key not in ("data", "rounds")}
    page.get_by_label("Further settings").fill("\n".join(f"{key}={value}" for key, value in rest.items()))
    page.get_by_label("Folder").fill("by-hand")
    page.get_by_role("button", name="Check and start").click()
    status = page.locator("#control [role=status]")
    page.locator("#run-curves").wait_for(timeout=90_000)
    page.locator("#run-all-settings summary").click()
    before = status.inner_text()
    until = time.monotonic() + 60
    while status.inner_text() == before and time.monotonic() < until:
        page.wait_for_timeout(200)
    assert status.inner_text() != before
    assert page.locator("#run-all-settings").get_attribute("open") is not None  # new numbers fold nothing
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Resume").wait_for(timeout=60_000)
    done = int(status.inner_text().split("not finished: ")[1].split()[0])
    assert 0 < done < 400
    page.get_by_label("Rounds, in all").fill(str(done + 2))
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Go on").wait_for(timeout=60_000)
    assert status.inner_text() == "by-hand: finished"
    page.get_by_role("link", name="Runs", exact=True).click()
    row = page.locator("#runs tbody tr", has_text="by-hand")
    assert row.locator("td").nth(5).inner_text() == str(done + 2)
