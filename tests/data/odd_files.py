"""Pictures, and writers of odd image files by the formats' specifications, for the image tests."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

H, W = 16, 24
ROW, COLUMN = np.mgrid[:H, :W]
GREY = (10 + 8 * COLUMN + 3 * ROW).astype(np.uint8)  # no two of its eight orientations agree
RGB = np.stack([20 + 9 * COLUMN, 30 + 12 * ROW, 210 - 5 * COLUMN - 4 * ROW], -1).astype(np.uint8)
ALPHA = (255 - 10 * COLUMN).astype(np.uint8)
BITS = ((ROW + 2 * COLUMN) % 5 < 2) & (COLUMN > 3)
INDEX = ((ROW + COLUMN) % 4).astype(np.uint8)
PALETTE = np.array([[200, 0, 0], [0, 150, 0], [0, 0, 100], [9, 9, 9]], dtype=np.uint8)
TWO = np.array([[255, 255, 255], [10, 60, 200]], dtype=np.uint8)  # a palette of two colours
DEEP = 2700 * COLUMN + 180 * ROW  # 16 bits


def grey(values) -> np.ndarray:
    return np.repeat(np.asarray(values, dtype=float)[..., None], 3, axis=2)


def over_white(colours, alpha) -> np.ndarray:
    share = np.asarray(alpha)[..., None] / 255
    return 255 * (1 - share) + np.asarray(colours, dtype=float) * share


def flat(colour, height: int = H, width: int = W) -> np.ndarray:
    return np.broadcast_to(np.array(colour, dtype=float), (height, width, 3))


def saved(pixels, form: str, mode: str | None = None, **options) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, form, **options)
    return file.getvalue()


def indexed(palette=PALETTE, index=INDEX) -> Image.Image:
    image = Image.frombytes("P", index.shape[::-1], index.tobytes())
    image.putpalette(palette.tobytes())
    return image


def bits_packed(values, depth: int) -> bytes:
    """Values of ``depth`` bits, high bits first, every row filled up to whole bytes."""
    values = np.asarray(values).reshape(len(values), -1, 1)
    bits = (values >> np.arange(depth)[::-1]) & 1
    return np.packbits(bits.reshape(len(values), -1).astype(np.uint8), axis=1).tobytes()


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(values, depth: int, kind: int, *chunks: bytes, interlace=0, size=None, rows=None) -> bytes:
    """``kind``: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA."""
    height, width = size or np.shape(values)[:2]
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlace)
    if rows is None:
        packed = bits_packed(values, depth)
        step = len(packed) // height
        rows = b"".join(b"\0" + packed[n : n + step] for n in range(0, len(packed), step))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    )


def adam7(values) -> bytes:
    passes = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2)]
    parts = [values[a::b, c::d] for a, b, c, d in [*passes, (1, 2, 0, 1)]]
    return b"".join(b"\0" + row.tobytes() for part in parts for row in part)


def icc(space: bytes, pcs: bytes, kind: bytes, tags: dict[bytes, bytes]) -> bytes:
    """ICC.1:2001-04: a profile with these tags, D50 as illuminant."""
    tags = {b"desc": b"desc" + bytes(4) + struct.pack(">I", 2) + b"x" + bytes(79), **tags}
    tags = {b"cprt": b"text" + bytes(5), b"wtpt": xyz(0.96422, 1, 0.82521), **tags}
    place, table, body = 132 + 12 * len(tags), b"", b""
    for name, value in tags.items():
        table += name + struct.pack(">II", place + len(body), len(value))
        body += value + bytes(-len(value) % 4)
    head = struct.pack(">I4sI4s4s4s", place + len(body), b"", 0x02400000, kind, space, pcs)
    head += bytes(12) + b"acsp" + bytes(28) + xyz(0.96422, 1, 0.82521)[8:] + bytes(48)
    return head + struct.pack(">I", len(tags)) + table + body


def xyz(*values: float) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(v * 65536) for v in values))


def gamma(value: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(value * 256))


def rgb_profile(matrix, exponent: float) -> bytes:
    columns = zip((b"rXYZ", b"gXYZ", b"bXYZ"), np.transpose(matrix), strict=True)
    curves = {name: gamma(exponent) for name in (b"rTRC", b"gTRC", b"bTRC")}
    return icc(b"RGB ", b"XYZ ", b"mntr", {**{n: xyz(*c) for n, c in columns}, **curves})


def srgb_encoded(linear) -> np.ndarray:
    """IEC 61966-2-1."""
    linear = np.clip(linear, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


SRGB_FROM_XYZ_D50 = [
    [3.1338561, -1.6168667, -0.4906146],
    [-0.9787684, 1.9161415, 0.0334540],
    [0.0719453, -0.2289914, 1.4052427],
]


def seen_through(matrix, exponent: float, colours) -> np.ndarray:
    linear = (np.asarray(colours) / 255) ** exponent
    return srgb_encoded(linear @ np.transpose(matrix) @ np.transpose(SRGB_FROM_XYZ_D50))


# Linear RGB to XYZ under D50, as published by Bruce Lindbloom; Display P3 from its primaries.
ADOBE = [
    [0.6097559, 0.2052401, 0.1492240],
    [0.3111242, 0.6256560, 0.0632197],
    [0.0194811, 0.0608902, 0.7448387],
]
PROPHOTO = [[0.7976749, 0.1351917, 0.0313534], [0.2880402, 0.7118741, 0.0000857], [0, 0, 0.82521]]
P3 = [
    [0.5151187, 0.2919778, 0.1571035],
    [0.2411892, 0.6922441, 0.0665668],
    [-0.0010505, 0.0418791, 0.7840713],
]


def lookup_profile() -> bytes:
    """A CMYK profile whose cyan ink prints mid grey and whose other inks print nothing but K."""
    nodes = [(c, k) for c in (0, 1) for _ in range(4) for k in (0, 1)]
    grid = b"".join(bytes([round(255 * (1 - c / 2) * (1 - k)), 128, 128]) for c, k in nodes)
    matrix = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    table = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix
    table += bytes(range(256)) * 4 + grid + bytes(range(256)) * 3
    return icc(b"CMYK", b"Lab ", b"prtr", {b"A2B0": table})


# How an upright picture lies in the file, EXIF 2.3, tag 274.
STORED = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: a[::-1, ::-1],
    4: np.flipud,
    5: lambda a: a.swapaxes(0, 1),
    6: np.rot90,
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}


def turned(number: int, form: str, **options) -> bytes:
    exif = Image.Exif()
    exif[274] = number
    return saved(np.ascontiguousarray(STORED[number](RGB)), form, exif=exif, **options)


def tiff(data, photometric, bits, order="<", big=False, tile=False, size=(H, W), pages=1, **more):
    """A TIFF with one strip (or tiles in ``data``, a list), every page the same."""
    parts = data if isinstance(data, list) else [data]
    samples = more.pop("samples", 1)
    tags = {256: size[1], 257: size[0], 258: (bits,) * samples, 259: 1, 262: photometric}
    tags |= {277: samples, **({322: 16, 323: 16} if tile else {278: size[0]})}
    tags |= {int(name[1:]): value for name, value in more.items()}
    places, counts = (324, 325) if tile else (273, 279)
    body = b"".join(parts)
    start = (16 if big else 8) + len(body)
    offsets = np.cumsum([start - len(body), *map(len, parts)])[:-1]
    tags |= {places: tuple(offsets.tolist()), counts: tuple(map(len, parts))}
    word, count, inline = ("Q", "Q", 8) if big else ("I", "H", 4)
    directories = b""
    for page in range(pages):
        entries, extra = b"", b""
        length = struct.calcsize(f"{order}{count}{word}") + len(tags) * (12 if not big else 20)
        for tag in sorted(tags):
            values = tags[tag] if isinstance(tags[tag], tuple) else (tags[tag],)
            kind = 4 if tag in (places, counts) else 3
            packed = struct.pack(f"{order}{len(values)}{'HI'[kind == 4]}", *values)
            if len(packed) > inline:
                place = start + len(directories) + length + len(extra)
                extra, packed = extra + packed, struct.pack(order + word, place)
            entries += struct.pack(f"{order}HH{word}", tag, kind, len(values))
            entries += packed.ljust(inline, b"\0")
        after = start + len(directories) + length + len(extra)
        following = struct.pack(order + word, after if page < pages - 1 else 0)
        directories += struct.pack(order + count, len(tags)) + entries + following + extra
    head = b"II" if order == "<" else b"MM"
    head += (
        struct.pack(f"{order}HHHQ", 43, 8, 0, start)
        if big
        else struct.pack(f"{order}HI", 42, start)
    )
    return head + body + directories


def packed(values, kind: str) -> bytes:
    return np.asarray(values).astype(kind).tobytes()


def bmp(data: bytes, depth: int, palette=None, method=0, masks=(), height=H, os2=False) -> bytes:
    colours = (
        b""
        if palette is None
        else b"".join(bytes([*c[::-1], 0][: 3 if os2 else 4]) for c in palette)
    )
    if os2:
        header = struct.pack("<IHHHH", 12, W, height, 1, depth)
    else:
        size = 108 if masks else 40
        header = struct.pack(
            "<IiiHHIIiiII", size, W, height, 1, depth, method, len(data), 0, 0, 0, 0
        )
        header += struct.pack(f"<{len(masks)}I", *masks).ljust(size - 40, b"\0")
    if palette is not None and not os2:
        header = header[:32] + struct.pack("<I", len(palette)) + header[36:]
    start = 14 + len(header) + len(colours)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + header + colours + data


def upwards(rows: bytes) -> bytes:
    """Rows from the bottom up, each filled to four bytes."""
    step = len(rows) // H
    lines = [rows[n : n + step] + bytes(-step % 4) for n in range(0, len(rows), step)]
    return b"".join(lines[::-1])


def gif_first_frame_smaller() -> bytes:
    """A frame of 2 by 1 pixels at (1, 1) on a screen of 4 by 3; the rest is not painted."""
    codes = [4, 1, 2, 5]  # clear, two colours, end: three bits each
    number = sum(code << (3 * n) for n, code in enumerate(codes))
    lzw = bytes([2, 2, *number.to_bytes(2, "little"), 0])
    screen = struct.pack("<HHBBB", 4, 3, 0x81, 0, 0) + PALETTE.tobytes()
    return b"GIF89a" + screen + b"," + struct.pack("<HHHHB", 1, 1, 2, 1, 0) + lzw + b";"


def tga(data: bytes, depth: int, descriptor: int) -> bytes:
    return struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, W, H, depth, descriptor) + data


def icns(png: bytes) -> bytes:
    """An Apple icon with one picture of 16 by 16 pixels."""
    return struct.pack(">4sI4sI", b"icns", 16 + len(png), b"icp4", 8 + len(png)) + png


def dxt1(colour565: int) -> bytes:
    header = struct.pack("<7I", 124, 0x1007, 8, 8, 8, 0, 1) + bytes(44)
    header += struct.pack("<II4s5I", 32, 4, b"DXT1", 0, 0, 0, 0, 0) + struct.pack(
        "<5I", 0x1000, 0, 0, 0, 0
    )
    return b"DDS " + header + struct.pack("<HHI", colour565, 0, 0) * 4


def damaged(content: bytes, old: bytes, new: bytes) -> bytes:
    assert content.count(old)
    return content.replace(old, new, 1)


def spoilt(content: bytes) -> bytes:
    """With its compressed pixels, which Pillow writes from byte 8 on, overwritten."""
    return content[:10] + b"\xff" * 30 + content[40:]


class InsideAnother:
    """An image inside another file."""

    def __init__(self, content: bytes):
        self.content = content

    def read(self) -> bytes:
        return self.content
