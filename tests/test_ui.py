"""`fedtailor ui`: who may ask, what is shown, and what is started; the server in this process, without a browser."""

from __future__ import annotations

import http.cookiejar
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedtailor
from conftest import Call
from fedtailor.base.files import FolderLock
from fedtailor.ui import children, listing, models
from fedtailor.ui.app import make_app
from fedtailor.ui.children import Children
from fedtailor.ui.listing import Listing
from pages import CLASSES, SITES, Page, numbers, served

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # one of its own names is deprecated where it comes from
    from starlette.testclient import TestClient

TOKEN, HOST = "secret", "127.0.0.1:8000"
POST = {"origin": f"http://{HOST}"}


@pytest.fixture
def root(strange: Path, tmp_path: Path) -> Path:
    return shutil.copytree(strange, tmp_path / "runs")


@pytest.fixture
def stranger(root: Path) -> Iterator[TestClient]:
    """A browser that has not shown the token."""
    with TestClient(make_app(root, TOKEN, 8000), base_url=f"http://{HOST}", follow_redirects=False) as client:
        yield client


@pytest.fixture
def browser(stranger: TestClient) -> TestClient:
    stranger.get(f"/?token={TOKEN}")
    return stranger


def text_of(answer: Any, tag: str = "main") -> str:
    return " ".join(Page(answer.text).text(tag).split())


# --- who may ask ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/run/one", "/live/one", "/static/page.js", "/predict", "/nothing", "/?token=no"]
)
def test_without_the_token(stranger: TestClient, path: str) -> None:
    """Broken: something is told to one who was not invited."""
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "promptfl" not in answer.text


