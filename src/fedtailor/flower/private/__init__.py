"""All that is used of flwr beyond what it documents: flwr.app, flwr.clientapp, flwr.serverapp and flwr.simulation.

Any minor version may change it. So it is imported here alone, and tests/flower/test_private_api.py names all of it. A
file for each use, since no process is to load more than its own; and no logic of ours.
"""
