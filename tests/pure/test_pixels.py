"""Pixels: resizing to the bit as Pillow does, golden digests, images that lie or are damaged."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib

import pytest

pytest.importorskip("PIL")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cortiq.errors import RequestError
from cortiq.formats.given_files import read_given
from cortiq.numerics import pixels
from cortiq.numerics.pixels import FILTERS, grouped, normalise, patches, resize
from cortiq.vision import decode
from cortiq.vision.decode import FORMATS, pixels_of

PILLOWS = {"bilinear": 2, "bicubic": 3, "lanczos": 1}
edges = st.integers(1, 90)


def drawn(height, width, seed=0):
    """Black and white dots, which show every difference of order and of weights."""
    dots = np.random.default_rng([seed, height, width]).integers(0, 2, (height, width, 3))
    return (dots * 255).astype(np.uint8)


@pytest.mark.parametrize("name", FILTERS)
@given(size=st.tuples(edges, edges), wanted=st.tuples(edges, edges))
@settings(max_examples=40, deadline=None)
def test_resizing_is_pillows_to_the_bit(name, size, wanted):
    image = drawn(*size)
    theirs = Image.fromarray(image).resize(wanted[::-1], PILLOWS[name])
    assert np.array_equal(resize(image, *wanted, name), np.array(theirs))


def test_resizing_does_not_depend_on_the_pieces_it_is_done_in(monkeypatch):
    image = drawn(61, 47)
    whole = resize(image, 30, 80, "lanczos")
    monkeypatch.setattr(pixels, "CHUNK", 1000)
    assert np.array_equal(resize(image, 30, 80, "lanczos"), whole)


GOLDEN = {
    "bilinear": "ec0ced56736db381",
    "bicubic": "2b42973f848a9030",
    "lanczos": "f3995edd8041dc3b",
    "normalise": "b093b6e90225b120",
}


def digests():
    image = np.random.default_rng(7).integers(0, 256, (90, 71, 3), dtype=np.uint8)
    found = {name: resize(image, 37, 101, name) for name in FILTERS}
    found["normalise"] = normalise(
        image, 1 / 255, (0.48145466, 0.4578275, 0.40821073), (0.5, 0.26, 0.3)
    )
    return {name: hashlib.sha256(value.tobytes()).hexdigest()[:16] for name, value in found.items()}


def test_digests_are_golden():
    assert digests() == GOLDEN


def test_values_are_float64_rounded_once():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    means, deviations = (0.1, 0.5, 0.9), (0.5, 0.25, 2.0)
    values = normalise(levels, 1 / 255, means, deviations)
    for c, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
        exact = ((levels[..., c] * (1 / 255)) - mean) / deviation
        assert np.array_equal(values[..., c], exact.astype(np.float32))
    assert not normalise(levels[:1, :1], 1.0, (0.0,) * 3, (1.0,) * 3).any()


def test_patches_are_rows_of_a_convolutions_kernel():
    values = np.arange(6 * 4 * 3, dtype=np.float32).reshape(6, 4, 3)
    cut = patches(values, 2)
    assert cut.shape == (6, 12)
    for number, (y, x) in enumerate((y, x) for y in range(3) for x in range(2)):
        square = values[2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        assert np.array_equal(cut[number], square.transpose(2, 0, 1).reshape(-1))
    assert grouped(4, 6, 2)[:2].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9]]


def encoded(image, form, **options):
    data = io.BytesIO()
    Image.fromarray(image).save(data, form, **options)
    return data.getvalue()


def test_paths_bytes_arrays_and_images_are_the_same_pixels(tmp_path):
    image = drawn(8, 5)
    data = encoded(image, "PNG")
    (tmp_path / "a.png").write_bytes(data)
    for given_as in (data, bytearray(data), tmp_path / "a.png", str(tmp_path / "a.png"), image,
                     Image.fromarray(image)):  # fmt: skip
        assert np.array_equal(pixels_of(given_as), image)
    grey = pixels_of(image[..., 0])
    assert grey.shape == (8, 5, 3) and np.array_equal(grey[..., 2], image[..., 0])


def test_an_orientation_is_followed_and_the_first_frame_taken():
    image = drawn(6, 9)
    turned = Image.Exif()
    turned[0x0112] = 6
    assert pixels_of(encoded(image, "PNG", exif=turned)).shape == (9, 6, 3)
    data = io.BytesIO()
    frames = [Image.fromarray(np.full((4, 4, 3), level, np.uint8)) for level in (10, 200)]
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:])
    assert np.abs(pixels_of(data.getvalue()).astype(int) - 10).max() < 8


@pytest.mark.parametrize("wrong", [
    None, 3, [1], np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32),
    np.zeros((0, 4, 3), np.uint8), np.zeros((2, 1 << 16, 3), np.uint8), b"", b"no image",
    "absent.png", "a\0b", "/",
], ids=lambda given: repr(given)[:20])  # fmt: skip
def test_what_is_no_image_is_refused(wrong):
    with pytest.raises(RequestError):
        pixels_of(wrong)


def header(width, height):
    """A PNG that says it is this large and holds nothing."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    empty = zlib.compress(b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", empty) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "size", [(1 << 15, 1 << 12), (1 << 16, 1), (1, 1 << 31), (1 << 20, 1 << 20)]
)
def test_a_bomb_is_refused_by_its_size_before_it_is_decoded(size, monkeypatch):
    monkeypatch.setattr(decode, "_converted", lambda image, own: pytest.fail("decoded"))
    with pytest.raises(RequestError, match=r"pixels|decoded"):
        pixels_of(header(*size))


