"""Of `flower-superlink`: its options, and the ASGI app that it serves."""

from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.cli.flower_superlink import _parse_superlink_lifespan_config as parse_options
from flwr.superlink.main import create_app
