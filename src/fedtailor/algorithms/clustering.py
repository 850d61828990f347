"""Which clients go together, by the classes they hold: the two clusterings of CAPT's server (Section 3.3).

Row k of d is client k's distribution over the classes. Labels count up from 0 in the order in which they appear.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from ..core import Options
from ..data.groups import by_share

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]
Clustering = Callable[[Matrix, int, int], Labels]  # (K, K) rows, how many clusters, seed

TINY = 1e-10  # no probability counts as less, so that logarithms are finite
HEAD = 0.8  # of the classes
BY = "what clients are told apart by: counts of their labels, or how far they moved each class's prompt: none is sent"


class ClusterSettings(Options):
    """Both clusterings as a method's options: clients with like classes, and clients that complete each other."""

    by: Literal["counts", "prompts"] = Field("counts", description=BY)
    metric: Literal["js", "kl", "wasserstein", "tv", "cosine"] = Field("js", description="of similarity (Table 8)")
    similar: Literal["kmeans", "gmm", "hierarchical", "spectral", "dbscan"] = Field("kmeans", description="Table 9")
    diverse: Literal["linkage", "kmeans"] = Field("linkage", description="how complementary clients are joined")
    over: Literal["all", "head+tail"] = Field("all", description="classes in Comp; the middle ones are not in Eq. 6")
    n_similar: int = Field(3, ge=1, description="similarity clusters (Fig. 6)")
    n_diverse: int = Field(4, ge=1, description="heterogeneity clusters (Fig. 6)")

    def labels(self, counts: ArrayLike, seed: int, total: ArrayLike | None = None) -> Sequence[Sequence[int]]:
        """Both, from (K, C) counts of clients' samples; `total` (C,) are those of all clients, if there are more."""
        return self.cluster_similar(counts, seed).tolist(), self.cluster_diverse(counts, seed, total).tolist()

    def cluster_similar(self, counts: ArrayLike, seed: int = 0) -> Labels:
        """(K,) labels of clients with like classes, from (K, C) counts of their samples."""
        return CLUSTERINGS[self.similar](similarity(proportions(counts), self.metric), self.n_similar, seed)

    def cluster_diverse(self, counts: ArrayLike, seed: int = 0, total: ArrayLike | None = None) -> Labels:
        """(K,) labels of clients that complete each other, from (K, C) counts of their samples."""
        d = proportions(counts)
        if self.over == "head+tail":
            groups = by_share(np.asarray(np.sum(counts, axis=0) if total is None else total))
            d = d[:, np.union1d(groups.head, groups.tail)]
        return DIVERSE[self.diverse](complementarity(d), self.n_diverse, seed)


def proportions(counts: ArrayLike) -> Matrix:
    """(K, C) distributions over the classes; of a client without samples, every class is as likely."""
    samples = np.asarray(counts, dtype=np.float64)
    samples = np.where(samples.sum(axis=1, keepdims=True) == 0, 1.0, samples)
    return np.asarray(samples / samples.sum(axis=1, keepdims=True))


# Distances: (K, C) distributions to a symmetric (K, K), exactly zero between equal ones.


def divergence(p: Matrix, q: Matrix) -> Matrix:
    """Kullback-Leibler over the last axis, in nats."""
    p, q = p.clip(TINY, 1), q.clip(TINY, 1)
    return np.asarray((p * np.log(p / q)).sum(axis=-1))


def js(d: Matrix) -> Matrix:
    i, j, middle = d[:, None], d[None, :], (d[:, None] + d[None, :]) / 2
    return divergence(i, middle) / 2 + divergence(j, middle) / 2  # Eq. 5


def kl(d: Matrix) -> Matrix:
    """The mean of both directions."""
    one_way = divergence(d[:, None], d[None, :])
    return (one_way + one_way.T) / 2


def pairwise(rows: Matrix, metric: Literal["cityblock", "sqeuclidean"]) -> Matrix:
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(rows, rows, metric))


DISTANCES: dict[str, Callable[[Matrix], Matrix]] = {
    "js": js,
    "kl": kl,
    # What it costs to move one into the other, where from the first class to the last is 1.
    "wasserstein": lambda d: pairwise(d.cumsum(axis=1), "cityblock") / max(len(d[0]) - 1, 1),
    "tv": lambda d: pairwise(d, "cityblock") / 2,
    "cosine": lambda d: pairwise(d / np.linalg.norm(d, axis=1, keepdims=True), "sqeuclidean") / 2,  # is 1 - cos
}


