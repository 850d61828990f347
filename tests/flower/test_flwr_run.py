"""`flwr run` of our app, all else Flower's own: the same bits as in one process, deployed and simulated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deployed import SITES, SMALL, until, write_data
from stock import Stock
from test_app import bits, line, same

import fedtailor

pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("default")]  # Flower's own are its own


def test_on_stock_supernodes(tmp_path: Path) -> None:
    """One of them dies on the way, and is started again. What cannot run is told in one line."""
    data = write_data(tmp_path / "data")
    stock = Stock(tmp_path, data)
    try:
        told = stock.run("settings='fedprx clients=3'")
        assert "fedtailor.base.errors.UserError: unknown method 'fedprx'; did you mean 'fedprox'?" in told
        assert "Traceback" not in told
        assert "Exit Code: 201" in told
        settings = line("capt", SMALL, clients=SITES, data=f"folder:{data / 'server'}").replace("'", "")
        with ThreadPoolExecutor() as aside:
            run = aside.submit(stock.run, f'settings="{settings}" run="mine"')
            rounds = tmp_path / "runs" / "mine" / "rounds.jsonl"
            until(lambda: run.done() or (rounds.is_file() and rounds.read_text()), told=stock.logs)
            stock.kill("supernode-0")
            stock.supernode(0)
            told = run.result()
        assert "finished; fedtailor report" in told, told + stock.logs()
    finally:
        stock.stop()
    own = {"data": f"csv:{data / 'sites.csv'}", "data.partition": "site", "clients": SITES, "fraction": 1.0}
    fedtailor.run("capt", {**SMALL, **own}, out=tmp_path / "here")
    same(tmp_path / "here", tmp_path / "runs" / "mine", tmp_path)


def test_in_flowers_simulation(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    settings = {**SMALL, "data": f"csv:{data / 'sites.csv'}", "data.partition": "site"}
    stock = Stock(tmp_path, data, simulated=True)
    try:
        words = line("capt", settings).replace("'", "")
        told = stock.run(f'settings="{words}" run="mine"', "--federation-config", f"num-supernodes={SITES}")
        assert "finished; fedtailor report" in told, told + stock.logs()
    finally:
        stock.stop()
    fedtailor.run("capt", {**settings, "clients": SITES}, out=tmp_path / "here")
    assert bits(tmp_path / "here") == bits(tmp_path / "runs" / "mine")
