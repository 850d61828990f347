"""Pictures to pixels, against transformers' own processor, torch's resize, and numbers known by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from clip_helpers import difference
from PIL import Image
from pydantic import ValidationError
from torch import Tensor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from fedtailor.base.errors import UserError
from fedtailor.clip.load import CLIP_MEAN, CLIP_STD
from fedtailor.data.dataset import Dataset
from fedtailor.data.datasets.cifar import PAPER10, PAPER100
from fedtailor.data.datasets.fashion import PAPER as FASHION
from fedtailor.data.datasets.published import AUGMENTED
from fedtailor.data.paper import AS_CLIP, PaperPreprocess, Pixels
from fedtailor.data.preprocess import Preprocess, preprocess, random_view

CLIP = preprocess("clip", PAPER100, 224, CLIP_MEAN, CLIP_STD)


def picture(height: int, width: int, seed: int = 0) -> Pixels:
    """Smooth colours with some noise, different in every corner."""
    down, right = np.mgrid[0:height, 0:width] / max(height, width)
    waves = np.stack([np.sin(9 * down), np.cos(7 * right), np.sin(5 * (down + right))], axis=-1)
    noise = np.random.default_rng(seed).normal(0, 0.2, waves.shape)
    return ((waves + noise).clip(-1, 1) * 127 + 128).astype(np.uint8)


def paper(entry: PaperPreprocess, size: int = 224) -> Preprocess:
    return preprocess("paper", entry, size, CLIP_MEAN, CLIP_STD)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- clip ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(32, 32), (224, 224), (300, 400), (400, 300), (256, 1002), (180, 90), (64, 67), (9, 7)], ids=str
)
def test_clip_equals_transformers(size: tuple[int, int]) -> None:
    """Broken: pictures are resized, cut or normalised in another way than CLIP was trained with."""
    image = picture(*size)
    want = CLIPImageProcessorPil()(image, return_tensors="pt")["pixel_values"][0]
    assert difference(CLIP(image), want) < 1e-5


def test_odd_margins_are_rounded_as_openai_does() -> None:
    """Broken: with 3 pixels too many the crop starts at 2 (round half to even), where transformers starts at 1."""
    image = picture(224, 227)
    want = torch.from_numpy(image[:, 2:226].copy()).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(t)[:, None, None] for t in (CLIP_MEAN, CLIP_STD))
    assert difference(CLIP(image) * std + mean, want) < 1e-6


@pytest.mark.parametrize("long", [45, 85, 90, 165, 170, 675])
def test_longer_side_is_exact(long: int) -> None:
    """Broken: the longer side comes out one pixel short, where 224 / short · long is not a whole number in floats."""
    image = picture(5, long)
    want = CLIPImageProcessorPil()(image, return_tensors="pt")["pixel_values"][0]
    margin = 224 * long // 5 - 224
    assert margin % 4 != 3, "an odd margin: see above"
    assert difference(CLIP(image), want) < 1e-5


def test_one_colour() -> None:
    """Broken: the scale to 0…1, the mean or the std of a channel."""
    image = np.full((40, 50, 3), (51, 102, 204), dtype=np.uint8)
    got = CLIP(image)
    want = (np.array([0.2, 0.4, 0.8]) - CLIP_MEAN) / CLIP_STD
    assert got.shape == (3, 224, 224)
    assert got.amin(dim=(1, 2)).tolist() == pytest.approx(want, abs=1e-5)
    assert got.amax(dim=(1, 2)).tolist() == pytest.approx(want, abs=1e-5)


# --- paper ---------------------------------------------------------------------------------------------------------

STATISTICS = {
    PAPER10: ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    PAPER100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def normalised(image: Pixels, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    return torch.from_numpy(((image / 255 - np.array(mean)) / np.array(std)).transpose(2, 0, 1)).float()


@pytest.mark.parametrize("dataset", STATISTICS)
def test_cifar_is_normalised_and_then_stretched(dataset: PaperPreprocess) -> None:
    """Broken: the released codes' CIFAR pipeline: the dataset's own statistics, then a bilinear resize of floats."""
    image = picture(32, 32)
    want = F.interpolate(normalised(image, *STATISTICS[dataset])[None], size=(224, 224), mode="bilinear")[0]
    assert difference(paper(dataset)(image), want) < 1e-5


def test_fashion_is_stretched_and_then_normalised() -> None:
    """Broken: the released codes' Fashion-MNIST pipeline: a bilinear resize of bytes, then mean and std 0.5."""
    grey = picture(28, 28)[..., 0]
    large = np.asarray(Image.fromarray(grey).resize((224, 224), Image.Resampling.BILINEAR))
    want = normalised(np.stack([large] * 3, axis=-1), (0.5,) * 3, (0.5,) * 3)
    assert difference(paper(FASHION)(np.stack([grey] * 3, axis=-1)), want) < 1e-5


def test_other_datasets_are_as_clip() -> None:
    """Broken: `paper` differs from `clip` where the released codes do not, or the test view is augmented."""
    image = picture(60, 90)
    for entry in (AS_CLIP, AUGMENTED):
        assert torch.equal(paper(entry)(image), CLIP(image))


