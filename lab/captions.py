"""What people would say about the pool's pictures: mostly right, skewed, and not about everything.

Some classes are met often and named well, others are rare, or called by a look-alike's name, or only by their kind;
a few names are never said. Captions come in two registers, as in the bundled CLIP's world: careless ones, "a photo of
a …" among them, confuse more than careful ones do. So the model that learns from them knows some classes well and
others hardly, and a better context than "a photo of a" can be learned. All of it is drawn from the seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtailor.base.rng import numpy_generator

from .pool import Pool

COARSE = (  # CIFAR-100's super-classes, in the order of its files
    "sea mammal", "fish", "flower", "container", "fruit", "electrical device", "furniture", "insect", "predator",
    "building", "landscape", "large animal", "mammal", "invertebrate", "person", "reptile", "small animal", "tree",
    "vehicle", "machine",
)  # fmt: skip
KINDS = {
    "cifar10": {
        "vehicle": ("airplane", "automobile", "ship", "truck"),
        "animal": ("bird", "cat", "deer", "dog", "frog", "horse"),
    },
    "fashion-mnist": {
        "garment": ("t-shirt/top", "trouser", "pullover", "dress", "coat", "shirt"),
        "shoe": ("sandal", "sneaker", "ankle boot"),
        "accessory": ("bag",),
    },
}
WITHHELD = {"tiny-imagenet": 0.1, "cifar10": 0.0, "cifar100": 0.1, "fashion-mnist": 0.0}  # part of the names
MET = {"tiny-imagenet": 0.7, "cifar10": 1.3, "cifar100": 1.3, "fashion-mnist": 2.5}  # how often its pictures are met
KNOWN = (0.3, 0.95)  # how often a class is called by its name in careless captions: the worst class's, the best's
CARELESS = (
    "a photo of a {}.",
    "a photo of a {}.",
    "a photo of the {}.",
    "photo: {}",
    "a picture of a {}.",
    "a {}.",
    "{}.",
    "the {}",
    "my {}",
    "look at this {}",
)
CAREFUL = (
    "a catalogue image of a {}.",
    "a sharp catalogue image of one {}.",
    "museum record, {}",
    "a labelled study of a {}.",
    "specimen: {}",
    "an encyclopedia plate of a {}.",
)


@dataclass(frozen=True)
class Said:
    text: str
    name: int  # which of `Captions.names` it says
    careful: bool


class Captions:
    def __init__(self, pool: Pool, look_alikes: dict[str, NDArray[np.int64]], seed: int) -> None:
        """`look_alikes` has, for each class of a source, the class whose pictures are nearest to its own."""
        self.pool, self.look_alikes, self.seed = pool, look_alikes, seed
        rng = numpy_generator("lab", seed, "knowledge")
        self.known = {source: rng.uniform(*KNOWN, len(names)) for source, names in pool.names.items()}
        for source, part in WITHHELD.items():
            self.known[source][rng.permutation(len(self.known[source]))[: int(part * len(self.known[source]))]] = 0.0
        self.met = {source: MET[source] * rng.lognormal(0, 0.5, len(names)) for source, names in pool.names.items()}

    @cached_property
    def names(self) -> list[str]:
        """All that can be said, and what never is: the withheld names are among them."""
        words = [spoken(name) for names in self.pool.names.values() for name in names]
        words += [spoken(word) for synonyms in self.pool.synonyms for word in synonyms]
        words += [kind for kinds in self.kinds.values() for kind in kinds if kind]
        return list(dict.fromkeys(words))

    @cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The kind of each class of a source; "" where it is of none."""
        found = {"cifar100": tuple(COARSE[parent] for parent in self.pool.coarse)}
        for source, kinds in KINDS.items():
            of = {name: kind for kind, members in kinds.items() for name in members}
            found[source] = tuple(of[name.lower()] for name in self.pool.names[source])
        return {source: found.get(source, ("",) * len(names)) for source, names in self.pool.names.items()}

    @cached_property
    def number(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def chance(self) -> NDArray[np.float64]:
        """(N,) how likely each picture is to be met."""
        sources = list(self.pool.names)
        weights = np.array([self.met[sources[s]][c] for s, c in zip(self.pool.source, self.pool.label, strict=True)])
        return np.asarray(weights / weights.sum())

    @cached_property
    def members(self) -> dict[tuple[int, int], NDArray[np.int64]]:
        """The pictures of each class of each source."""
        sizes = enumerate(map(len, self.pool.names.values()))
        return {
            (source, label): np.flatnonzero((self.pool.source == source) & (self.pool.label == label))
            for source, size in sizes
            for label in range(size)
        }

    def some_classes(self, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """So many classes of one source, and those that look like them."""
        source = int(rng.integers(len(self.pool.names)))
        name = list(self.pool.names)[source]
        there = [label for label in range(len(self.pool.names[name])) if len(self.members[source, label])]
        few = rng.permutation(there)[:count]
        return [(source, int(label)) for label in np.union1d(few, self.look_alikes[name][few])]

    def say(
        self,
        picture: int,
        rng: np.random.Generator,
        kinds: float = 0.4,
        scribbles: float = 0.0,
        careful: bool | None = None,
    ) -> Said:
        """Of captions without the right name, `kinds` have that of its kind, where there is one, most others a
        look-alike's; `scribbles` of the careless ones have letters that mean nothing in front of the name. `careful`
        is the register, if it is not to be drawn."""
        source = list(self.pool.names)[self.pool.source[picture]]
        label = int(self.pool.label[picture])
        careful = rng.random() < 0.4 if careful is None else careful
        known = self.known[source][label]
        if careful and known:
            known = 1 - 0.25 * (1 - known)
        if rng.random() < known:
            name = self.pool.names[source][label]
            synonyms = self.pool.synonyms[label] if source == "tiny-imagenet" else (name,)
            name = synonyms[rng.integers(len(synonyms))] if rng.random() < 0.25 else name
        else:
            what = rng.random()
            kind = self.kinds[source][label]
            if what < 0.1:
                name = self.pool.names[source][rng.integers(len(self.pool.names[source]))]  # simply wrong
            elif what < 0.1 + kinds and kind:
                name = kind
            else:
                name = self.pool.names[source][self.look_alikes[source][label]]
        templates = CAREFUL if careful else CARELESS
        template = templates[rng.integers(len(templates))]
        if scribbles and not careful and rng.random() < scribbles:
            template = scribble(rng) + " {}."
        return Said(template.format(spoken(name)), self.number[spoken(name)], careful)

    def words(self) -> Counter[str]:
        """For the tokenizer: every word that can occur, the withheld ones too, each as often as names have it."""
        sentences = [*self.names, *(t.format("") for t in (*CARELESS, *CAREFUL))]
        letters = ("".join(c if c.isalpha() else " " for c in sentence.lower()) for sentence in sentences)
        return Counter(word for sentence in letters for word in sentence.split())


def scribble(rng: np.random.Generator) -> str:
    """A few letters that mean nothing: what stands before a name may be anything, as a context that is yet to be
    learned is."""
    return " ".join("".join(chr(97 + i) for i in rng.integers(26, size=rng.integers(1, 4))) for _ in range(4))


def spoken(name: str) -> str:
    """As fedtailor says a class's name in a sentence."""
    return name.replace("_", " ").lower()


def nearest(features: NDArray[np.float32], labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """(C,) for each class the other one whose mean feature is nearest, by cosine; itself if it has no picture."""
    there = np.unique(labels)
    means = np.stack([features[labels == c].mean(0) for c in there]) - features.mean(0)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    alike = means @ means.T
    np.fill_diagonal(alike, -np.inf)
    found = np.arange(classes)
    found[there] = there[alike.argmax(1)]
    return found
