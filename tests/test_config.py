"""Settings: every spelling that is meant to work, and every mistake with its hint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.base.keys import flat
from fedtailor.methods import METHODS
from fedtailor.settings.keys import parse, parse_value
from fedtailor.settings.run import Run, make_run, read_toml
from fedtailor.tuners.join import Join
from fedtailor.tuners.text_prompt import TextPrompt


def made(*words: str, method: str | None = None) -> Run:
    """As the command line does it."""
    return make_run(method, parse(words))


def test_short_and_long_keys_are_one() -> None:
    """Each short key means its long one."""
    short = made("lr=0.01", "batch=8", "epochs=2", "data=drawn", "tuner=lora", "data.partition=iid", method="fedavg")
    long = made(
        "local.lr=0.01", "local.batch=8", "local.epochs=2", "data.name=drawn", "tuner.name=lora",
        "data.partition.name=iid", "method.name=fedavg", "backbone.name=bundled",
    )  # fmt: skip
    assert short == long
    assert (short.local.lr, short.local.batch, short.local.epochs) == (0.01, 8, 2)
    assert (short.data.name, short.tuner.name, short.data.partition.name) == ("drawn", "lora", "iid")


def test_alpha_is_the_partitions() -> None:
    """`data.alpha` is the alpha of whichever partition there is, with no need to name it."""
    assert made("data.alpha=0.5").data.partition.options["alpha"] == 0.5
    assert made("data.alpha=0.5").data.partition.name == "dirichlet"
    assert made("data.alpha=0.5") == made("data.partition.alpha=0.5")
    assert made("data.partition=pachinko", "data.alpha=0.5", "data.alpha_fine=3").data.partition.options == {
        "alpha": 0.5,
        "alpha_fine": 3.0,
    }
    assert made("data.seed=4").data.seed == 4  # data's own keys stay data's own
    with pytest.raises(UserError, match=r"unknown key 'data\.alpha'"):
        made("data.partition=iid", "data.alpha=0.5")


def test_joined_tuners() -> None:
    """Options stand under their part's name; the rest are the part's defaults."""
    run = made("tuner=text_prompt+visual_prompt", "tuner.text_prompt.length=16", method="fedavg")
    assert run.tuner.options["text_prompt"] == {"length": 16, "words": "", "position": "end"}
    assert run.tuner.options["visual_prompt"]["length"] == 4
    tuner = run.tuner.value
    assert isinstance(tuner, Join)
    assert tuner.parts[0] == TextPrompt(length=16)
    with pytest.raises(UserError, match=r"unknown key 'tuner\.length'; did you mean 'tuner\.\w+\.length'\?"):
        made("tuner=text_prompt+visual_prompt", "tuner.length=16", method="fedavg")


def test_presets() -> None:
    """A preset is between the defaults and what the user says."""
    run = made("preset=fedcopl", "batch=16", method="promptfl")
    assert (run.local.epochs, run.local.batch, run.local.weight_decay) == (10, 16, 0.05)
    assert (run.rounds, run.clients, run.tuner.options["length"]) == (20, 10, 16)
    assert make_run("promptfl", {"batch": 16}, preset="fedcopl") == run
    assert made("preset=original", "tuner.length=3", method="promptfl").tuner.options["length"] == 3


def test_published_is_the_print() -> None:
    """CAPT, Sec. 4.1 and App. B; FedCoPL, Sec. 4.1. What is tuned is the default, and stays so."""
    capt = make_run("capt", preset="published")
    assert (capt.rounds, capt.clients, capt.fraction) == (100, 20, 0.4)
    assert (capt.local.epochs, capt.local.batch, capt.local.lr, capt.local.schedule) == (1, 32, 0.001, "constant")
    method = capt.method.options
    assert (method["lam"], method["la"], method["mask"]) == (1.0, 0.0, "sample")
    clusters = {"by": "counts", "metric": "js", "similar": "kmeans", "diverse": "kmeans", "over": "head+tail"}
    assert method["clusters"] == clusters | {"n_similar": 3, "n_diverse": 3}
    assert capt.tuner.options["coupled"]["length"] == capt.tuner.options["class_prompt"]["length"] == 4
    fedcopl = make_run("fedcopl", preset="published")
    assert (fedcopl.rounds, fedcopl.clients, fedcopl.fraction, fedcopl.labels.options["pool"]) == (20, 10, 1.0, "all")
    local = fedcopl.local
    assert (local.epochs, local.lr, local.momentum, local.schedule) == (10, 0.1, 0.9, "cosine")
    fedpurel = make_run("fedpurel", preset="published")
    assert (fedpurel.rounds, fedpurel.clients, fedpurel.method.options["scope"]) == (100, 20, "joint")
    for name in ("capt", "fedcopl", "fedpurel"):
        assert make_run(name, preset="tuned") == make_run(name) != make_run(name, preset="published")


def test_fedcopls_baselines_are_trained_as_fedcopl_is() -> None:
    """Sec. 4.1: one optimiser for all, and a rate that falls."""
    local = make_run("fedcopl").local
    for name in ("promptfl", "promptprox", "pfedprompt", "fedotp"):
        assert make_run(name, preset="fedcopl").local == local


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_and_preset_makes_a_run(name: str) -> None:
    """What the catalogue offers is what the settings take, and builds its method and tuner."""
    for preset in (None, *METHODS[name].presets):
        run = make_run(name, preset=preset)
        named = METHODS[run.method.name]  # a preset may stand for another method
        assert type(run.method.value) is named.method
        assert run.tuner.name == named.tuner
        assert run.data.partition.value.model_fields_set is not None


def test_another_tuner_sheds_the_methods_tuner_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a method's preset sets for its own tuner is not forced upon another."""
    entry = METHODS["promptfl"]
    free = type(entry)(**{**vars(entry), "tuners": ()})
    monkeypatch.setitem(METHODS, "promptfl", free)
    run = made("preset=fedcopl", "tuner=lora", method="promptfl")
    assert run.tuner.name == "lora"
    assert "length" not in run.tuner.options
    assert run.local.batch == 64


