"""Mutants of images, and of requests with images: pixels or an error of ours, in bounded memory.

`python -m tests.fuzz.images --seconds 60`. Files of all formats are damaged at random, and by hand:
sizes that their header does not have, checksums made right again, streams that unpack to much more.
With `--server` the mutants are those of requests, their texts and the files in their data URLs.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import mutate
from PIL import Image
from serving import Server

from cortiq.errors import RequestError
from cortiq.vision.decode import MAX_PIXELS, MAX_SIDE, pixels_of

from .http import check, exchange
from .mutants import mutated_text, rounds

MEBIBYTES = 1280
"""Memory that decoding may take at most: grey levels of 2²⁶ pixels, in Pillow's form and as RGB."""
PIECES = [b"IHDR", b"IDAT", b"IEND", b"\xff\xd8", b"\xff\xc0\x00\x11\x08", b"\xff\xc4", b"\xff\xda",
          b"RIFF", b"VP8X", b"ANMF", b"GIF89a", b"\x2c\x00\x00", b"BM", b"eXIf", b"II*\x00",
          b"\x00" * 8, b"\xff" * 8, b"iCCP", b"acTL", b"%!PS"]  # fmt: skip
SIDES = (0, 1, 2, 3, 255, 8191, 8192, MAX_SIDE, MAX_SIDE + 1, 65535, 2**31 - 1, 2**32 - 1)
MARK = "@image@"
"""Stands for a data URL in a request until its text has been changed."""


