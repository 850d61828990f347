"""The ways to deal a dataset out to clients, by name."""

from .base import Partition
from .dirichlet import Dirichlet
from .dirichlet_plain import PlainDirichlet
from .iid import Iid
from .pachinko import Pachinko
from .quantity import Quantity
from .site import BySite

PARTITIONS: dict[str, type[Partition]] = {
    "dirichlet": Dirichlet,
    "dirichlet-plain": PlainDirichlet,
    "quantity": Quantity,
    "pachinko": Pachinko,
    "iid": Iid,
    "site": BySite,
}
