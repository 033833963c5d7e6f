"""The page that draws a model: whole, of one file, and with the model's own figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from converted import opened

from cortiq.cli.main import cli
from cortiq.cli.model_page import draw, page, stored_bytes
from cortiq.ir.printer import folded_blocks

VOID = {"meta", "rect", "path"}


class Tags(HTMLParser):
    """Tags and texts; every tag that opens is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module", params=["tiny-llama?format=w4", "tiny-mixtral", "mini-qwen3_next"])
def source(request):
    return opened(f"synthetic:{request.param}")


def test_the_page_is_one_file_with_every_format_layer_and_node(source):
    tags = Tags()
    text = page(source, "<model> & more")
    tags.feed(text)
    assert tags.open == [] and "<model> & more" in "".join(tags.text)
    assert not [value for name, value in tags.attributes if name in ("src", "href")]
    assert "http" not in text
    nodes = sum(len(b.nodes) for g in source.program.graphs.values() for b in folded_blocks(g))
    assert tags.seen.count("rect") == nodes
    assert tags.seen.count("span") == len(source.weights)
    widths = [float(w) for w in re.findall(r'"bar"\s*style="width: ([\d.]+)%', text)]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    for weight in source.weights.values():
        assert f"{weight.layout.name}</th>" in text


def test_bytes_are_those_of_the_weights(source):
    for weight in source.weights.values():
        assert stored_bytes(weight) == weight.nbytes


def test_edges_come_from_the_boxes_that_make_the_inputs(source):
    for graph in source.program.graphs.values():
        drawn = draw(graph)
        made = {name for block in folded_blocks(graph)
                for node in (*block.nodes, *block.end) for name in node.outputs}  # fmt: skip
        for node, box in zip(
            (n for b in folded_blocks(graph) for n in b.nodes), drawn, strict=True
        ):
            assert bool(box.edges) == bool(made & set(node.inputs)), node.name


def test_the_command_writes_it(tmp_path):
    file = tmp_path / "m.html"
    done = CliRunner().invoke(cli, ["inspect", "synthetic:tiny-llama", "--html", str(file)])
    assert done.exit_code == 0 and f"drawn: {file}" in done.stderr
    assert file.read_text().startswith("<!doctype html>")
