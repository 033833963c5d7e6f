"""Level 0: every primitive and scalar function on bit vectors, through the seam."""
