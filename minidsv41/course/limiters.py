"""Why a kernel takes longer than was aimed at: one sentence or two each, with what was tried.

Read from Nsight Compute (stalls, occupancy, busy units), from a profiler, from machine code, and from sweeps of tiles,
on one NVIDIA H200 on 2026-11-30, partly before the last changes to a kernel; no record holds these numbers.
"""

from __future__ import annotations

LIMITERS = {  # by how "operation shape" begins; the longest beginning that fits counts
    "engram read and gate": "The aim leaves out keys that are read and outputs that are written: with them the floor "
    "lies above the aim, and the two kernels are within 7 % of it.",
    "engram_read host table": "The link streams 55 GB/s, but answers scattered rows of 264 bytes at 24. Reading in "
    "the order of addresses helped by a quarter; more programs, larger pages and leaving out the scales did not, and "
    "asking for whole lines gained 2 %.",
    "index_select 1 x 1M": "Reading all keys takes about 33 µs: some 480 instructions a warp decode, multiply, weigh "
    "and add up 128 keys, and wait for the matrix unit and for other threads between. Three choices of 4 to 6 µs and "
    "a second reading of 4 follow, and each waits for the one before. Keeping 512 candidates of every program instead "
    "took 71, blocks of 8 or 32 keys 3 to 5 more, choices by half the warps or of half the candidates 1 to 6.",
    "seam T=128": "Two kernels: the first takes 6 µs, the second ends 4 after it, though it starts early: 160 parts "
    "are added up, and 20 rounds of Sinkhorn follow one another. One, four or eight tokens a program, half of the "
    "parts, and a first kernel that starts early too took 11.1 to 16 µs.",
    "seam T=4,096": "One program of 8 warps a multiprocessor: it loads, multiplies and stores in turn, and L2, from "
    "which every tile of 32 tokens also takes the predictor's 2 MB, is 74 % busy. A tenth fewer instructions gained "
    "5 of 156 µs; of about 80 tiles none was faster: not with half of the weights' bytes, two to four programs, "
    "products from registers, or rows asked for ahead.",
    "seam T=32,768": "With 64 tokens a tile, mixed inputs that wait for their norm no longer fit in L2, so up to 14 "
    "numbers a channel move instead of 10. 32 tokens, which fit, read the weights twice as often: 1,207 µs. Chunks "
    "of 2,048 tokens, each finished beside the next, took 1,169.",
    "sparse_attention B=32": "128 programs fill the card once, and the longest has three tiles of 64 keys where "
    "others have two; a second launch adds up the parts. Tiles of 32 keys, the window in other parts, and one to eight "
    "warps for one to four heads of the sum did not help; runs took 20.0 to 20.2 µs.",
    "sparse_attention T=4,096": "At the aim but for the spread of runs: 1,096 to 1,105 µs. Four of 4,096 queries are "
    "left over when 132 multiprocessors have had 31 each; splitting them gained 1 to 2 µs and cost verifications as "
    "much.",
}


def limiter(name: str) -> str:
    """The sentence for a kernel at a shape, such as "seam T=1"; empty if there is none."""
    return LIMITERS.get(max((begin for begin in LIMITERS if name.startswith(begin)), key=len, default=""), "")
