"""The bundled CLIP is what its card says: small, ordinary in format, and neither blind to `drawn` nor done with it.

The measurement is written here anew, on the package's own loading and preprocessing, so that a slip in
`scripts/pretrain.py`, which wrote the card, would show.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import fedtailor.clip
from fedtailor.base.rng import generator
from fedtailor.clip.load import Checkpoint, load
from fedtailor.clip.text import arrange, pack
from fedtailor.data.dataset import ArrayImages, Dataset, Split
from fedtailor.data.datasets.drawn import drawn
from fedtailor.data.paper import AS_CLIP
from fedtailor.data.preprocess import preprocess

FOLDER = Path(fedtailor.clip.__file__).parent / "bundled"
DOCS = Path(__file__).parent.parent / "docs" / "bundled.md"
CLOSE = 0.6  # points: half-way roundings of another processor may turn a picture or two of the 2000


@pytest.fixture(scope="module")
def card() -> dict[str, object]:
    block = re.search(r"```json\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert block
    figures: dict[str, object] = json.loads(block[1])
    return figures


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load("bundled")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return drawn(0)


def look(checkpoint: Checkpoint, split: Split) -> Tensor:
    """Normalised image features. At the model's own size preprocessing is mere arithmetic; twenty pictures check it."""
    assert isinstance(split.images, ArrayImages)
    mean, std = torch.tensor(checkpoint.mean), torch.tensor(checkpoint.std)
    pixels = ((torch.from_numpy(split.images.pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
    transform = preprocess("clip", AS_CLIP, checkpoint.clip.shape.image_size, checkpoint.mean, checkpoint.std)
    for i in range(20):
        torch.testing.assert_close(transform(split.images.read(i)), pixels[i])
    with torch.no_grad():
        return F.normalize(torch.cat([checkpoint.clip.vision(part) for part in pixels.split(500)]), dim=-1)


@pytest.fixture(scope="module")
def seen(checkpoint: Checkpoint, data: Dataset) -> tuple[Tensor, Tensor]:
    """Image features of the training and the test set."""
    return look(checkpoint, data.train), look(checkpoint, data.test)


def accuracies(logits: Tensor, split: Split) -> np.ndarray:
    assert split.labels is not None
    right = logits.argmax(dim=1).numpy() == split.labels
    return 100 * np.bincount(split.labels, right) / np.bincount(split.labels)


@pytest.fixture(scope="module")
def zero_shot(checkpoint: Checkpoint, data: Dataset, seen: tuple[Tensor, Tensor]) -> np.ndarray:
    words = checkpoint.tokenizer
    sentences = [words(data.template.format(name)) for name in data.classes]
    layout = pack([arrange(sentence, sos=words.sos, eot=words.eot) for sentence in sentences])
    with torch.no_grad():
        text = F.normalize(checkpoint.clip.text(layout), dim=-1)
    return accuracies(seen[1] @ text.T, data.test)


def tuned(
    checkpoint: Checkpoint, data: Dataset, x: Tensor, y: Tensor, test: Tensor, steps: int = 400, draw: int = 0
) -> np.ndarray:
    """Test accuracy per class after so many steps of learning a context of four tokens by cross-entropy."""
    words, clip = checkpoint.tokenizer, checkpoint.clip
    layout = pack([arrange(words(f"{name}."), sos=words.sos, eot=words.eot, shared=4) for name in data.classes])
    rng = generator("pretrain", "tune", draw)
    context = (0.02 * torch.randn(4, clip.text.width, generator=rng)).requires_grad_()
    optimizer = torch.optim.SGD([context], lr=0.02, momentum=0.9)
    for _ in range(steps):
        some = torch.randint(len(x), (64,), generator=rng)
        text = F.normalize(clip.text(layout, shared=context), dim=-1)
        loss = F.cross_entropy(clip.scale * x[some] @ text.T, y[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        text = F.normalize(clip.text(layout, shared=context), dim=-1)
    return accuracies(test @ text.T, data.test)


def thirds(each: np.ndarray) -> list[float]:
    return [float(part.mean()) for part in np.array_split(each, 3)]


def test_it_is_small() -> None:
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir() if file.is_file()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "preprocessor_config.json",
        "README.md",
    } <= files.keys()
    assert sum(files.values()) <= 5_000_000


def test_the_card_says_what_it_is(card: dict[str, object], checkpoint: Checkpoint) -> None:
    text = (FOLDER / "README.md").read_text()
    assert "not OpenAI's CLIP" in text
    assert "license: apache-2.0" in text
    assert card["parameters"] == sum(p.numel() for p in checkpoint.clip.parameters())


def test_any_text_becomes_tokens(checkpoint: Checkpoint) -> None:
    words = checkpoint.tokenizer
    vocab = words.inner.get_vocab_size()
    assert (words.sos, words.eot) == (vocab - 2, vocab - 1)
    assert len(words("A Photo of a dotted BLUE crescent.")) == 8
    for text in ("Zürich, 猫 & 🦊!", "it's 2024", "\x00\x7f", "x" * 60):
        ids = words(text)
        assert ids
        assert words.eot not in ids
        spelt = words.inner.decode(ids).replace("</w>", "")
        assert spelt == unicodedata.normalize("NFC", text).lower().replace(" ", "")


def test_zero_shot_knows_some_classes_and_not_others(zero_shot: np.ndarray, card: dict[str, object]) -> None:
    assert zero_shot.mean() == pytest.approx(card["zero_shot"], abs=CLOSE)
    assert zero_shot.std() == pytest.approx(card["zero_shot_class_std"], abs=CLOSE)
    assert zero_shot.min() == pytest.approx(card["zero_shot_worst_class"], abs=2.1)  # one picture of fifty
    assert zero_shot.max() == pytest.approx(card["zero_shot_best_class"], abs=2.1)
    assert thirds(zero_shot) == pytest.approx(card["zero_shot_head_middle_tail"], abs=CLOSE)
    assert 50 < zero_shot.mean() < 75
    assert zero_shot.std() >= 20
    assert zero_shot.min() <= 20
    assert zero_shot.max() >= 95


def test_a_linear_probe_is_not_perfect(data: Dataset, seen: tuple[Tensor, Tensor], card: dict[str, object]) -> None:
    train, test = seen
    probe = LogisticRegression(C=10.0, max_iter=1000).fit(train.numpy(), data.train.labels)
    score = 100 * probe.score(test.numpy(), data.test.labels)
    assert score == pytest.approx(card["linear_probe"], abs=CLOSE)
    assert 80 < score < 97


def test_a_context_can_be_learned(
    checkpoint: Checkpoint, data: Dataset, seen: tuple[Tensor, Tensor], zero_shot: np.ndarray, card: dict[str, object]
) -> None:
    assert data.train.labels is not None
    after = tuned(checkpoint, data, seen[0], torch.from_numpy(data.train.labels), seen[1])
    assert after.mean() == pytest.approx(card["tuned_context"], abs=2)  # 400 steps enlarge a rounding
    y = torch.from_numpy(data.train.labels)
    random = np.mean([tuned(checkpoint, data, seen[0], y, seen[1], 0, i).mean() for i in range(5)])
    assert random == pytest.approx(card["random_context"], abs=CLOSE)
    # It is learning that helps, not merely the absence of the words "a photo of a".
    assert after.mean() > max(zero_shot.mean(), random) + 3


def test_a_long_tail_helps_the_head_first(
    checkpoint: Checkpoint, data: Dataset, seen: tuple[Tensor, Tensor], zero_shot: np.ndarray, card: dict[str, object]
) -> None:
    labels, C = data.train.labels, len(data.classes)
    assert labels is not None
    cut = np.concatenate([np.flatnonzero(labels == c)[: int(300 * 0.01 ** (c / (C - 1)))] for c in range(C)])
    after = thirds(tuned(checkpoint, data, seen[0][cut], torch.from_numpy(labels[cut]), seen[1]))
    before = thirds(zero_shot)
    assert after == pytest.approx(card["tuned_context_imbalance_100_head_middle_tail"], abs=3)
    assert after[0] - before[0] > after[2] - before[2] + 2


def test_the_docs_quote_the_card(card: dict[str, object]) -> None:
    text = DOCS.read_text()
    for name in ("zero_shot", "zero_shot_class_std", "random_context", "linear_probe", "tuned_context"):
        assert f"{card[name]}" in text
    for name in ("zero_shot_head_middle_tail", "tuned_context_imbalance_100_head_middle_tail"):
        assert " / ".join(f"{value}" for value in card[name]) in text  # type: ignore[attr-defined]


def test_transformers_reads_the_folder(checkpoint: Checkpoint, data: Dataset) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.CLIPModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    prompts = [data.template.format(name) for name in data.classes]
    inputs = tokenizer(prompts, padding="max_length", max_length=77, return_tensors="pt")
    words = checkpoint.tokenizer
    assert inputs["input_ids"][0, :12].tolist()[: len(words(prompts[0])) + 2] == [
        words.sos,
        *words(prompts[0]),
        words.eot,
    ]
    transform = preprocess("clip", AS_CLIP, 32, checkpoint.mean, checkpoint.std)
    pixels = torch.stack([transform(data.test.images.read(i)) for i in range(8)])
    with torch.no_grad():
        theirs = model(**inputs, pixel_values=pixels).logits_per_image
        image = F.normalize(checkpoint.clip.vision(pixels), dim=-1)
        ids = inputs["input_ids"]
        text = F.normalize(checkpoint.clip.text.plain(ids), dim=-1)
    torch.testing.assert_close(checkpoint.clip.scale * image @ text.T, theirs, atol=1e-4, rtol=1e-4)
