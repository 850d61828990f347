"""`flwr run` of our app, all else Flower's own: the same bits as in one process, deployed and simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed import SITES, SMALL, write_data
from stock import Stock
from test_app import bits, line, same

import fedtailor

pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("default")]  # Flower's own are its own


def test_on_stock_supernodes(tmp_path: Path) -> None:
    """What cannot run is told in one line."""
    data = write_data(tmp_path / "data")
    stock = Stock(tmp_path, data)
    try:
        told = stock.run("settings='fedprx clients=3'")
        assert "fedtailor.base.errors.UserError: unknown method 'fedprx'; did you mean 'fedprox'?" in told
        assert "Traceback" not in told
        assert "Exit Code: 201" in told
        settings = line("capt", SMALL, clients=SITES, data=f"folder:{data / 'server'}").replace("'", "")
        told = stock.run(f'settings="{settings}" run="mine"')
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