def test_the_defaults_make_a_run() -> None:
    """`fedtailor run` alone; zero-shot CLIP has no rounds whatever is said."""
    assert make_run().method.name in METHODS
    assert made("rounds=7", method="zeroshot").rounds == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["method=fedprx"], "unknown method 'fedprx'; did you mean 'fedprox'? (fedtailor list methods)"),
        (["method=3"], "unknown method '3'; known: "),
        (["rouns=3"], "unknown key 'rouns'; did you mean 'rounds'? (fedtailor show promptfl)"),
        (["mu=0.1", "method=fedprox"], "unknown key 'mu'; did you mean 'method.mu'?"),
        (["local.opt=adam"], "unknown key 'local.opt'; did you mean 'local.optimiser'?"),
        (["alpha=0.1"], "unknown key 'alpha'; did you mean 'data.alpha'?"),
        (["momentum=0.5"], "unknown key 'momentum'; did you mean 'local.momentum'?"),
        (["local.momentm=3"], "unknown key 'local.momentm'; did you mean 'local.momentum'?"),
        (["bach=3"], "unknown key 'bach'; did you mean 'batch'?"),
        (["rounds.x=3"], "unknown key 'rounds.x'; did you mean 'rounds'?"),
        (["data=cifer10"], "unknown dataset 'cifer10'; did you mean 'cifar10'? (fedtailor list datasets)"),
        (["data=folders:x"], "unknown dataset 'folders:x'"),
        (["tuner=text_promt"], "unknown tuner 'text_promt'; did you mean 'text_prompt'? (fedtailor list tuners)"),
        (["method=fedavg", "tuner=lora+lorra"], "unknown tuner 'lorra'; did you mean 'lora'?"),
        (["data.partition=dirichlt"], "unknown partition 'dirichlt'; did you mean 'dirichlet'? (fedtailor list"),
        (["data.partition=[1]"], "unknown partition '[1]'; known: "),
        (["preset=cap"], "unknown preset of promptfl 'cap'; did you mean 'capt'? (fedtailor show promptfl)"),
        (["preset=3"], "unknown preset of promptfl '3'; known: capt"),
        (["engine=locl"], "unknown engine 'locl'; did you mean 'local'?"),
        (["labels=givn"], "unknown labels 'givn'; did you mean 'given'?"),
        (["data.groups=cap"], "unknown groups 'cap'; did you mean 'capt'?"),
        (["method=fedprox", "method.nu=1"], "unknown key 'method.nu'; did you mean 'method.mu'?"),
        (["rounds=ten"], "rounds: input should be a valid integer"),
        (["rounds=2.5"], "rounds: input should be a valid integer, got a number with a fractional part, got 2.5"),
        (["clients=0"], "clients: input should be greater than or equal to 1, got 0"),
        (["rounds=0"], "rounds: input should be greater than or equal to 1, got 0"),
        (["rounds=-1"], "rounds: input should be greater than or equal to 1, got -1"),
        (["fraction=0"], "fraction: input should be greater than 0, got 0"),
        (["fraction=1.5"], "fraction: input should be less than or equal to 1, got 1.5"),
        (["fraction=nan"], "fraction: input should be"),
        (["batch=0"], "local.batch: input should be greater than or equal to 1, got 0"),
        (["lr=nan"], "local.lr: input should be a finite number, got nan"),
        (["lr=0"], "local.lr: input should be greater than 0, got 0"),
        (["lr=fast"], "local.lr: input should be a valid number, unable to parse string as a number, got 'fast'"),
        (["lr=[0.1]"], "local.lr: input should be a valid number, got [0.1]"),
        (["seed=-1"], "seed: input should be greater than or equal to 0, got -1"),
        (["data.alpha=0"], "data.partition.alpha: input should be greater than 0, got 0"),
        (["data.alpha=-1"], "data.partition.alpha: input should be greater than 0, got -1"),
        (["data.alpha=inf"], "data.partition.alpha: input should be a finite number, got inf"),
        (["data.imbalance=0.5"], "data.imbalance: input should be greater than or equal to 1, got 0.5"),
        (["rounds=true"], "rounds: a number is due, got true"),
        (["local.momentum=false"], "local.momentum: a number is due, got false"),
        (["data.alpha=true"], "data.partition.alpha: a number is due, got true"),
        (["tuner.length=true"], "tuner.length: a number is due, got true"),
        (["method=fedprox", "method.mu=true"], "method.mu: a number is due, got true"),
        (["data=3"], "data.name: input should be a valid string, got 3"),
        (["local.optimiser=sdg"], "local.optimiser: input should be 'sgd', 'adam' or 'adamw', got 'sdg'"),
        (["local.betas=[2,3]"], "local.betas.0: input should be less than 1, got 2"),
        (["data.server=1.5"], "data.server: input should be less than 1, got 1.5"),
        (["local.nesterov=true", "local.momentum=0"], "local: nesterov needs a momentum above 0"),
        (["local=3"], "local: input should be a valid dictionary or instance of LocalTraining, got 3"),
        (["local.lr.x=3", "lr=1"], "local.lr is given as a value and as a group of keys"),
        (["tuner.length=0"], "tuner.length: input should be greater than or equal to 1, got 0"),
        (["tuner=lora"], "promptfl is a fixed combination with tuner text_prompt, got 'lora'; for another tuner take"),
        (["method=fedavg", "tuner=none"], "tuner=none leaves nothing to train"),
        (["data.template=a photo"], "data.template must hold one {} for the class name, got 'a photo'"),
        (["data.template=a {} {}"], "data.template must hold one {} for the class name, got 'a {} {}'"),
        (["data.template=a {0}"], "data.template must hold one {}"),
        (["data.template=a { {}"], "data.template must hold one {}"),
        (["method=fedavg", "tuner=lora+adapter", "tuner.lora=3"], "tuner.lora: input should be a valid dictionary"),
        (["rounds"], "'rounds' is not key=value; write for example rounds=20"),
        (["method.carry=shared"], "method.carry: only what released codes do has it; take preset=released"),
        (["method=fedpurel", "method.schedule=interleaved"], "method.schedule: only what released codes do has it"),
        (["=3"], "'=3' is not key=value"),
        (["lr=1", "local.lr=2"], "local.lr is given twice"),
    ],
)
def test_mistakes(words: list[str], told: str) -> None:
    """What was got, what is allowed, what to do; nothing is run and nothing quietly ignored."""
    with pytest.raises(UserError) as caught:
        made(*words, **({} if any(w.startswith("method=") for w in words) else {"method": "promptfl"}))
    assert told in str(caught.value)