def similarity(d: Matrix, metric: str) -> Matrix:
    """(K, K), 1 between equal clients. KL alone exceeds 1, up to where TINY ends it, and is divided by that: by the
    largest of a cohort instead, two clients would be more or less alike depending on who else is there."""
    return 1 - DISTANCES[metric](d) / (-math.log(TINY) if metric == "kl" else 1)


# Clusters of like clients, from S = 1 - distance.


def by_appearance(labels: ArrayLike) -> Labels:
    """The same clusters, numbered 0, 1, … as they come."""
    _, first, which = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(first.argsort().argsort()[which], dtype=np.int64)


def of_distinct(kind: str, rows: Matrix, n: int, seed: int) -> Labels:
    """Leaves to scikit-learn what there is to choose: if n reaches the number of distinct rows, each is a cluster."""
    rows = rows.round(6)  # distances are squared on the way: in doubles, nearer rows can't be told apart
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    if n >= len(distinct):
        return by_appearance(which.reshape(-1))  # a column in numpy 2.0
    from sklearn.cluster import AgglomerativeClustering, KMeans, SpectralClustering
    from sklearn.mixture import GaussianMixture

    seed %= 2**32  # as large as scikit-learn takes
    estimator, S = {
        "kmeans": (KMeans(n, n_init=10, random_state=seed), rows),
        # At most n clusters: a component may be nobody's likeliest.
        "gmm": (GaussianMixture(n, covariance_type="diag", random_state=seed), rows),
        "hierarchical": (AgglomerativeClustering(n, metric="precomputed", linkage="average"), 1 - rows),
        # No similarity is 0, which would cut the graph into pieces.
        "spectral": (SpectralClustering(n, affinity="precomputed", random_state=seed), rows.clip(TINY)),
    }[kind]
    return by_appearance(estimator.fit_predict(S))


def dbscan(S: Matrix, n: int, seed: int) -> Labels:
    """However many clusters there are when clients nearer than eps are joined; who has none that near is alone."""
    from sklearn.cluster import DBSCAN

    distance = (1 - S).clip(0)
    eps = distance.mean() / 2 + TINY  # twice as near as clients are on average; not 0 where all are equal
    labels = DBSCAN(eps, min_samples=2, metric="precomputed").fit_predict(distance)
    return by_appearance(np.where(labels < 0, len(S) + np.arange(len(S)), labels))


CLUSTERINGS: dict[str, Clustering] = {
    kind: partial(of_distinct, kind) for kind in ("kmeans", "gmm", "hierarchical", "spectral")
} | {"dbscan": dbscan}


# Clusters of clients that complete each other, from Comp.


def complementarity(d: Matrix) -> Matrix:
    """(K, K), near 1 where j lacks what i has, for i < j and mirrored.

    Here the classes of d are head and tail. Adding them up separately, the common classes first, matters only to ties:
    pairs that share no class are equally complementary, and rounding decides which is joined first, as in the released
    code.
    """
    common_first = d.sum(axis=0).argsort()[::-1]
    head, tail = np.split(common_first, [int(HEAD * d.shape[1])])
    terms = d[:, None] * (1 - d[None, :])
    comp = np.triu(sum(terms.take(classes, axis=-1).sum(axis=-1) for classes in (head, tail)), 1)  # Eq. 6
    return np.asarray(comp + comp.T)


def complement_distance(comp: Matrix) -> Matrix:
    """1 - Comp / max of the pairs i < j, in scipy's order."""
    most = comp.max() or 1.0  # 0 where all clients have one and the same class: then all are equally far
    return np.asarray(1 - comp[np.triu_indices(len(comp), 1)] / most)


def complete_linkage(comp: Matrix, n: int, seed: int) -> Labels:
    """At most n clusters: equally complementary clients are joined together."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(comp) == 1:
        return by_appearance([0])
    return by_appearance(fcluster(linkage(complement_distance(comp), "complete"), n, "maxclust"))


# K-means is the paper's word, but clients with like rows complete the same others, not each other.
DIVERSE: dict[str, Clustering] = {"linkage": complete_linkage, "kmeans": CLUSTERINGS["kmeans"]}
