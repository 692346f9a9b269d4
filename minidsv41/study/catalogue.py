"""STUDIES: every comparison by name.

Networks of one study have equal parameters, within a thousandth: where one needs more than another, the other's Engram
tables are longer. In `mhc` the plain network's low-rank maps are wider, and the parameters of the mixing that it lacks
are there and do nothing.
"""

from __future__ import annotations

from minidsv41.study import changes, measures
from minidsv41.study.drafts import drafts
from minidsv41.study.variant import Study, Training, Variant, unchanged

EVERY, BLOCKS = 128, 17  # more entries, and more blocks, than a sequence has
BASE = Training()
NO_REPLAY = Training(settings=dict(replay=0))


def owners(*layers: int, rows: int) -> Training:
    """Entries at these layers, which also select; no layer reads from a pool."""
    shape = dict(kv_source_layer_ids=layers, index_source_layer_ids=layers, engram_vocab_size=rows)
    return Training(shape=shape, settings=dict(replay=0))


def ratios(*ratios: int, rows: int) -> Training:
    return Training(shape=dict(compress_ratios=(*ratios, 0, 0, 0), engram_vocab_size=rows))


def pooled(blocks: int, objective=unchanged) -> Training:
    return Training(shape=dict(candidate_topk_blocks=blocks), objective=objective)


def split(experts: int, rows: int) -> Variant:
    shape = dict(n_routed_experts=experts, engram_vocab_size=rows)
    says = f"{experts} experts a layer, {rows} rows for each hash"
    return Variant(name=f"experts_{experts}", says=says, trained=Training(shape=shape) if experts != 8 else BASE)


CED = Study(
    name="ced",
    question="What does it cost that all decoder layers read entries made from the encoder's output?",
    variants=(
        Variant(name="ced", says="layers 3 to 5 read the entries of layer 3", trained=NO_REPLAY),
        Variant(name="own", says="3, 4 and 5 each make their own", trained=owners(1, 3, 4, 5, rows=912)),
    ),
    measure=measures.cache,
)
REPLAY = Study(
    name="replay",
    question="Is bounded replay nearer to the exact answer if the decoder was trained under it?",
    variants=(
        Variant(name="with", says="half of the sequences under decoder replay"),
        Variant(name="without", says="none", trained=NO_REPLAY),
    ),
    measure=measures.replay,
)
FP4 = Study(
    name="fp4",
    question="Must a network be trained with rounded caches, and from when on?",
    variants=(
        Variant(name="from_start", says="caches are rounded in every step"),
        Variant(
            name="at_end",
            says="in the last fifth of the steps",
            trained=Training(objective=changes.rounding_late),
        ),
        Variant(
            name="never",
            says="only when it is asked",
            trained=Training(shape=dict(qat=False)),
            read=dict(qat=True),
        ),
    ),
    measure=measures.unrounded,
)
K = Study(
    name="k",
    question="How many entries must a query read? Trained with 16 and a pool of 6 blocks, asked without a pool",
    variants=tuple(
        Variant(name=name, says=f"reads {name}", read=dict(index_topk=k, candidate_topk_blocks=BLOCKS))
        for name, k in {"4": 4, "8": 8, "16": 16, "32": 32, "all": EVERY}.items()
    ),
    measure=measures.selection,
)
POOL = Study(
    name="pool",
    question="How large must the candidate pool of the last layer be? Trained with 6 blocks",
    variants=tuple(
        Variant(name=name, says=f"{name} blocks of 8", read=dict(candidate_topk_blocks=blocks))
        for name, blocks in {"3": 3, "6": 6, "12": 12, "all": BLOCKS}.items()
    ),
    measure=measures.pool,
)
M = Study(
    name="m",
    question="What does compression cost? (The format knows 1 and 2 tokens an entry; 4 is not in it.)",
    variants=(
        Variant(name="1", says="an entry a token everywhere", trained=ratios(0, 1, 1, 1, 1, 1, rows=1020)),
        Variant(name="2_then_1", says="two tokens an entry in the encoder, as released"),
        Variant(name="2", says="two tokens an entry everywhere", trained=ratios(0, 2, 2, 2, 2, 2, rows=978)),
    ),
    measure=measures.cache,
)
POOL_TRAINING = Study(
    name="pool_training",
    question="Must the pool (3 blocks) be there while the indexer is trained?",
    variants=(
        Variant(
            name="afterwards",
            says="only when it is asked",
            trained=pooled(BLOCKS),
            read=dict(candidate_topk_blocks=3),
        ),
        Variant(name="in_selection", says="it limits what is read, not the alignment", trained=pooled(3)),
        Variant(
            name="in_alignment",
            says="it limits both: the indexer is aligned on the pool",
            trained=pooled(3, changes.pool_in_alignment),
        ),
    ),
    measure=measures.pool,
)
MHC = Study(
    name="mhc",
    question="What do four residual streams gain, and what does the delay of their mix cost?",
    variants=(
        Variant(
            name="plain",
            says="one stream, x + F(norm(x)); wider low-rank maps in attention",
            trained=Training(shape=dict(hc_mult=1, q_lora_rank=108, o_lora_rank=120), network=changes.plain_residual),
        ),
        Variant(
            name="undelayed",
            says="each sublayer's input is mixed by its own coefficients",
            trained=Training(network=changes.undelayed),
        ),
        Variant(name="delayed", says="by those of the sublayer before, as released"),
    ),
    measure=measures.nothing,
)
ENGRAM = Study(
    name="engram",
    question="Which share of the sparse parameters should be Engram's?",
    variants=(split(9, 234), split(8, 1000), split(7, 1754), split(5, 3308), split(3, 4814)),
    measure=measures.table,
)
DSPARK = Study(
    name="dspark",
    question="What do the Markov head and the confidence of a draft bring?",
    variants=(
        Variant(name="both", says="as released"),
        Variant(name="no_markov", says="drafts of a block know nothing of each other", around=changes.no_markov),
        Variant(name="no_confidence", says="confidence is not trained", around=changes.no_confidence),
        Variant(name="neither", says="neither", around=changes.drafts_alone),
    ),
    measure=drafts,
)
STUDIES = {study.name: study for study in (CED, REPLAY, FP4, K, POOL, M, POOL_TRAINING, MHC, ENGRAM, DSPARK)}