def test_the_token_becomes_a_cookie(stranger: TestClient) -> None:
    """Which scripts cannot read; the address is without it from then on."""
    answer = stranger.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=lax" in answer.headers["set-cookie"]
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8000", "evil.example", "127.0.0.1:8001", "127.0.0.1", ""])
def test_under_another_name(browser: TestClient, host: str) -> None:
    """Broken: a site whose name points here reads what is here (DNS rebinding)."""
    for path in ("/", f"/?token={TOKEN}"):
        answer = browser.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:9", "https://127.0.0.1:8000"]
)
@pytest.mark.parametrize("path", ["/start", "/stop/one", "/resume/one", "/look/one"])
def test_from_another_page(browser: TestClient, path: str, origin: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: another site, or another server of this machine, starts or stops runs by a form of its own."""
    monkeypatch.setattr(Children, "start", lambda *_: pytest.fail("started"))
    answer = browser.post(path, data={"method": "promptfl"}, headers={"origin": origin} if origin else {})
    assert answer.status_code == 403


@pytest.mark.parametrize("path", ["/", "/run/one", "/compare", "/predict", "/static/ui.js"])
def test_what_pages_may_load(browser: TestClient, path: str) -> None:
    """Nothing but this server's own files; no script or style stands in a page."""
    answer = browser.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
    if path != "/static/ui.js":
        page = Page(answer.text)
        assert all(found["src"].startswith("/static/") for found in page.all("script"))
        assert not [found for _, found in page.elements if "style" in found or any(k.startswith("on") for k in found)]


@pytest.mark.parametrize("path", ["../one", "%2e%2e/secret", "/etc", "nothing", "one/model", ""])
def test_only_runs_below_the_folder(browser: TestClient, root: Path, path: str) -> None:
    """Broken: a folder elsewhere is read because an address says so."""
    shutil.copytree(root / "one", root.parent / "secret")
    for verb in ("run", "live", "save"):
        assert browser.get(f"/{verb}/{path}").status_code == 404
    assert browser.post(f"/resume/{path}", headers=POST).status_code == 404


# --- the list -------------------------------------------------------------------------------------------------------


def test_the_list(browser: TestClient, root: Path) -> None:
    """The newest first, with its numbers; names are only names."""
    os.utime(root / "two" / "result.json", (4e9, 4e9))
    page = Page(browser.get("/").text)
    assert page.column("runs", "run") == ["two", "one"]
    assert page.column("runs", "method") == ["fedavg", "promptfl"]
    for name, found in zip(("two", "one"), numbers(page.column("runs", "global")), strict=True):
        result = json.loads((root / name / "result.json").read_text())
        assert found == round(result["global"]["overall"], 2)
    assert page.column("runs", "status") == ["finished", "finished"]


def test_status(root: Path) -> None:
    """Finished, running while some process has the folder to itself, or stopped."""
    (root / "one" / "result.json").unlink()
    its = {it.path: it for it in Listing(root).runs()}
    assert (its["one"].status, its["one"].done, its["two"].status) == ("stopped", 2, "finished")
    last = json.loads((root / "one" / "rounds.jsonl").read_text().splitlines()[-1])
    assert its["one"].shared == last["global"]["overall"]
    with FolderLock(root / "one"):
        assert next(it.status for it in Listing(root).runs() if it.path == "one") == "running"


def test_a_hundred_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read once, and again only when it has changed; one that cannot be read is in nobody's way."""
    for i in range(100):
        folder = root / "many" / f"{i:03}"
        folder.mkdir(parents=True)
        for name in ("run.toml", "result.json"):
            shutil.copy(root / "one" / name, folder / name)
    (root / "many" / "050" / "run.toml").write_text("[")
    read, plain = list[Path](), listing.read_listed

    def noted(root: Path, folder: Path, stamp: listing.Stamp) -> listing.Listed:
        read.append(folder)
        return plain(root, folder, stamp)

    monkeypatch.setattr(listing, "read_listed", noted)
    found = Listing(root)
    assert len(found.runs()) == 101
    assert len(read) == 102
    read.clear()
    (root / "one" / "result.json").write_text((root / "two" / "result.json").read_text())
    began = time.perf_counter()
    assert len(found.runs()) == 101
    assert time.perf_counter() - began < 1
    assert {path.name for path in read} == {"one", "050"}


def test_where_runs_are(root: Path) -> None:
    """In folders to some depth; not in run folders, not those that settings were chosen by, not through links."""
    for name in ("deep/er", "tune/x", ".hidden/y", "one/inside"):
        (root / name).mkdir(parents=True)
        shutil.copy(root / "two" / "run.toml", root / name / "run.toml")
    (root / "link").symlink_to(root.parent)
    assert {it.path for it in Listing(root).runs()} == {"one", "two", "deep/er"}


def test_nothing_to_list(tmp_path: Path) -> None:
    with TestClient(make_app(tmp_path / "none", TOKEN, 8000), base_url=f"http://{HOST}") as client:
        assert "There is no run in" in text_of(client.get(f"/?token={TOKEN}"))
        assert "has a model yet" in text_of(client.get("/predict"))


# --- one run, and several -------------------------------------------------------------------------------------------


def test_a_run(browser: TestClient, root: Path) -> None:
    """As a report has it; it can be saved as one."""
    page = Page(browser.get("/run/one").text)
    assert sorted(page.column("run-classes", "class")) == sorted(CLASSES)
    saved = browser.get("/save/one")
    assert saved.headers["content-disposition"].endswith("one.html")
    assert Page(saved.text).tables["run-1-classes"] == page.tables["run-classes"]


def test_while_it_runs(browser: TestClient, root: Path) -> None:
    """What is new is sent, and nothing if nothing is; a run that has ended is not asked about again."""
    log = root / "one" / "rounds.jsonl"
    first, second = log.read_text().splitlines(keepends=True)
    for name in ("result.json", "checkpoint.json"):
        (root / "one" / name).unlink()
    log.write_text(first)
    with FolderLock(root / "one"):
        page = Page(browser.get("/run/one").text)
        assert "one: running: 1 of 2 rounds" in " ".join(page.text("p", role="status").split())
        (state,) = [found["data-state"] for _, found in page.elements if "data-state" in found]
        assert browser.get("/live/one", params={"since": state}).status_code == 204
        log.write_text(first + second)
        again = browser.get("/live/one", params={"since": state})
        assert "running: 2 of 2 rounds" in " ".join(Page(again.text).text("p", role="status").split())
        assert "data-over" not in again.text
    assert "data-over" in browser.get("/live/one").text


def test_compare(browser: TestClient) -> None:
    page = Page(browser.get("/compare?run=one&run=two").text)
    assert [row[0] for row in page.tables["runs"][1:]] == ["one", "two"]
    assert len(page.tables["block-1"]) == 3
    few = browser.get("/compare?run=one&run=one")
    assert (few.status_code, "choose two runs or more" in few.text) == (422, True)


# --- start, stop, resume --------------------------------------------------------------------------------------------

Started = list[tuple[Path, list[str]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What would be started, and is not."""
    found: Started = []
    monkeypatch.setattr(Children, "start", lambda _, folder, words: found.append((folder, words)))
    return found


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"method": "promptf"}, "unknown method 'promptf'; did you mean 'promptfl'?"),
        ({"rounds": "0"}, "rounds: input should be greater than or equal to 1, got 0"),
        ({"rounds": "many"}, "rounds: input should be a valid integer"),
        ({"more": "roundz=3"}, "unknown key 'roundz'; did you mean 'rounds'?"),
        ({"more": "--out /tmp/x"}, "'--out' is not key=value"),
        ({"more": "a='b"}, "further settings: No closing quotation"),
        ({"rounds": "3", "more": "rounds=4"}, "rounds is given twice"),
        ({"name": "../elsewhere"}, "letters, digits and . _ + - alone"),
        ({"name": "one"}, "is not empty"),
    ],
)
def test_wrong_settings(browser: TestClient, started: Started, form: dict[str, str], told: str) -> None:
    """Are told before anything is started, with what was filled in still there."""
    answer = browser.post("/start", data={"method": "promptfl", **form}, headers=POST)
    assert answer.status_code == 422
    page = Page(answer.text)
    assert told in page.text("p", role="alert")
    for key, value in form.items():
        if key not in ("method", "more"):
            assert page.all("input", id=key)[0]["value"] == value
    assert started == []


def test_right_settings(browser: TestClient, started: Started, root: Path) -> None:
    """Become the words of a command line, into a new folder here."""
    form = {"method": "promptfl", "data": "drawn-lt", "rounds": "3", "more": "lr=0.1\ndata.template='a {} b'"}
    answer = browser.post("/start", data=form, headers=POST)
    assert (answer.status_code, answer.headers["location"]) == (303, "/run/promptfl-drawn-lt-s0")
    words = ["run", "promptfl", "data=drawn-lt", "rounds=3", "lr=0.1", "data.template=a {} b", "--out"]
    assert started == [(root / "promptfl-drawn-lt-s0", [*words, str(root / "promptfl-drawn-lt-s0"), "--quiet"])]


def test_resume(browser: TestClient, started: Started, root: Path) -> None:
    assert browser.post("/resume/one", data={"rounds": "9"}, headers=POST).headers["location"] == "/run/one"
    assert started == [(root / "one", ["run", "rounds=9", "--resume", str(root / "one"), "--quiet"])]
    wrong = browser.post("/resume/one", data={"rounds": "--seed"}, headers=POST)
    assert (wrong.status_code, "give a whole number of rounds" in wrong.text) == (422, True)


def test_only_what_was_started_here_is_stopped(browser: TestClient) -> None:
    answer = browser.post("/stop/one", headers=POST)
    assert (answer.status_code, "was not started here" in answer.text) == (422, True)


def test_a_child_that_fails(tmp_path: Path) -> None:
    """What it said is kept, and it is no success."""
    family = Children()
    child = family.start(tmp_path / "x", ["run", "--seed", "five"])
    child.process.wait(60)
    assert child.failed
    assert "'five' is not a valid int" in child.said()
    assert family.end() == []


def test_children_end_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C; one that takes no notice is killed, which a run survives too."""
    monkeypatch.setattr(children, "PATIENCE", 0.5)
    plain = subprocess.Popen
    code = "import signal, time; signal.signal(signal.SIGINT, {}); print('ready', flush=True); time.sleep(60)"
    sleeping = {"deaf": code.format("signal.SIG_IGN"), "kind": code.format("lambda *_: exit(130)")}

    def begin(words: list[str], **more: Any) -> subprocess.Popen[bytes]:
        return plain([sys.executable, "-c", sleeping[words[3]]], **more)

    monkeypatch.setattr(subprocess, "Popen", begin)
    family = Children()
    made = {name: family.start(tmp_path / name, [name]) for name in sleeping}
    while any(not child.said() for child in made.values()):
        time.sleep(0.02)
    assert family.end() == list(made.values())
    codes = {name: child.process.returncode for name, child in made.items()}
    assert codes == {"deaf": -signal.SIGKILL, "kind": 130}


# --- pictures -------------------------------------------------------------------------------------------------------


def png(size: tuple[int, int] = (32, 32)) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (*size, 3)).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def files(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def test_a_picture(browser: TestClient, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three answers side by side, those of `fedtailor.load`; the model is loaded once, and nothing is written."""
    loaded, before = list[Any](), files(root)
    body = png()
    monkeypatch.setattr("fedtailor.use.load.load", lambda path, load=fedtailor.load: loaded.append(path) or load(path))
    answers = [browser.post("/look/one?client=1", content=body, headers=POST) for _ in range(2)]
    assert loaded == [root / "one"]
    page = Page(answers[0].text)
    assert answers[0].text == answers[1].text
    titles = [text for i, text in page.texts.items() if page.elements[i][0] == "h2"]
    assert titles == ["Zero-shot CLIP", "Global model", f"Personal model of {sorted(SITES)[1]}"]
    model, picture = fedtailor.load(root / "one"), Image.open(io.BytesIO(body))
    wanted = [model.predict(picture, zero_shot=True)[0], model.predict(picture)[0], model.predict(picture, client=1)[0]]
    for table, it in zip(page.tables.values(), wanted, strict=True):
        assert table[1:] == [[name, f"{100 * share:.1f} %"] for name, share in it.classes]
    assert files(root) == before


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the file is empty"),
        (b"no picture at all", "cannot read this file: it is no picture that can be read"),
        (png()[:-600], "cannot read this file: image file is truncated"),
        (b"x" * 101, "101 B or more; 100 B are the most that is taken"),
    ],
)
def test_wrong_pictures(browser: TestClient, body: bytes, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if body.startswith(b"x"):
        monkeypatch.setattr("fedtailor.ui.pages.BYTES", 100)
        monkeypatch.setattr(models, "BYTES", 100)
    answer = browser.post("/look/one", content=body, headers=POST)
    assert answer.status_code == 422
    assert told in Page(answer.text).text("p", role="alert")


def test_too_many_pixels(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file can be a large picture."""
    monkeypatch.setattr(models, "PIXELS", 1000)
    answer = browser.post("/look/one", content=png((40, 40)), headers=POST)
    assert "the picture has 1,600 pixels; 1,000 are the most shown here" in answer.text


def test_a_body_without_a_length(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is counted while it is read."""
    monkeypatch.setattr("fedtailor.ui.pages.BYTES", 100)
    answer = browser.post("/look/one", content=iter([b"x" * 60] * 3), headers=POST)
    assert "content-length" not in answer.request.headers
    assert (answer.status_code, "are the most that is taken" in answer.text) == (422, True)


def test_no_such_client(browser: TestClient) -> None:
    answer = browser.post("/look/one?client=7", content=png(), headers=POST)
    assert (answer.status_code, "there is no client" in answer.text) == (422, True)


# --- the command ----------------------------------------------------------------------------------------------------


def test_wrong_words(call: Call) -> None:
    Path("file").write_text("")
    answer = call("ui", "file")
    assert (answer.code, "file is a file; name the folder that runs are in" in answer.err) == (2, True)


def test_a_port_that_is_taken(call: Call) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = call("ui", "--no-browser", "--port", str(port))
    assert (answer.code, f"--port {port}: Address already in use" in answer.err) == (2, True)


@pytest.mark.slow
def test_the_server_and_its_runs(root: Path, small: dict[str, Any]) -> None:
    """From the command to Ctrl-C: a run is started, watched, stopped by the end of the server, and resumed."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    settings = " ".join(f"{key}={value}" for key, value in {**small, "rounds": 500, "every": 500}.items())
    form = urllib.parse.urlencode({"method": "promptfl", "more": settings, "name": "new"}).encode()
    told, new = list[str](), root / "new"
    with served(root, told) as address:
        base = address.partition("/?")[0]
        assert opener.open(address).status == 200
        assert opener.open(urllib.request.Request(f"{base}/start", form, {"origin": base})).url == f"{base}/run/new"
        until = time.monotonic() + 60
        while not (new / "rounds.jsonl").is_file():
            assert time.monotonic() < until
            time.sleep(0.1)
        assert "running" in opener.open(f"{base}/run/new").read().decode()
    assert f"stopped {new}; go on with: fedtailor run --resume {new}" in told
    done = len((new / "rounds.jsonl").read_text().splitlines())
    assert 0 < done < 500
    assert len(fedtailor.resume(new, rounds=done + 1).rounds) == done + 1