def test_unknown_names() -> None:
    """Broken: a misspelt preset quietly becomes another transform."""
    with pytest.raises(UserError, match="did you mean 'paper'"):
        preprocess("papr", AS_CLIP, 224, CLIP_MEAN, CLIP_STD)


def test_a_dataset_is_prepared_as_clip_s_unless_it_says_otherwise() -> None:
    assert Dataset.paper == AS_CLIP == PaperPreprocess()


def test_the_cache_s_key_stays() -> None:
    """Broken: cached features of earlier versions are no longer found, since the key has the transform's repr in it."""
    assert repr(paper(PAPER10, 32)) == (
        "Preprocess(size=32, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.201), resize='late', augment=False)"
    )
    assert (
        repr(paper(AUGMENTED))
        == f"Preprocess(size=224, mean={CLIP_MEAN}, std={CLIP_STD}, resize='bicubic', augment=True)"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": (0.5, 0.5)},
        {"mean": (0.5, 0.5, "0.5")},
        {"mean": (0.5, 0.5, float("nan"))},
        {"std": (0.5, 0.5, 0)},
        {"std": (0.5, 0.5, float("inf"))},
        {"resize": "nearest"},
        {"augment": 1},
        {"size": 224},
    ],
)
def test_what_a_server_may_not_send(wrong: dict[str, Any]) -> None:
    """Broken: a site prepares its pictures in a way that no dataset has, or fails in the middle of a run."""
    with pytest.raises(ValidationError):
        PaperPreprocess(**wrong)
    with pytest.raises(ValidationError):
        PaperPreprocess.model_validate_json(json.dumps(wrong))


# --- augmentation --------------------------------------------------------------------------------------------------


def test_views_follow_their_generator() -> None:
    """Broken: a view depends on something else than its generator, or always is the same."""
    augmented, image = paper(AUGMENTED, 64), picture(60, 90)
    assert torch.equal(augmented(image, seeded(1)), augmented(image, seeded(1)))
    assert len({augmented(image, seeded(seed)).sum().item() for seed in range(8)}) == 8
    before = torch.random.get_rng_state()
    augmented(image, seeded(1))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("entry", [AS_CLIP, PAPER10, PAPER100, FASHION])
def test_only_augmenting_transforms_draw(entry: PaperPreprocess) -> None:
    """Broken: a transform whose result is cached once is random."""
    image, rng = picture(32, 32), seeded(0)
    untouched = rng.get_state()
    assert torch.equal(paper(entry)(image, rng), paper(entry)(image))
    assert torch.equal(rng.get_state(), untouched)


def test_views_are_parts_of_the_picture() -> None:
    """Broken: the crop's area, aspect or mirror image is not drawn as RandomResizedCrop and a fair flip draw them.

    Red counts columns and green rows, so that a view's corners tell where it was taken from.
    """
    ramp = np.zeros((200, 200, 3), dtype=np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(200), np.arange(200)[:, None]
    areas, aspects, mirrored = [], [], 0
    for seed in range(300):
        view = np.asarray(random_view(Image.fromarray(ramp), 32, seeded(seed))).astype(float)
        step_right, step_down = view[16, 24, 0] - view[16, 8, 0], view[24, 16, 1] - view[8, 16, 1]
        mirrored += step_right < 0
        assert step_down > 0
        wide, high = abs(step_right) * 2, step_down * 2  # half of the view was measured
        areas.append(wide * high / 200**2)
        aspects.append(wide / high)
    assert 0.06 < min(areas) < 0.15
    assert 0.9 < max(areas) <= 1.05
    assert 0.70 < min(aspects) < 0.80
    assert 1.25 < max(aspects) < 1.42
    assert 110 < mirrored < 190


def test_nothing_from_outside_a_view_blends_in() -> None:
    """Broken: the resize of a crop looks at pixels beside it, which cropping first cannot."""
    image = Image.fromarray(picture(90, 60))
    found = 0
    for seed in range(20):
        view = np.asarray(random_view(image, 32, seeded(seed)))
        rng = seeded(seed)
        share, aspect, left, top, flip = (torch.rand((), generator=rng).item() for _ in range(5))
        area, aspect = 5400 * (0.08 + 0.92 * share), np.exp(np.log(3 / 4) + (np.log(4 / 3) - np.log(3 / 4)) * aspect)
        w, h = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if w > 60 or h > 90:
            continue  # drawn again: another seed will do
        left, top = int(left * (60 - w + 1)), int(top * (90 - h + 1))
        want = image.crop((left, top, left + w, top + h)).resize((32, 32), Image.Resampling.BICUBIC)
        want = want.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip < 0.5 else want
        assert np.array_equal(view, np.asarray(want))
        found += 1
    assert found >= 5


def test_extreme_pictures() -> None:
    """Broken: a picture that no draw fits fails, or is no longer mirrored half the time."""
    image = picture(4, 400)
    views = [np.asarray(random_view(Image.fromarray(image), 32, seeded(seed))) for seed in range(12)]
    middle = np.asarray(Image.fromarray(image[:, 197:202]).resize((32, 32), Image.Resampling.BICUBIC))
    plain = sum(np.array_equal(view, middle) for view in views)
    mirrored = sum(np.array_equal(view, middle[:, ::-1]) for view in views)
    assert plain > 0
    assert mirrored > 0
