"""Placement: choose which backend computes each node, and chain the executables."""