def test_a_file_longer_than_the_limit_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "MAX_BYTES", 100)
    (tmp_path / "a.png").write_bytes(encoded(drawn(50, 50), "PNG"))
    with pytest.raises(RequestError, match="more than 100 bytes"):
        pixels_of(tmp_path / "a.png")
    assert len(read_given(tmp_path / "a.png", decode.MAX_BYTES)) == 101


def test_truncated_images_are_refused():
    for form in FORMATS:
        data = encoded(drawn(40, 40), form)
        for cut in (len(data) // 2, len(data) // 4):
            with pytest.raises(RequestError, match="decoded"):
                pixels_of(data[:cut])


def mutants(count, seed):
    """Files with changed, removed and repeated bytes."""
    source = np.random.default_rng(seed)
    whole = [encoded(drawn(24, 31), form) for form in FORMATS]
    for number in range(count):
        data = bytearray(whole[number % len(whole)])
        for _ in range(int(source.integers(1, 6))):
            at = int(source.integers(0, len(data)))
            match int(source.integers(0, 3)):
                case 0:
                    data[at] = int(source.integers(0, 256))
                case 1:
                    del data[at : at + int(source.integers(1, 9))]
                case _:
                    data[at:at] = data[max(0, at - 7) : at + 1]
            data = data or bytearray(b"\0")
        yield bytes(data)


def held(count, seed):
    for data in mutants(count, seed):
        try:
            found = pixels_of(data)
        except RequestError as error:
            assert error.what and error.hint
        else:
            assert found.dtype == np.uint8 and found.shape[2] == 3 and found.size <= 3 << 26


def test_mutants_are_pixels_or_our_error():
    held(400, 1)


@pytest.mark.slow
def test_many_mutants_are_pixels_or_our_error():
    held(20000, 2)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(31, 17), (80, 96), (30, 42)], ids=str)
def test_resizing_is_pytorchs_within_one_grey_level(name, size):
    """Where columns come first, as always in PyTorch: a pass of a cubic one cuts levels off."""
    torch = pytest.importorskip("torch")
    image = np.random.default_rng(3).integers(0, 256, (40, 52, 3), dtype=np.uint8)
    given = torch.from_numpy(image.transpose(2, 0, 1).copy())[None]
    theirs = torch.nn.functional.interpolate(given, size, mode=name, antialias=True)
    ours = resize(image, *size, name).astype(int)
    assert np.abs(ours - theirs[0].numpy().transpose(1, 2, 0)).max() <= 1