def test_two_methods_are_a_mistake() -> None:
    """`fedtailor run promptfl method=fedprox` runs neither."""
    with pytest.raises(UserError, match="the method is given twice, as 'promptfl' and as 'fedprox'"):
        made("method=fedprox", method="promptfl")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("0.1", 0.1), ("1e-3", 1e-3), ("true", True), ("[1, 2]", [1, 2]), ('"3"', "3"), ("", ""),
        ("drawn-lt", "drawn-lt"), ("a photo of a {}.", "a photo of a {}."), ("{}", "{}"),
        ("2024-01-01", "2024-01-01"), ("a=b", "a=b"),
        ("folder:my pictures", "folder:my pictures"),
    ],
)  # fmt: skip
def test_values(text: str, value: Any) -> None:
    """TOML where it is a number, a truth, a list or quoted; anything else is plain text."""
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_bare_template_is_text() -> None:
    """`data.template={}` is the class name alone, not an empty table."""
    assert made("data.template={}").data.template == "{}"


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("more", [{}, {"data": "imagenet-lt", "data.partition": "iid", "local.betas": [0.5, 0.9]}])
def test_toml_round_trip(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    """A run written out and read again is equal, for every method."""
    run = make_run(name, more)
    (tmp_path / "run.toml").write_text(run.to_toml())
    assert read_toml(tmp_path / "run.toml") == run


def test_toml_round_trip_of_a_join(tmp_path: Path) -> None:
    """Joined tuners and texts that need quoting."""
    run = made(
        "tuner=text_prompt+visual_prompt", "tuner.text_prompt.length=16", 'data.template=a "{}" \\ ü', method="fedprox"
    )
    (tmp_path / "run.toml").write_text(run.to_toml())
    again = read_toml(tmp_path / "run.toml")
    assert again == run
    assert again.tuner.value == run.tuner.value


def test_settings_over_a_toml(tmp_path: Path) -> None:
    """Further settings win; another name sheds the options of the one before, another dataset its long tail."""
    path = tmp_path / "run.toml"
    path.write_text(made("rounds=9", "tuner.length=7", "data.alpha=0.7", "lr=0.5", method="fedavg").to_toml())
    assert read_toml(path, {"rounds": 2, "lr": 0.25}).local.lr == 0.25
    assert read_toml(path, {"data.alpha": 0.2}).data.partition.options["alpha"] == 0.2
    other = read_toml(path, parse(["tuner=lora", "data.partition=iid", "data=drawn"]))
    assert (other.tuner.name, other.data.partition.options, other.data.imbalance) == ("lora", {}, 1.0)
    assert (other.rounds, other.local.lr) == (9, 0.5)
    assert read_toml(path, {"method": "fedprox"}).method.options == {"mu": 0.5}
    assert read_toml(path, {"data": "cifar100-lt"}).data.imbalance == 100
    with pytest.raises(UserError, match=r"unknown key 'rouns'"):
        read_toml(path, {"rouns": 3})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rounds = ", "is not a readable run.toml"),
        ("rounds = 3", "is not a run.toml: it names no method"),
        ('method = "fedavg"', "is not a run.toml: it names no method"),
        ('[method]\nname = "fedprx"', "unknown method 'fedprx'; did you mean 'fedprox'?"),
        ('rouns = 3\n[method]\nname = "fedavg"', "unknown key 'rouns'; did you mean 'rounds'?"),
    ],
)
def test_wrong_toml(text: str, told: str, tmp_path: Path) -> None:
    """A file that is no run, or one with a mistake in it."""
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_toml(tmp_path / "run.toml")
    assert told in str(caught.value)


