"""Everything that is read from outside, as functions of bytes: a checked object comes of them, or a UserError.

`SEEDS` are bytes that are right, to begin from. Used by hypothesis (test_targets.py) and by atheris (fuzz.py).
"""

from __future__ import annotations

import io
import json
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from fedtailor.base.errors import UserError
from fedtailor.base.keys import flat
from fedtailor.client.codec import client_from_bytes, client_to_bytes
from fedtailor.client.job import ClientState
from fedtailor.clip.load import load
from fedtailor.core.types import Server
from fedtailor.data import open_dataset, pictures
from fedtailor.data.pictures import read_picture
from fedtailor.remote.messages import MaskedRequest, Message, PassRequest, Ready, Refusal, decode, encode
from fedtailor.runs.checkpoint import BEFORE, CHECKPOINT, ROUNDS, STATES
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.predictions import Answers, read_predictions
from fedtailor.runs.records import DataDocument, read_json, read_rounds
from fedtailor.runs.result_file import read_result
from fedtailor.runs.server_bytes import server_from_bytes, server_to_bytes
from fedtailor.settings.keys import parse
from fedtailor.settings.run import Run, make_run, read_toml
from fedtailor.use.model_file import ModelFacts, read_facts

pictures.LIMIT = 4_000_000  # pixels; the real one takes a gigabyte
RUN = "0123456789abcdef" * 2


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fedtailor-fuzz-"))


def written(name: str, data: bytes) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


def comes_back(run: Run) -> None:
    """What a run.toml would hold of it is the same run."""
    again = make_run(settings=flat(tomllib.loads(run.to_toml())))
    assert again == run, (again, run)


# --- what each target does --------------------------------------------------------------------------------------------


def settings(data: bytes) -> None:
    """Words of a command line, a line each."""
    words = data.decode("utf-8", "surrogateescape").split("\n")
    if any(form in word for form in ("folder:", "csv:", "root") for word in words):
        return  # which looks into any folder of this machine
    method = words[0] if "=" not in words[0] else None
    comes_back(make_run(method or None, parse(words[1:] if method else words)))


def run_toml(data: bytes) -> None:
    if b"folder:" in data or b"csv:" in data or b"root" in data:
        return
    comes_back(read_toml(written("run.toml", data)))


def message(data: bytes) -> None:
    found, groups = decode(data)
    assert isinstance(found, Message)
    assert set(groups) == set(found.tensors)


def client_state(data: bytes) -> None:
    assert isinstance(client_from_bytes(data), ClientState)


def server_state(data: bytes) -> None:
    assert server_from_bytes(data).round >= 0


@cache
def rounds_of_two() -> dict[str, bytes]:
    """A small run folder with two checkpoints."""
    root = folder() / "run"
    store = RunFolder.create(root, make_run("promptfl"), {})
    for t in range(3):
        store.append(ROUNDS, [{"round": t, "global": None, "personal": None}] if t else [])
        tensors = {"a": torch.full((2,), float(t))}
        store.checkpoint(Server(t, tensors), {0: ClientState(memory=tensors)} if t else {})
    store.close()
    return {name: (root / name).read_bytes() for name in (CHECKPOINT, BEFORE, ROUNDS, STATES)}


def run_folder(name: str, data: bytes) -> None:
    """A file of it; what is found is one of the two checkpoints, and what it stands for."""
    for other, right in rounds_of_two().items():
        (folder() / "run" / other).write_bytes(data if other == name else right)
    store = RunFolder(folder() / "run")
    found = store.found
    if found is None:
        raise AssertionError("a run that was under way is taken for one that was not begun")
    server, clients = store.saved()
    assert server.round in (1, 2)
    assert server.params["a"].tolist() == clients[0].memory["a"].tolist() == [server.round] * 2
    if name == ROUNDS:
        assert len(store.rounds()) >= server.round


def table(data: bytes) -> None:
    dataset = open_dataset(f"csv:{written('table.csv', data)}")
    assert dataset.classes
    for split in (dataset.train, dataset.test):
        assert len(split.images.fingerprint) == 64


def picture(suffix: str, data: bytes) -> None:
    pixels = read_picture(written(f"picture{suffix}", data))
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3


def model_json(data: bytes) -> None:
    assert isinstance(read_facts(written("model.json", data).parent), ModelFacts)


def result_json(data: bytes) -> None:
    assert read_result(written("result.json", data).parent)["method"]


def data_json(data: bytes) -> None:
    assert isinstance(read_json(written("data.json", data), kind=DataDocument)["classes"], list)


def rounds_jsonl(data: bytes) -> None:
    assert all(isinstance(row["round"], int) for row in read_rounds(written(ROUNDS, data).parent))


def predictions(data: bytes) -> None:
    assert isinstance(read_predictions(written("predictions.safetensors", data).parent), Answers)


def clip(name: str, data: bytes) -> None:
    """A file of a CLIP's folder."""
    for other, right in clip_files().items():
        path = folder() / "clip" / other
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data if other == name else right)
    with torch.no_grad():
        found = load(str(folder() / "clip"))
        assert found.clip.text.token_embedding.weight.isfinite().all()


# --- what they begin from ---------------------------------------------------------------------------------------------


@cache
def clip_files() -> dict[str, bytes]:
    from tiny import tiny_folder

    made = tiny_folder(folder() / "tiny")
    return {path.name: path.read_bytes() for path in made.iterdir()}


def image(form: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (9, 11, 3)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, form)
    return file.getvalue()


