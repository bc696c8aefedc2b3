from __future__ import annotations

import contextlib
import io
import os
import struct
import traceback
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from dpmtv.data.images import FORMATS, MAX_PIXELS, UnreadableImage, load_image
from dpmtv.errors import DataError

CANARY = "canary-7f3a"
SIZE = (6, 4)


def pixels(image) -> np.ndarray:
    loaded = load_image(image)
    assert type(loaded) is Image.Image
    assert loaded.mode == "RGB"
    return np.asarray(loaded).astype(int)


def assert_colour(image, expected, tolerance=2):
    assert abs(pixels(image) - np.array(expected)).max() <= tolerance


def over_white(colour, alpha):
    return [255 + (c - 255) * alpha / 255 for c in colour]


def rgb_from_ycbcr(y, cb, cr):
    """ITU-R BT.601, full range (JFIF)."""
    cb, cr = cb - 128, cr - 128
    return np.clip([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb], 0, 255)


def rgb_from_lab(lightness, a, b):
    """CIE 1976 L*a*b* under D50 to sRGB: IEC 61966-2-1, matrix adapted to D50."""
    fy = (lightness + 16) / 116
    f = np.array([fy + a / 500, fy, fy - b / 200])
    xyz = np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29)) * [0.96422, 1, 0.82521]
    matrix = [
        [3.1338561, -1.6168667, -0.4906146],
        [-0.9787684, 1.9161415, 0.0334540],
        [0.0719453, -0.2289914, 1.4052427],
    ]
    linear = np.clip(np.array(matrix) @ xyz, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


FLAT = {
    "1": (1, [255] * 3),
    "L": (77, [77] * 3),
    "LA": ((40, 128), over_white([40] * 3, 128)),
    "RGB": ((10, 120, 230), [10, 120, 230]),
    "RGBA": ((10, 120, 230, 64), over_white([10, 120, 230], 64)),
    "RGBX": ((10, 120, 230, 0), [10, 120, 230]),
    "RGBa": ((5, 60, 115, 128), over_white([10, 120, 230], 128)),
    "CMYK": ((255, 0, 127, 0), [0, 255, 128]),
    "YCbCr": ((120, 90, 160), rgb_from_ycbcr(120, 90, 160)),
    "HSV": ((85, 255, 200), [0, 200, 0]),  # 85/255 of a turn is pure green
    "LAB": ((136, 208, 195), rgb_from_lab(136 / 2.55, 80, 67)),
    "I;16": (65535, [255] * 3),
    "I;16B": (65535, [255] * 3),
    "I": (65535, [255] * 3),
    "F": (0.25, [64] * 3),
}


@pytest.mark.parametrize("mode", FLAT)
def test_every_mode_gives_the_right_colour(mode):
    value, expected = FLAT[mode]
    assert_colour(Image.new(mode, SIZE, value), expected)


@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA", "CMYK", "LAB", "I;16", "F"])
def test_every_mode_that_tiff_holds_gives_the_same_from_a_file(mode, tmp_path):
    value, expected = FLAT[mode]
    Image.new(mode, SIZE, value).save(tmp_path / "x.tiff")
    with Image.open(tmp_path / "x.tiff") as stored:
        assert stored.mode == mode
    assert_colour(tmp_path / "x.tiff", expected)


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
@pytest.mark.parametrize("mode", ["L", "RGB", "YCbCr", "CMYK"])
def test_jpeg_alone_and_in_tiff(mode, form, tmp_path):
    value, expected = FLAT[mode]
    options = {"compression": "jpeg"} if form == "TIFF" else {}
    Image.new(mode, (16, 16), value).save(tmp_path / "x", form, quality=100, **options)
    assert_colour(tmp_path / "x", expected, tolerance=3)


@pytest.mark.parametrize("colour", [(136, 128, 128), (200, 90, 170), (60, 150, 70), (5, 130, 126)])
def test_lab(colour):
    assert_colour(
        Image.new("LAB", SIZE, colour),
        rgb_from_lab(colour[0] / 2.55, colour[1] - 128, colour[2] - 128),
    )


def palette_image(transparency=None) -> Image.Image:
    image = Image.fromarray(np.array([[0, 1], [2, 3]], dtype=np.uint8)).convert("P")
    image.putpalette([200, 0, 0, 0, 150, 0, 0, 0, 100, 9, 9, 9])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


RED, GREEN, BLUE, DARK = [200, 0, 0], [0, 150, 0], [0, 0, 100], [9, 9, 9]


@pytest.mark.parametrize(
    ("transparency", "expected"),
    [
        (None, [[RED, GREEN], [BLUE, DARK]]),
        (1, [[RED, [255] * 3], [BLUE, DARK]]),
        (bytes([255, 0, 128, 255]), [[RED, [255] * 3], [over_white(BLUE, 128), DARK]]),
    ],
)
def test_palette(transparency, expected, tmp_path):
    image = palette_image(transparency)
    assert_colour(image, expected)
    image.save(tmp_path / "x.png")
    assert_colour(tmp_path / "x.png", expected)
    assert_colour(image.convert("PA"), expected)


@pytest.mark.parametrize(("mode", "key"), [("L", 0), ("RGB", (0, 0, 0))])
def test_a_transparent_colour_is_white(mode, key, tmp_path):
    image = Image.new(mode, (2, 1), 0)
    image.putpixel((1, 0), 90 if mode == "L" else (90, 90, 90))
    image.save(tmp_path / "x.png", transparency=key)
    assert_colour(tmp_path / "x.png", [[[255] * 3, [90] * 3]])


DEEP = [
    (np.uint16, [0, 100, 255], [0, 100, 255]),
    (np.uint16, [0, 100, 256], [0, 100 * 255 / 1023, 256 * 255 / 1023]),
    (np.uint16, [0, 100, 1024], [0, 100 * 255 / 4095, 1024 * 255 / 4095]),
    (np.uint16, [0, 2048, 4095], [0, 127.5, 255]),
    (np.uint16, [0, 2048, 4096], [0, 2048 * 255 / 16383, 4096 * 255 / 16383]),
    (np.uint16, [0, 2048, 16384], [0, 2048 / 257, 16384 / 257]),
    (np.uint16, [32000, 32768, 33536], [0, 127.5, 255]),
    (np.uint16, [33000, 33000, 33000], [33000 / 257] * 3),
    (np.uint16, [0, 32768, 65535], [0, 127.5, 255]),
    (np.uint16, [0, 0, 0], [0, 0, 0]),
    (np.int32, [0, 32768, 65535], [0, 127.5, 255]),
    (np.int32, [0, 1, 1], [0, 1, 1]),
    (np.int32, [-1000, 0, 1000], [0, 127.5, 255]),
    (np.int32, [0, 500_000, 1_000_000], [0, 127.5, 255]),
    (np.int32, [-7, -7, -7], [0, 0, 0]),
    (np.float32, [0, 0.5, 1], [0, 127.5, 255]),
    (np.float32, [0, 0.5, 255], [0, 0.5, 255]),
    (np.float32, [0, 1, 1.25], [0, 204, 255]),
    (np.float32, [np.nan, 0.5, 1], [0, 127.5, 255]),
    (np.float32, [-np.inf, np.inf, 0.5], [0, 255, 127.5]),
    (np.float32, [-1, 0, 1], [0, 127.5, 255]),
]


@pytest.mark.parametrize(("dtype", "values", "grey"), DEEP)
def test_deep_greys_are_scaled_not_cut_off(dtype, values, grey, tmp_path):
    image = Image.fromarray(np.array([values], dtype=dtype))
    expected = np.repeat(np.array(grey)[None, :, None], 3, axis=2)
    assert_colour(image, expected, tolerance=1)
    image.save(tmp_path / "x.tiff")
    assert_colour(tmp_path / "x.tiff", expected, tolerance=1)


def test_a_sixteen_bit_png(tmp_path):
    Image.fromarray(np.array([[0, 30000, 65535]], dtype=np.uint16)).save(tmp_path / "x.png")
    assert_colour(tmp_path / "x.png", [[[0] * 3, [30000 / 257] * 3, [255] * 3]], tolerance=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_grey_of_not_one_number_is_refused(value):
    with pytest.raises(UnreadableImage):
        load_image(Image.new("F", SIZE, value))


# EXIF 2.3, tag 274: where the stored pixel in row r, column c stands in an upright image of
# height h and width w. "1: row 0 is the visual top, column 0 the visual left side", and so on.
STANDS_AT = {
    1: lambda r, c, h, w: (r, c),
    2: lambda r, c, h, w: (r, w - 1 - c),
    3: lambda r, c, h, w: (h - 1 - r, w - 1 - c),
    4: lambda r, c, h, w: (h - 1 - r, c),
    5: lambda r, c, h, w: (c, r),
    6: lambda r, c, h, w: (c, w - 1 - r),
    7: lambda r, c, h, w: (h - 1 - c, w - 1 - r),
    8: lambda r, c, h, w: (h - 1 - c, r),
}


def stored_as(upright: np.ndarray, orientation: int) -> np.ndarray:
    h, w = upright.shape[:2]
    rows, columns = (w, h) if orientation > 4 else (h, w)
    place = STANDS_AT[orientation]
    return np.array(
        [[upright[place(r, c, h, w)] for c in range(columns)] for r in range(rows)], dtype=np.uint8
    )


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STANDS_AT)
def test_exif_orientation(orientation, form, tmp_path):
    upright = np.random.default_rng(3).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if form == "WEBP" else {}
    Image.fromarray(stored_as(upright, orientation)).save(
        tmp_path / "x", form, exif=exif, **options
    )
    assert_colour(tmp_path / "x", upright, tolerance=0)
    # Nothing is left that would make the next reader turn it again.
    assert_colour(load_image(tmp_path / "x"), upright, tolerance=0)
    with Image.open(tmp_path / "x") as opened:
        assert_colour(opened, upright, tolerance=0)


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_unknown_orientation_is_upright(orientation, tmp_path):
    upright = np.random.default_rng(3).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(upright).save(tmp_path / "x.png", exif=exif)
    assert_colour(tmp_path / "x.png", upright, tolerance=0)


def test_damaged_metadata_beside_good_pixels_is_no_failure(tmp_path):
    Image.new("RGB", SIZE, "red").save(tmp_path / "x.png", exif=b"Exif\0\0XX*\0nonsense")
    assert_colour(tmp_path / "x.png", [255, 0, 0])


def test_no_metadata_is_left(tmp_path):
    Image.new("RGB", SIZE, "red").save(tmp_path / "x.jpg", comment=CANARY.encode(), dpi=(72, 72))
    assert load_image(tmp_path / "x.jpg").info == {}


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF", "WEBP"])
def test_the_first_frame_is_taken(form, tmp_path):
    frames = [Image.new("RGB", SIZE, colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "x", form, save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "x") as stored:
        assert stored.n_frames == 3
    assert_colour(tmp_path / "x", [255, 0, 0])


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_read_by_content_not_by_name(form, tmp_path):
    Image.new("RGB", (16, 16), (200, 100, 50)).save(tmp_path / "x.txt", form)
    assert_colour(str(tmp_path / "x.txt"), [200, 100, 50], tolerance=6)


def test_an_open_image_stays_as_it_is():
    image = palette_image(1)
    before, info = image.tobytes(), dict(image.info)
    loaded = load_image(image)
    loaded.putpixel((0, 0), (1, 2, 3))
    assert (image.mode, image.tobytes(), image.info) == ("P", before, info)
    rgb = Image.new("RGB", SIZE)
    load_image(rgb).putpixel((0, 0), (1, 2, 3))
    assert rgb.getpixel((0, 0)) == (0, 0, 0)


def encoded(form: str, **options) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, form, **options)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + crc

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000)))


