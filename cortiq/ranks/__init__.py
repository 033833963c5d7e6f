"""One program on several devices: each computes a share, and all of them the same bits."""
