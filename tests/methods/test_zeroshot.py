"""Zero-shot CLIP is the hand-written sentence, nothing else."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedtailor.evaluation.testing import score_shared, score_zero_shot
from fedtailor.runs.execute import train
from world import NAMES, checkpoint, dataset, world


def test_logits_are_those_of_the_template() -> None:
    """Every image against "a photo of a NAME.", by the plain 77-token path."""
    experiment, own = world("zeroshot", "none"), checkpoint()
    ids = []
    for name in NAMES:
        words = own.tokenizer(dataset().template.format(name.replace("_", " ")))
        ids.append([own.tokenizer.sos, *words, own.tokenizer.eot] + [0] * (75 - len(words)))
    text = F.normalize(own.clip.text.plain(torch.tensor(ids)), dim=-1)
    x = experiment.tests.features.fetch(experiment.tests.everything)
    expected = own.clip.scale * F.normalize(x, dim=-1) @ text.T
    torch.testing.assert_close(
        experiment.job.method.predict(experiment.job.model, {}, x), expected, atol=1e-4, rtol=1e-4
    )


def test_no_round_is_run_and_the_server_has_the_zero_shot_score() -> None:
    experiment = world("zeroshot", "none")
    assert experiment.run.rounds == 0
    assert list(train(experiment)) == []
    assert (
        score_shared(experiment.job, experiment.job.first_server(), experiment.tests)
        == score_zero_shot(experiment.job, experiment.tests)[0]
    )


def test_a_tuner_in_the_image_tower_starts_from_the_same_zero_shot() -> None:
    """Whatever stage the images are cached at, CLIP as it is scores the same."""
    plain = score_zero_shot(world("zeroshot", "none").job, world("zeroshot", "none").tests)[0]
    for tuner in ("visual_prompt", "lora", "coupled"):
        experiment = world("fedavg", tuner)
        assert experiment.job.model.stage != "features"
        assert score_zero_shot(experiment.job, experiment.tests)[0] == plain
