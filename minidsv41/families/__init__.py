"""The attentions before V4.1's, each a small layer with a state of its own, behind one interface."""

from minidsv41.families.compressed import CSA, HCA
from minidsv41.families.deltanet import KDA, GatedDeltaNet
from minidsv41.families.dsa import DSA
from minidsv41.families.heads import GatedHeads, Heads
from minidsv41.families.hybrid import Hybrid
from minidsv41.families.mla import MLA
from minidsv41.families.state import Family, State

__all__ = ["CSA", "DSA", "HCA", "KDA", "MLA", "Family", "GatedDeltaNet", "GatedHeads", "Heads", "Hybrid", "State"]
