"""What two background articles say about V4.1-Flash and its ancestors, checked in this run."""

from minidsv41.course.claims import books, families, runs
from minidsv41.course.claims.claim import Claim, Found


def key(claim: Claim) -> tuple[int, float, str]:
    article, _, row = claim.number.partition(".")
    return int(article), float(row.rstrip("b")), row


CLAIMS = tuple(sorted((*books.CLAIMS, *runs.CLAIMS, *families.CLAIMS), key=key))

__all__ = ["CLAIMS", "Claim", "Found"]
