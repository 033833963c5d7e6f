"""Fuzzers: each module runs for a number of cases or seconds, and says which case failed."""
