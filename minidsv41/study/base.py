"""What every study starts from: the shape, and how it is trained and asked."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.study.variant import reshaped
from minidsv41.train.loop import TrainConfig

# The toy with six layers (window, owner and Reuse in the encoder; owner with pool, Reuse and Reindex in the decoder),
# half its window, selection and pool, for sequences half as long, and fewer rounds of Sinkhorn.
SHAPE = reshaped(
    ModelConfig.preset("toy"),
    dict(
        num_hidden_layers=6,
        sliding_window=16,
        compress_ratios=(0, 2, 2, 1, 1, 1, 0, 0, 0),
        kv_source_layer_ids=(1, 3),
        index_source_layer_ids=(1, 3, 5),
        index_topk=16,
        candidate_source_layer_id=3,
        candidate_topk_blocks=6,
        hc_sinkhorn_iters=4,
        engram_layer_ids=(1,),
        dspark_target_layer_ids=(3, 4, 5),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How long each run trains, and how much each is asked.

    Batches are text, `recall` sequences of them with things to look up; `replay` are under decoder replay; the
    indexer is aligned on the last `align`; `dense` is the share of the steps that read every entry.
    """

    steps: int = 300
    batch: int = 32
    length: int = 128
    lr: float = 9e-3
    recall: int = 24
    recall_weight: float = 4.0
    replay: int = 16
    align: int = 8
    dense: float = 0.5
    draft_steps: int = 150
    windows: int | None = None  # batches of validation text of each kind; all if None
    asked: int = 192  # sequences with things to look up
    prompts: int = 12  # of the replay and draft measures
    device: str = "cpu"

    def settings(self, seed: int) -> TrainConfig:
        """The base settings of a training; it is saved at its end only."""
        names = "batch length lr recall recall_weight replay align dense device steps"
        shared = {name: getattr(self, name) for name in names.split()}
        once = dict(save_every=self.steps, validate_every=self.steps)
        return TrainConfig(seed=seed, threads=1, draft_steps=0, **once, **shared)


QUICK = dict(steps=2, batch=2, length=128, recall=1, replay=1, align=1, draft_steps=2, windows=1, asked=8, prompts=1)
