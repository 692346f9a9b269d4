"""Where "8B in prefill, 16B in decode" comes from: parameters that one token meets, by what is counted."""

from __future__ import annotations

from minidsv41.config import ModelConfig
from minidsv41.ledger import tensors
from minidsv41.ledger.params import active_per_layer_matrices, compressor_params, engram_wkv_params, indexer_params


def activated(c: ModelConfig) -> list[tuple[str, str, int]]:
    """Parameters that one token meets: (phase, what is added to the line above, sum so far)."""
    first, layers = c.decoder_start, c.num_hidden_layers
    layer, engram = int(active_per_layer_matrices(c)), int(engram_wkv_params(c))
    owners = int(compressor_params(c)) + int(indexer_params(c))
    choosers = [t for source in c.index_source_layer_ids if source >= first for t in tensors.indexer(c, source)]
    asleep = sum(int(t.count) for t in choosers if not t.name.startswith(("attn.indexer.wk.", "attn.indexer.k_norm.")))
    head = c.vocab_size * c.hidden_size
    added = {
        "prefill": (
            ("layers of the encoder", first * layer),
            ("what owners and the encoder's indexers add", owners - asleep),
            ("Engram's projections", engram),
        ),
        "decode": (
            ("all layers", layers * layer),
            ("what owners and indexers add", owners),
            ("head", head),
            ("Engram's projections", engram),
        ),
    }
    return [
        (phase, what, sum(size for _, size in lines[: n + 1]))
        for phase, lines in added.items()
        for n, (what, _) in enumerate(lines)
    ]
