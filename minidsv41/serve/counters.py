"""What an engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Requests by what became of them; rows fed: of prompts, replayed ones among them, and of decoding; new tokens;
    drafts verified and kept; how prompts began, the tokens whose entries were known, bytes between cache and store."""

    submitted: int = 0
    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    prompt_rows: int = 0
    replayed_rows: int = 0
    decode_rows: int = 0
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    cold: int = 0
    shelf_hits: int = 0
    store_hits: int = 0
    hit_tokens: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
