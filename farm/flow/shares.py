"""What a step's profile says of its compute share before any of it has run, and how far to believe that."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from farm.model.work import Profile, Tag

Floats = npt.NDArray[np.float64]

SHARES: Final[Floats] = np.array([0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
"""The compute shares a step may have, on a device that does 30 TFLOP/s and 600 GB/s."""


def share_weights(profile: Profile) -> Floats:
    """How likely each of SHARES is by a profile: about its share, the more so the surer it is."""
    total = profile.compute_share + profile.bandwidth_share
    if profile.tag is Tag.UNKNOWN or total <= 0:
        return np.full(len(SHARES), 1 / len(SHARES))
    # A tag names one of three classes; a probe measures the share itself.
    is_measured = profile.source in ("probe", "history")
    width, most = (0.1, 0.93) if is_measured else (0.18, 0.8)
    near = np.exp(-0.5 * ((SHARES - profile.compute_share / total) / width) ** 2)
    trust = 0.35 + (most - 0.35) * min(max(profile.confidence, 0.0), 1.0)
    weights: Floats = trust * near / near.sum() + (1 - trust) / len(SHARES)
    return weights


def normal(log_weights: Floats) -> Floats:
    """The weights, with a sum of 1."""
    weights: Floats = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights
