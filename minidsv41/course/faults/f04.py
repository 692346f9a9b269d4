"""Lesson 04: slips in pooling and in sharing. The stale index key is 00's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.course.sabotage import Fault, replaced
from minidsv41.model.attention import Attention, Context
from minidsv41.model.compressor import Compressor
from minidsv41.model.keys import Keys
from minidsv41.ops import Batch


def scalar_gate():
    """Every channel gets the mean of all channels' gate scores."""

    def one_number(original: Callable) -> Callable:
        def forward(self: Compressor, x: Tensor, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor, Tensor]:
            if self.ratio == 1:
                return original(self, x, batch, keys)
            weight = self.wgate.weight
            kept, weight.data = weight.data, weight.data.mean(0, keepdim=True).expand_as(weight).clone()
            try:
                return original(self, x, batch, keys)
            finally:
                weight.data = kept

        return forward

    return replaced(Compressor, "forward", one_number)


def last_position():
    """Entries and index keys are rotated by the position of their group's last token, not of its first."""

    def later(original: Callable) -> Callable:
        def publish(self: Attention, x: Tensor, ctx: Context, note: Callable) -> None:
            def shifted(rotation: Callable) -> Callable:
                def rotate(ctx: Context, *, compressed: bool, positions: Tensor | None = None):
                    last = None if positions is None else positions + self.compressor.ratio - 1
                    return rotation(ctx, compressed=compressed, positions=last)

                return rotate

            with replaced(Context, "rotation", shifted):
                original(self, x, ctx, note)

        return publish

    return replaced(Attention, "publish", later)


@contextmanager
def first_choice() -> Iterator[None]:
    """Readers use the choice of the layer that owns the entries, whoever has chosen since."""
    with replaced(ModelConfig, "index_owner", lambda original: ModelConfig.kv_owner):
        yield


FAULTS = (
    Fault(
        name="04.scalar_gate",
        kind={"en": "shape", "zh": "形状"},
        change={
            "en": "one gate for all channels, not one for each",
            "zh": "一个 token 的所有通道共用一个门控，而不是逐通道门控",
        },
        symptom={
            "en": "loads, runs and talks; each entry lies on the segment between its two tokens",
            "zh": "检查点能加载、能运行、能说话；只是每条条目都落在两个 token 的连线上",
        },
        apply=scalar_gate,
    ),
    Fault(
        name="04.last_position",
        kind={"en": "off by one", "zh": "差一"},
        change={
            "en": "an entry turns by its last token's position, not its first's",
            "zh": "条目按组内最后一个 token 的位置旋转，而不是第一个",
        },
        symptom={
            "en": "owners of ratio 1 are right, the others one position off: every distance to a pair is short by 1",
            "zh": "压缩比 1 的源层正确，其余差一个位置：到每个压缩组的距离都少 1",
        },
        apply=last_position,
    ),
    Fault(
        name="04.first_choice",
        kind={"en": "addressing", "zh": "寻址"},
        change={
            "en": "readers take the owner's choice, not the latest",
            "zh": "读取者使用源层的选择，而不是最近一次选择",
        },
        symptom={
            "en": "Reindex layers score and choose, and nobody reads it; nothing shows below k entries",
            "zh": "Reindex 层照样打分和选择，却没有人使用；条目不足 k 条时毫无异常",
        },
        apply=first_choice,
    ),
)
