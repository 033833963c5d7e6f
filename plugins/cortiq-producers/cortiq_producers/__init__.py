"""Executables of cortiq as the producers that other generation loops expect."""

from __future__ import annotations

from cortiq_producers.head import HeadProducer
from cortiq_producers.protocols import ChunkedPrefillRunner, LogitProducer, SpeculativeProducer
from cortiq_producers.scripted import ScriptedProducer
from cortiq_producers.target import DraftedProducer, ExecutableProducer

__all__ = [
    "ChunkedPrefillRunner",
    "DraftedProducer",
    "ExecutableProducer",
    "HeadProducer",
    "LogitProducer",
    "ScriptedProducer",
    "SpeculativeProducer",
]