def result_document() -> bytes:
    score = {"overall": 50.0, "tail": None}
    whole = {"method": "promptfl", "tuner": "t", "data": "d", "backbone": "b", "labels": "given", "engine": "local"}
    whole |= {"version": "0", "seed": 0, "threads": 1, "rounds": 2, "bytes_up": 3, "bytes_down": 4, "seconds": 0.5}
    whole |= {"peak_rss_mb": 1.5, "zero_shot": score, "zero_shot_personal": score, "global": score, "personal": score}
    whole |= {"balanced": {"global": 1.0, "personal": None}, "best": {"global": score, "personal": None}}
    whole |= {"last10": {"global": score}, "pseudo_labels": None, "privacy": None, "worst_client": 3.0}
    whole |= {"backdoor": None, "never_took_part": ["b"], "run_dir": None, "notes": ["x"]}
    return json.dumps(whole).encode()


def model_document() -> bytes:
    chosen = {"name": "promptfl"}
    whole = {"format": 1, "versions": {}, "classes": ["a", "b"], "template": "a {}.", "method": chosen, "tuner": chosen}
    whole |= {"local": {}, "seed": 0, "rounds": 2, "backbone": {"name": "b", "digest": "d", "precision": "fp32"}}
    whole |= {"preprocessing": {"size": 32, "mean": [0.5] * 3, "std": [0.2] * 3, "resize": "bicubic"}}
    whole |= {"groups": {"head": [0], "mid": [], "tail": [1]}, "has_shared": True, "trained_on": "x", "scores": {}}
    whole |= {"clients": [{"name": "c", "own": False, "predict": "predict"}], "calibration": {"why": "w"}, "files": {}}
    return json.dumps(whole).encode()


def state_bytes() -> list[bytes]:
    tensors = {"a.b": torch.arange(3.0), "n": torch.tensor(2**40)}
    server = Server(3, tensors, {"similar": {0: tensors, 4: tensors}}, {"similar": {7: 4}}, tensors)
    return [client_to_bytes(ClientState(tensors, tensors, {}, 2, "deadbeef-7")), server_to_bytes(server)]


def messages() -> list[bytes]:
    asked = PassRequest(
        run=RUN, client=3, request_id="00c0ffee-12", version=4, state_id="", kept=3, pass_name="train", round=2
    )
    some = {"a": torch.arange(3.0)}
    return [
        encode(asked, params=some, inbox={}),
        encode(
            MaskedRequest(**asked.model_dump(exclude={"kind"}), masking=RUN, sealed={0: "ab" * 96}),
            params=some,
            inbox={},
        ),
        encode(Ready(samples=1, tests=0)),
        encode(Refusal(why="failed")),
    ]


TOML = b"""rounds = 3
[method]
name = "fedprox"
mu = 0.5
[local]
lr = 0.01
betas = [0.9, 0.999]
[tuner]
name = "text_prompt"
length = 4
[about]
version = "0.2.0"
outside = []
"""
WORDS = [
    b"capt\nlr=0.01\ndata.alpha=0.05\ntuner.coupled.length=4\nrounds=20\nrecord=angle,drift",
    b"fedavg\ntuner=text_prompt+visual_prompt\ntuner.text_prompt.length=16\nlabels=copl\nrobust=trimmed",
    b"data=drawn\npreset=tuned\nserver=fedadam\nserver.eta=0.5\nbackbone.device=cpu\nmemory.budget_gb=1",
]
CSV = b"""path,label,split,site,group
a.png,red,train,one,1
b.png,blue,train,two,2
c.png,red,test,one,3
d.png,blue,test,two,4
"""
ROWS = b"""{"round": 1, "global": {"overall": 1.5}, "personal": null}
{"round": 2, "global": null, "personal": null}
"""
DATA = b"""{"classes": ["a"], "clients": ["0"], "template": "{}", "groups": {"head": ["a"]}, "counts": [[3]],
"zero_shot": {"global": {}}}"""
ARRAYS = ("label", "group", "shared", "personal", "picture", "owner")
SAID = {name: torch.tensor([1, 0], dtype=torch.uint8) for name in ARRAYS}
LOGS = (CHECKPOINT, ROUNDS, STATES)
CLIP = ("config.json", "preprocessor_config.json", "tokenizer.json", "model.safetensors")

# What is done with the bytes, and some to begin from.
Target = tuple[Callable[[bytes], None], Callable[[], list[bytes]]]
TARGETS: dict[str, Target] = {
    "settings": (settings, lambda: WORDS),
    "run.toml": (run_toml, lambda: [TOML]),
    "message": (message, messages),
    "client state": (client_state, lambda: state_bytes()[:1]),
    "server state": (server_state, lambda: state_bytes()[1:]),
    **{name: (partial(run_folder, name), partial(lambda it: [rounds_of_two()[it]], name)) for name in LOGS},
    "table": (table, lambda: [CSV]),
    ".png": (partial(picture, ".png"), lambda: [image("PNG"), image("PNG", "P"), image("PNG", "I;16")]),
    ".jpg": (partial(picture, ".jpg"), lambda: [image("JPEG")]),
    ".gif": (partial(picture, ".gif"), lambda: [image(form) for form in ("GIF", "BMP", "TIFF", "WEBP", "PPM")]),
    "model.json": (model_json, lambda: [model_document()]),
    "result.json": (result_json, lambda: [result_document()]),
    "data.json": (data_json, lambda: [DATA]),
    "rows": (rounds_jsonl, lambda: [ROWS]),
    "predictions": (predictions, lambda: [save(SAID)]),
    **{name: (partial(clip, name), partial(lambda it: [clip_files()[it]], name)) for name in CLIP},
}


def try_out(target: str, data: bytes) -> bool:
    """Whether something came of it. Whatever is raised but a UserError is a finding."""
    with quiet():
        try:
            TARGETS[target][0](data)
        except UserError:
            return False
    return True


@contextmanager
def quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a checkpoint is gone back from, what Pillow thinks of a file
        yield
