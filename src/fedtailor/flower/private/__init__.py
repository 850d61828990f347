"""All that is used of flwr beyond what it documents (flwr.app, flwr.clientapp, flwr.serverapp, flwr.simulation).

Any minor version may change it, so it is imported here alone, and tests/flower/test_private_api.py names all of it. By
who needs it, since each process is to load no more than its own: what is in wire.py is light. No logic of ours.
"""
