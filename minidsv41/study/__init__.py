"""The recorded comparisons: small networks that differ in one thing, each trained from several seeds."""

from minidsv41.study.catalogue import STUDIES
from minidsv41.study.variant import Study, StudyError, Training, Variant

__all__ = ["STUDIES", "Study", "StudyError", "Training", "Variant"]
