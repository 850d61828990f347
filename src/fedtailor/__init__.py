"""Tailor a frozen CLIP to many sites at once, without their images leaving them."""

__version__ = "0.1.0"
