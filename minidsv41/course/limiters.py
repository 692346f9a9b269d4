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
    "index_select 1 x 1M": "About 40 µs read keys, all of them once and the best blocks again, slowed as below; four "
    "choices that wait for one another take about 5 each. Keeping 512 candidates of every program instead took 71.",
    "index_select 32 x": "About 500 instructions a warp decode, multiply, weigh and add up 128 keys, and wait for the "
    "matrix unit and for other threads between; nothing is kept or cut meanwhile any more. Blocks of 8 to 32 keys and "
    "tiles of 64 or 128 were within 14 %.",
    "kv_write main": "Packing two rows takes 523 instructions, 9 µs of issue beside 12 µs of bytes; a program first "
    "loads and then computes, so the two overlap only in part. Sixteen tiles took 17.2 to 29 µs, this one 17.2 to "
    "17.7 in three runs; programs that walk over rows were not faster.",
    "seam T=128": "Two kernels, 6 and 5 µs when profiled: the second waits for the sums of 160 parts, and 20 rounds "
    "of Sinkhorn follow one another.",
    "seam T=4,096": "One program of 8 warps a multiprocessor: it loads, multiplies and stores in turn, and L2, from "
    "which every tile of 32 tokens also takes the predictor's 2 MB, is 74 % busy. Of about 80 tiles none was faster: "
    "not with half of the weights' bytes, two to four programs, products from registers, or rows asked for ahead.",
    "seam T=32,768": "With 64 tokens a tile, mixed inputs that wait for their norm no longer fit in L2, so up to 14 "
    "numbers a channel move instead of 10. 32 tokens, which fit, read the weights twice as often: 1,207 µs. Chunks "
    "of 2,048 tokens, each finished beside the next, took 1,169.",
    "sparse_attention B=32": "128 programs fill the card once, and the longest has three tiles of 64 keys where "
    "others have two; a second launch adds up the parts. Tiles of 32 keys, and of the window in other parts, did not "
    "help; four runs took 20.0 to 20.2 µs.",
    "sparse_attention T=4,096": "At the aim but for the spread of a run: 1,098 to 1,101 µs.",
}


def limiter(name: str) -> str:
    """The sentence for a kernel at a shape, such as "seam T=1"; empty if there is none."""
    return LIMITERS.get(max((begin for begin in LIMITERS if name.startswith(begin)), key=len, default=""), "")