def test_a_toml_that_is_not_there(tmp_path: Path) -> None:
    """It says so."""
    with pytest.raises(UserError, match=r"is not a readable run\.toml"):
        read_toml(tmp_path / "no.toml")


def test_a_run_toml_runs_the_run_again(small: dict[str, Any], tmp_path: Path) -> None:
    """The file alone gives the same numbers, round by round."""
    first = fedtailor.run("promptfl", small, out=tmp_path / "first")
    again = fedtailor.run(read_toml(tmp_path / "first" / "run.toml"))
    assert again.run == first.run
    for a, b in zip(first.rounds, again.rounds, strict=True):
        assert {**a, "seconds": 0, "peak_rss_mb": 0} == {**b, "seconds": 0, "peak_rss_mb": 0}


def test_everything_is_written_out() -> None:
    """A resolved run names every option of its parts, so that a change of defaults changes no old run."""
    written = flat(make_run("fedprox").document())
    assert {"method.mu", "local.momentum", "tuner.length", "data.partition.alpha", "data.imbalance"} <= set(written)
    assert not any(isinstance(v, float) and math.isnan(v) for v in written.values())


@pytest.mark.parametrize(("preset", "length", "momentum"), [("", 1.0, 0.0), ("capt", 1.0, 0.0), ("original", 0.1, 0.5)])
def test_fedloges_frame(preset: str, length: float, momentum: float) -> None:
    """Rows are long enough for a narrow network; the released length comes with the released settings only."""
    run = make_run("fedloge", {"preset": preset} if preset else {})
    assert run.method.options["length"] == length
    assert (run.local.lr, run.local.momentum) == (0.03, momentum)


def test_a_run_of_0_1_0_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('rounds = 3\n[method]\nname = "capt"\n[about]\nversion = "0.1.0"\n')
    with pytest.raises(UserError, match=r"run\.toml is of fedtailor 0\.1, .*; write its settings anew"):
        read_toml(path)
