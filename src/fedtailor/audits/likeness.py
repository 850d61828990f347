"""How like two pictures are, with values from 0 to 1."""

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SPREAD = 11, 1.5  # pixels
K1, K2 = 0.01**2, 0.03**2


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """(B,) in dB, of pictures (B, 3, H, W): 10 log₁₀ of 1 over the mean squared difference."""
    return -10 * (a - b).square().mean(dim=(1, 2, 3)).clamp_min(1e-10).log10()


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """(B,) structural similarity.

    Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity, IEEE TIP 2004, Eq. 13.
    """
    steps = torch.arange(WINDOW) - WINDOW // 2
    line = torch.exp(-(steps**2) / (2 * SPREAD**2))
    window = (torch.outer(line, line) / line.sum() ** 2).expand(a.shape[1], 1, -1, -1).to(a)

    def mean(x: Tensor) -> Tensor:
        return F.conv2d(x, window, groups=a.shape[1])

    mu_a, mu_b = mean(a), mean(b)
    var_a, var_b, both = mean(a * a) - mu_a**2, mean(b * b) - mu_b**2, mean(a * b) - mu_a * mu_b
    found = (2 * mu_a * mu_b + K1) * (2 * both + K2) / ((mu_a**2 + mu_b**2 + K1) * (var_a + var_b + K2))
    return found.mean(dim=(1, 2, 3))
