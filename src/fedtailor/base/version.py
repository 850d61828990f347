"""The version: run folders and remote clients of another one are refused."""

__version__ = "0.2.0"
