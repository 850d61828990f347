"""Of `flwr build`: an app folder as one file, which a run begins with."""

from flwr.cli.build import build_fab_from_disk