def saved(mode: str, kind: str, **options: Any) -> bytes:
    """Return a small picture in a format."""
    levels = np.random.default_rng(len(mode)).integers(0, 256, (19, 23, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(levels).convert(mode).save(data, kind, **options)
    return data.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, colour: int, packed: bytes) -> bytes:
    """Return a PNG whose header says this, whatever is in its stream."""
    head = struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, depth, colour, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


@cache
def files() -> tuple[bytes, ...]:
    """Return whole files of every format, and of some that are not read."""
    frames = [Image.new("P", (9, 7), n) for n in range(3)]
    moving = io.BytesIO()
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    exif = Image.Exif()
    exif[0x0112] = 6
    return (
        *(saved(mode, "PNG") for mode in ("RGB", "RGBA", "P", "L", "1", "I;16")),
        saved("RGB", "JPEG"), saved("RGB", "JPEG", progressive=True, exif=exif.tobytes()),
        saved("CMYK", "JPEG"), saved("L", "JPEG"), saved("RGB", "WEBP"),
        saved("RGBA", "WEBP", lossless=True), saved("P", "GIF"), moving.getvalue(),
        saved("RGB", "BMP"), saved("P", "BMP"), saved("1", "BMP"), saved("RGB", "TIFF"),
        saved("RGB", "PPM"), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"", b"\x00",
    )  # fmt: skip


@cache
def packed_zeros(count: int) -> bytes:
    """Return a stream that unpacks to so many bytes, a thousand times its own size."""
    return zlib.compress(bytes(count), 9)


def lying(rng: random.Random) -> bytes:
    """Return a file with sizes that it does not have, or that unpacks to much more."""
    width, height = rng.choice(SIDES), rng.choice(SIDES)
    match rng.randrange(4):
        case 0:
            stream = packed_zeros(rng.choice([0, 99, 1 << 20, 9 << 20]))
            return png(width, height, rng.choice([1, 8, 16]), rng.choice([0, 2, 3, 6]), stream)
        case 1:  # text that unpacks to much
            text = b"zTXt", b"a\0\0" + packed_zeros(9 << 20)
            whole = files()[0]
            return whole[:33] + chunk(*text) + whole[33:]
        case 2:
            data = bytearray(saved("RGB", "BMP"))
            data[18:26] = struct.pack("<II", width & 0xFFFFFFFF, height & 0xFFFFFFFF)
            return bytes(data)
        case _:
            data = bytearray(saved("P", "GIF"))
            data[6:10] = struct.pack("<HH", width & 0xFFFF, height & 0xFFFF)
            return bytes(data)


def mutant(rng: random.Random) -> bytes:
    """Return a file: damaged, cut off, or one that lies."""
    kind = rng.randrange(16)
    if kind == 0:
        return lying(rng)
    whole = rng.choice(files())
    return whole[: rng.randrange(len(whole) + 1)] if kind < 4 else mutate(whole, rng, PIECES)


def try_file(rng: random.Random) -> str:
    """Decode a mutant: pixels within the limits, or an error that one line says."""
    try:
        pixels = pixels_of(mutant(rng))
    except RequestError as error:
        assert len(str(error)) < 600 and "\x00" not in str(error), str(error)
        return "RequestError"
    height, width, _ = pixels.shape
    assert pixels.dtype == np.uint8 and pixels.shape[2] == 3
    assert 0 < height * width <= MAX_PIXELS and max(height, width) <= MAX_SIDE
    return "read"


def bodies(model: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return requests of every API that takes images."""
    few = {"model": model, "temperature": 0}
    url = {"type": "image_url", "image_url": {"url": MARK, "detail": "low"}}
    text, bare = {"type": "text", "text": "a"}, MARK.replace("@", "#")
    source = {"type": "base64", "media_type": "image/png", "data": bare}
    return (
        ("/v1/chat/completions", {
            **few, "messages": [{"role": "user", "content": [url, text, url]}], "max_tokens": 1}),
        ("/v1/responses", {**few, "max_output_tokens": 1, "store": False, "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": MARK},
                                         {"type": "input_text", "text": "a"}]}]}),
        ("/v1/messages", {**few, "max_tokens": 1, "messages": [
            {"role": "user", "content": [{"type": "image", "source": source}, text]}]}),
        ("/api/chat", {**few, "options": {"num_predict": 1}, "stream": False, "messages": [
            {"role": "user", "content": "a", "images": [bare, bare]}]}),
        ("/api/generate", {**few, "prompt": "a", "images": [bare], "stream": False,
                           "options": {"num_predict": 1}}),
        ("/tokenize", {**few, "messages": [{"role": "user", "content": [url]}]}),
    )  # fmt: skip


def request(model: str, rng: random.Random) -> bytes:
    """Return a request whose text, data URL, file, or all of them are mutants."""
    path, body = rng.choice(bodies(model))
    data, kind = json.dumps(body).encode(), rng.randrange(4)
    if kind == 0:
        data = mutated_text(data, rng)
    file = rng.choice(files()) if kind == 1 else mutant(rng)
    inner = base64.b64encode(file)
    if rng.random() < 0.2:
        inner = mutate(inner, rng, [b"=", b"%00", b",", b"\\n", b"data:"])
    head = rng.choice([b"data:image/png;base64,"] * 5 + [b"data:;base64,", b"DATA:image/x,", b""])
    for mark, value in ((b"@image@", head + inner), (b"#image#", inner)):
        data = data.replace(mark, value)
    fields = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
              f"Content-Length: {len(data)}"]  # fmt: skip
    return "\r\n".join(fields).encode() + b"\r\n\r\n" + data


def try_request(server: Server, model: str, rng: random.Random) -> str:
    """Send a request; the status of the answer, or "closed"."""
    return exchange(server, request(model, rng), rng)


def memory_of(status: Path) -> int:
    """Return the most memory, in MiB, that a process has had."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10


def run(seed: int, count: int | None = None, seconds: float | None = None, first: int = 0) -> (
    Counter[str]
):  # fmt: skip
    """Decode mutants; how often each outcome came."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    made = rounds(try_file, seed, count=count, seconds=seconds, first=first)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before
    assert grown < MEBIBYTES, f"{grown} MiB"
    print(f"memory grew by {grown} MiB", flush=True)
    return made


def run_requests(
    seed: int, count: int | None = None, seconds: float | None = None, first: int = 0
) -> Counter[str]:
    """Send mutants to a server of a model that sees; how often each status came."""
    sys.path.append(str(Path(__file__).parents[1] / "model"))
    import vision_folders

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sees"
        folder.mkdir()
        vision_folders.gemma3(folder)
        options = ("--images", "--backend", "cpu", "--threads", "1", "--context", "256",
                   "--body-seconds", "0.1", "--header-seconds", "0.1")  # fmt: skip
        server = Server(str(folder), *options)
        try:
            status = Path(f"/proc/{server.process.pid}/status")
            before = memory_of(status)
            one = partial(try_request, server, folder.name)
            made = rounds(one, seed, count=count, seconds=seconds, first=first)
            check(server, b"")
            grown = memory_of(status) - before
            assert grown < MEBIBYTES, f"{grown} MiB"
        finally:
            server.stop()
        print(f"the server grew by {grown} MiB", flush=True)
        return made


def main(runs: dict[bool, Callable[..., Counter[str]]]) -> None:
    """The command line, with a choice between files and requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="round to begin at")
    parser.add_argument("--server", action="store_true", help="mutants of requests")
    o = parser.parse_args()
    print(f"seed {o.seed}", flush=True)
    seconds = o.seconds if o.count is not None or o.seconds is not None else 60.0
    outcomes = runs[o.server](o.seed, o.count, seconds, o.first)
    print(f"{outcomes.total()} mutants: {dict(outcomes.most_common())}")


if __name__ == "__main__":
    main({False: run, True: run_requests})
