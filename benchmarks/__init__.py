"""Measurements: the same work on funcgrad and its peers, side by side in one run."""
