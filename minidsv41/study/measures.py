"""What each study tells of a network besides bits per byte and recall."""

from __future__ import annotations

from functools import partial
from statistics import mean

from minidsv41.ledger.bytes import kv_bytes_per_token
from minidsv41.ledger.params import engram_table_params
from minidsv41.serve import study as replay_study
from minidsv41.study.exam import Exam
from minidsv41.study.selection import attention_mass, kept_choice

BOUNDED = {
    "cold, decoder replay late": "decoder_late",
    "cold, decoder replay report": "decoder_report",
    "hit, encoder replay": "encoder",
    "hit, both replays late": "both_late",
    "hit, both replays report": "both_report",
}


def cache(exam: Exam) -> dict[str, float]:
    """Bytes that a token leaves for good."""
    return {"bytes_per_token": float(kv_bytes_per_token(exam.model.config).value)}


def table(exam: Exam) -> dict[str, float]:
    """Table rows' share of the sparse parameters: table and routed experts."""
    c, rows = exam.model.config, float(engram_table_params(exam.model.config).value)
    experts = c.num_hidden_layers * c.n_routed_experts * 3 * c.hidden_size * c.moe_intermediate_size
    return {"engram_share": rows / (rows + experts)}


def unrounded(exam: Exam) -> dict[str, float]:
    """The same weights with caches that are not rounded."""
    found = exam.read(qat=False).quality()
    return {f"{name}_unrounded": found[name] for name in ("bits_per_byte", "recall")}


def selection(exam: Exam) -> dict[str, float]:
    """The attention that the selections keep, mean of all layers that select."""
    layers = exam.model.config.index_source_layer_ids
    return {"attention_mass": mean(attention_mass(exam, layer) for layer in layers)}


def pool(exam: Exam) -> dict[str, float]:
    """The attention that the last layer, which selects from the pool, keeps; and its choice without a pool."""
    layer = exam.model.config.index_source_layer_ids[-1]
    return {"attention_mass": attention_mass(exam, layer), "kept_choice": kept_choice(exam, layer)}


def replay(exam: Exam) -> dict[str, float]:
    """Each bounded way of taking a prompt in, against the exact one: KL divergence (nats) and equal first choices of
    the tokens that follow, on text and on lookups."""
    length, out = exam.sizes.length, {}
    lookups = exam.lookups(exam.sizes.prompts).tokens.flatten()
    take = partial(replay_study.study, exam.model.cpu(), prompts=exam.sizes.prompts, seed=0)
    part = dict(hit=length // 2, turn=length // 8, following=length // 8)
    for name, tokens in (("text", exam.held_out), ("lookups", lookups)):
        ways = replay_study.summary(list(take(tokens, **part)))
        for way, short in BOUNDED.items():
            out[f"kl_{name}_{short}"] = ways[way]["kl"]
            out[f"same_first_{name}_{short}"] = ways[way]["top1_agreement"]
    return out


def nothing(exam: Exam) -> dict[str, float]:
    return {}
