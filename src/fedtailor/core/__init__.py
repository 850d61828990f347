"""The vocabulary in which every method is written."""

from .bend import Bend, Context
from .initial import linear, linear_init, normal
from .losses import log_prior, task_loss
from .method import Method, TwoBranches, branch, even, resolve, weighted_mean
from .model import Model, Tuner
from .optim import Gradient, LocalTraining, gradient_of, gradients, optimise
from .statistics import Form, Forms, class_counts
from .types import FIXED, GLOBAL, LOCAL, OWN, Balance, Batch, Cluster, Each, Me, Params, Pass, Reply, Samples, Scope

# isort: split
from .types import Options, Rebalancer, Server, View

__all__ = [
    "FIXED", "GLOBAL", "LOCAL", "OWN", "Balance", "Batch", "Bend", "Cluster", "Context", "Each", "Form", "Forms",
    "Gradient", "LocalTraining", "Me", "Method", "Model", "Options", "Params", "Pass", "Rebalancer",
    "Reply", "Samples", "Scope", "Server", "Tuner", "TwoBranches", "View", "branch", "class_counts", "even",
    "gradient_of", "gradients", "linear", "linear_init", "log_prior", "normal", "optimise", "resolve", "task_loss",
    "weighted_mean",
]  # fmt: skip
