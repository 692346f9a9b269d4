"""All books of one config, in reading order."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.ledger import bytes as kept
from minidsv41.ledger import checkpoint, flops, handoff, models, params, scratch, traffic
from minidsv41.ledger.line import Line, plain
from minidsv41.ledger.persistent import persistent_lines


@dataclass(frozen=True)
class Book:
    title: str
    lines: tuple[Line, ...]


def books(c: ModelConfig) -> list[Book]:
    """Bytes, parameters, checkpoint, FLOPs and traffic of `c`; the release also with its vision tower and ancestors."""
    contents = {
        "Kept for each token": token_lines(c),
        "Kept for one sequence": sequence_lines(c),
        "Kept on disk for each token of a request": persistent_lines(c, ancestors=is_release(c)),
        "Handed over from prefill to decode": handoff.book_lines(c),
        "Parameters": parameter_lines(c),
        "Parameters that one token meets": [
            params.active_per_layer_matrices(c),
            params.active_prefill_encoder(c),
            params.active_decode_with_head(c),
            params.active_decode_full(c),
        ],
        "Checkpoint by storage format": checkpoint_lines(c),
        "FLOPs of decoding one token (BF16 x1, FP8 x1/2, FP4 x1/4)": flop_lines(c),
        "Memory traffic of one token": [
            *(traffic.mhc_bytes_per_token(c, form) for form in traffic.FORMS),
            traffic.engram_bytes_per_token(c),
        ],
    }
    if is_release(c):
        contents["Against the ancestors"] = [models.ratio_vs(c, ancestor) for ancestor in models.ANCESTORS]
    return [Book(title, tuple(lines)) for title, lines in contents.items()]


def is_release(c: ModelConfig) -> bool:
    return c == ModelConfig()


def token_lines(c: ModelConfig) -> list[Line]:
    return [
        kept.main_entry_bytes(c),
        kept.index_entry_bytes(c),
        *kept.owner_bytes_per_token(c),
        kept.entries_per_token(c),
        kept.main_bytes_per_token(c),
        kept.index_bytes_per_token(c),
        *(kept.kv_bytes_per_token(c, layout) for layout in kept.LAYOUTS),
        kept.kv_bytes_per_token_no_sharing(c),
    ]


def sequence_lines(c: ModelConfig) -> list[Line]:
    lines = [
        kept.window_row_bytes(c),
        kept.swa_bytes_per_sequence(c),
        kept.swa_bytes_per_sequence_with_draft(c),
        kept.compressor_state_bytes_per_sequence(c),
        kept.open_pair_bytes(c),
        kept.engram_history_bytes(c),
        scratch.scratch_bytes(c),
    ]
    for context in flops.contexts(c):
        line = kept.state_bytes(c, context)
        lines.append(line.named(f"{line.name}_{flops.label(context)}", line.unit))
    return lines


def parameter_lines(c: ModelConfig) -> list[Line]:
    lines = [
        params.attn_params(c),
        params.expert_params(c),
        params.gate_params(c),
        params.mhc_params_per_sublayer(c),
        params.block_params(c),
        params.compressor_params(c),
        params.indexer_params(c),
        params.embed_head_params(c),
        params.backbone_params(c),
        params.engram_table_params(c),
        params.engram_wkv_params(c),
        params.engram_params(c),
        params.draft_params(c),
        params.parameter_count(c),
    ]
    return [*lines, params.VISION, params.total_params(c)] if is_release(c) else lines


def checkpoint_lines(c: ModelConfig) -> list[Line]:
    lines = [
        checkpoint.expert_bytes(c),
        checkpoint.block_other_bytes(c),
        *checkpoint.checkpoint_lines(c),
        checkpoint.checkpoint_bytes(c),
    ]
    return [*lines, checkpoint.release_bytes(c)] if is_release(c) else lines


def flop_lines(c: ModelConfig) -> list[Line]:
    lines = [*flops.weight_lines(c), flops.flop_weights(c)]
    for context in flops.contexts(c):
        lines += [
            flops.flop_attention_core(c, context),
            flops.flop_indexer(c, context),
            flops.flop_decode(c, context),
        ]
    return [*lines, flops.flop_decode(c, flops.contexts(c)[-1], pool=False)]


def as_json(c: ModelConfig) -> dict[str, dict[str, dict]]:
    """{title: {name: {value, unit, formula, parts}}}; a value that is no whole number is a float."""
    return {book.title: {line.name: entry(line) for line in book.lines} for book in books(c)}


def entry(line: Line) -> dict:
    parts = {part.name: plain(part.value) for part in line.parts}
    return {"value": plain(line.value), "unit": line.unit, "formula": line.formula, "parts": parts}