UNREADABLE = {
    "empty": b"",
    "text": f"{CANARY} is no image\n".encode(),
    "header only": b"\x89PNG\r\n\x1a\n",
    "bomb": png_header(60_000, 60_000),
    "between Pillow's warning and our limit": png_header(9_500, 9_500),
    "just too large": png_header(10_001, 10_000),
    "a format that Pillow reads and we do not": b"SIMPLE  =                    T".ljust(80)
    + b"END".ljust(2800),
    **{f"half a {form}": encoded(form)[: len(encoded(form)) // 2] for form in FORMATS},
    "nine tenths of a JPEG": encoded("JPEG")[: len(encoded("JPEG")) * 9 // 10],
    "half an LZW TIFF": encoded("TIFF", compression="tiff_lzw")[:6000],
    "damaged PNG": encoded("PNG").replace(b"IDAT", b"IDAT\0\0\0\0", 1),
}


def assert_silent(error: BaseException, *planted: str) -> None:
    shown = str(error) + repr(error) + "".join(traceback.format_exception(error))
    shown += repr(error.args) + repr(vars(error))
    for text in planted:
        assert text not in shown
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_refused_in_silence(case, tmp_path, capfd, recwarn):
    path = tmp_path / f"{CANARY}.png"
    path.write_bytes(UNREADABLE[case])
    for source in (path, str(path)):
        with pytest.raises(UnreadableImage) as caught:
            load_image(source)
        assert_silent(caught.value, CANARY)
        assert str(caught.value) == str(UnreadableImage())
    assert not recwarn
    assert capfd.readouterr() == ("", "")


def test_the_error_is_a_data_error():
    assert issubclass(UnreadableImage, DataError)


@pytest.mark.parametrize(
    "name", [CANARY, "", f"{CANARY}\0", "\ud800", "x" * 5000, "http://x/y.png"]
)
def test_what_is_no_file_is_refused(name, tmp_path):
    with pytest.raises(UnreadableImage) as caught:
        load_image(os.path.join(tmp_path, name))
    assert_silent(caught.value, CANARY)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(UnreadableImage):
        load_image(tmp_path / "x.png")


def test_a_lazily_opened_broken_image_is_refused(tmp_path):
    path = tmp_path / f"{CANARY}.jpg"
    path.write_bytes(UNREADABLE["half a JPEG"])
    with Image.open(path) as image, pytest.raises(UnreadableImage) as caught:
        load_image(image)
    assert_silent(caught.value, CANARY)


@pytest.mark.parametrize("case", ["bomb", "just too large"])
def test_a_bomb_is_refused_before_it_is_decoded(case, tmp_path, monkeypatch):
    decoded = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: decoded.append(self.size))
    (tmp_path / "x.png").write_bytes(UNREADABLE[case])
    with pytest.raises(UnreadableImage):
        load_image(tmp_path / "x.png")
    assert decoded == []


def test_the_limit_is_a_hundred_megapixels_of_our_own(tmp_path, monkeypatch):
    # Between Pillow's warning and ours, a complete image must be read, in silence. The numbers
    # are made small so that the test is.
    assert MAX_PIXELS == 100_000_000
    monkeypatch.setattr("dpmtv.data.images.MAX_PIXELS", 100)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 89)
    Image.new("RGB", (10, 10), "red").save(tmp_path / "x.png")
    Image.new("RGB", (101, 1), "red").save(tmp_path / "y.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_colour(tmp_path / "x.png", [255, 0, 0])
        with pytest.raises(UnreadableImage):
            load_image(tmp_path / "y.png")


@pytest.mark.parametrize("content", [encoded("PNG"), encoded("TIFF"), *UNREADABLE.values()])
def test_files_are_closed(content, tmp_path):
    (tmp_path / "x").write_bytes(content)
    before = os.listdir("/proc/self/fd")
    with contextlib.suppress(UnreadableImage):
        load_image(tmp_path / "x")
    assert os.listdir("/proc/self/fd") == before


def test_a_stop_by_the_user_is_no_unreadable_image(tmp_path, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    Image.new("RGB", SIZE).save(tmp_path / "x.png")
    monkeypatch.setattr(ImageFile.ImageFile, "load", stop)
    with pytest.raises(KeyboardInterrupt):
        load_image(tmp_path / "x.png")


def test_a_jpeg_of_too_many_scans_is_refused(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 20, 20)).save(file, "JPEG", progressive=True, comment=b"x")
    content, scan = file.getvalue(), b"\xff\xda"
    last = content.rindex(scan)
    more = [content[:-2] + content[last:-2] * n + content[-2:] for n in (0, 100 - 10, 101)]
    assert [one.count(scan) for one in more] == [10, 100, 111]
    loud = scan * 200  # of metadata and of what follows the picture, such as a film, no scan
    comment = b"\xff\xfe" + struct.pack(">H", len(loud) + 2) + loud
    noisy = [content[:2] + comment + content[2:], content + loud]
    path = tmp_path / "x.jpg"
    for one in [*more[:2], *noisy]:
        path.write_bytes(one)
        assert_colour(path, (200, 20, 20), 4)
    path.write_bytes(more[2])
    with pytest.raises(UnreadableImage):
        load_image(path)
