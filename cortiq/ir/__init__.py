"""The intermediate representation: typed graphs of layers and primitives, owned by no backend."""

from cortiq.ir.decompose import decompose, expand, primitives_of, primitives_within
from cortiq.ir.graph import Builder, Graph, Node, Program, Type, Value, WeightSpec
from cortiq.ir.op import IR_VERSION, Op
from cortiq.ir.slots import KVRows, Recurrent, Ring, Slot
from cortiq.ir.verify import verify

__all__ = [
    "IR_VERSION",
    "Builder",
    "Graph",
    "KVRows",
    "Node",
    "Op",
    "Program",
    "Recurrent",
    "Ring",
    "Slot",
    "Type",
    "Value",
    "WeightSpec",
    "decompose",
    "expand",
    "primitives_of",
    "primitives_within",
    "verify",
]
