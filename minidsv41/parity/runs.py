"""What the model makes of a trace's inputs: one function for each kind of trace, stages named as there."""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.parity.names import drafted, replayed
from minidsv41.serve.generate import step
from minidsv41.serve.prefill import Cut, Prefill


def run_trace(model: Model, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    mask = reference.get("image_mask")
    return model.trace(reference["ids"].long(), image_mask=None if mask is None else mask.bool())


def run_decode(model: Model, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """One token per step into an empty cache, then the reference's greedy tokens."""
    cache = Cache(model.config, dtype=model.dtype, device=model.device)
    state = cache.new()
    watched = [name for name in reference if name.startswith("owner_topk_L")]
    chosen: dict[str, list[Tensor]] = {name: [] for name in watched}

    def record(name: str, value) -> None:
        layer, _, stage = name.partition(".")
        if stage == "idx.topk" and f"owner_topk_{layer}" in chosen:
            chosen[f"owner_topk_{layer}"].append(value)

    def feed(ids: Tensor, record=None) -> list[Tensor]:
        return [model.logits(step(model, cache, state, token, record=record).hidden) for token in ids.long()[:, None]]

    out = {"logits": torch.cat(feed(reference["ids"], record))}
    out |= {name: torch.cat(rows) for name, rows in chosen.items()}
    if "greedy_ids" in reference:
        out["greedy_logits"] = torch.cat([out["logits"][-1:], *feed(reference["greedy_ids"])])
        out["greedy_ids"] = out["greedy_logits"][:-1].argmax(-1)
    return out


def run_dspark(model: Model, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """Features and rings of the whole prompt, then the draft at every position that has one."""
    ids = reference["ids"].long()
    batch = Batch.equal(ids[None])
    keys = SequenceKeys(model.config, batch)
    out: dict[str, Tensor] = {}

    def keep(prefix: str):
        return lambda name, value: out.__setitem__(prefix + name, value() if callable(value) else value)

    run = model(batch, keys)
    logits, out["main_hidden"] = model.logits(run.hidden), run.features
    model.mtp.remember(run.features, batch, keys, keep(""))
    for p in drafted(reference):
        first = logits[p].argmax(-1, keepdim=True)
        anchor = reference.get(f"p{p}.anchor", first).long()
        notes = (lambda k, p=p: keep(f"p{p}.trace.D{k}.")) if any(f"p{p}.trace." in n for n in reference) else None
        extra = {"note": notes} if notes else {}
        draft = model.mtp.draft(
            anchor, torch.zeros_like(anchor), torch.full_like(anchor, p), model.embed, model.head, keys, **extra
        )
        parts = {
            "anchor": first,
            "tokens": draft.tokens[0],
            "base_logits": draft.base_logits[0],
            "logits": draft.logits[0],
            "confidence_logit": draft.confidence[0],
            "confidence": draft.confidence[0].sigmoid(),
            "hidden": draft.hidden[0],
        }
        out |= {f"p{p}.{name}": value for name, value in parts.items()}
    return out


def run_replay(model: Model, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """Prompts after a hit without windows (enc), cold ones (dec), both (encdec) or neither (exact); then next_ids."""
    ids, after, out = reference["ids"].long(), reference["next_ids"].long(), {}
    cuts: dict[str, Cut | None] = {"enc": None, "exact": None, "encdec": "report"}
    for case, (kind, hit, length) in replayed(reference).items():
        cache = Cache(model.config, dtype=model.dtype, device=model.device)
        state = cache.new()
        if hit:
            step(model, cache, state, ids[:hit])
            cache.truncate(state, hit)
        work = Prefill(model, cache, state, ids[:length], cut=cuts.get(kind, kind.removeprefix("dec.")))
        logits = model.logits(work.finish())
        out[f"{case}.logits"] = logits[hit - length :] if kind == "enc" else logits
        following = [model.logits(step(model, cache, state, token).hidden) for token in after[:, None]]
        out[f"{case}.next_logits"] = torch.cat(following)
    return out
