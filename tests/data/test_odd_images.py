"""Odd image files of every kind, each beside the picture that a careful person would see.

The files are written with Pillow or by hand (odd_files.py); the pictures are computed from the
formats' specifications with numpy. DICOM files are in test_dicom.py.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.data.odd_files import (
    ADOBE,
    ALPHA,
    BITS,
    COLUMN,
    DEEP,
    GREY,
    INDEX,
    P3,
    PALETTE,
    PROPHOTO,
    RGB,
    ROW,
    STORED,
    TWO,
    H,
    InsideAnother,
    W,
    adam7,
    bits_packed,
    bmp,
    chunk,
    damaged,
    dxt1,
    flat,
    gamma,
    gif_first_frame_smaller,
    grey,
    icc,
    icns,
    indexed,
    lookup_profile,
    over_white,
    packed,
    png,
    rgb_profile,
    saved,
    seen_through,
    spoilt,
    srgb_encoded,
    tga,
    tiff,
    turned,
    upwards,
)

from dpmtv.data.images import UnreadableImage, load_image, missing_extra

CASES: list = []
NULL: dict[str, bytes] = {}


def case(name: str, content: bytes, expected, tolerance: int = 1) -> None:
    CASES.append(pytest.param(content, expected, tolerance, id=name))


# --- PNG ----------------------------------------------------------------------------------
RGBA = np.dstack([RGB, ALPHA])
RGB16 = RGB.astype(int) * 257 + 100
PLTE, TRNS = chunk(b"PLTE", PALETTE.tobytes()), chunk(b"tRNS", bytes([255, 0, 128]))
SEEN_INDEX = over_white(PALETTE[INDEX], np.array([255, 0, 128, 255])[INDEX])
KEYED = np.where((INDEX == 3)[..., None], 255.0, grey(INDEX * 85))

case("png-1-bit", png(BITS.astype(int), 1, 0), grey(BITS * 255))
case("png-2-bit", png(INDEX, 2, 0), grey(INDEX * 85))
case("png-2-bit-key", png(INDEX, 2, 0, chunk(b"tRNS", b"\0\3")), KEYED)
case("png-4-bit", png(COLUMN % 16, 4, 0), grey(COLUMN % 16 * 17))
case(
    "png-4-bit-key",
    png(COLUMN % 16, 4, 0, chunk(b"tRNS", b"\0\2")),
    grey(np.where(COLUMN % 16 == 2, 255, COLUMN % 16 * 17)),
)
case("png-2-bit-palette", png(INDEX, 2, 3, PLTE), PALETTE[INDEX])
case("png-palette-alpha", png(INDEX, 4, 3, PLTE, TRNS), SEEN_INDEX)
case("png-rgba", png(RGBA, 8, 6), over_white(RGB, ALPHA))
case("png-grey-alpha", png(np.dstack([GREY, ALPHA]), 8, 4), over_white(grey(GREY), ALPHA))
case("png-interlaced", png(RGB, 8, 2, interlace=1, rows=adam7(RGB)), RGB, 0)
case("png-16-bit-rgb", png(RGB16, 16, 2), RGB16 / 257)
case(
    "png-16-bit-rgba",
    png(np.dstack([RGB16, ALPHA.astype(int) * 257]), 16, 6),
    over_white(RGB, ALPHA),
    2,
)
case(
    "png-16-bit-grey-alpha",
    png(np.dstack([DEEP, ALPHA.astype(int) * 257]), 16, 4),
    over_white(grey(DEEP / 257), ALPHA),
    2,
)
case(
    "png-16-bit-rgb-key",
    png(RGB16, 16, 2, chunk(b"tRNS", struct.pack(">3H", *RGB16[2, 5]))),
    np.where((RGB16[2, 5] == RGB16).all(-1)[..., None], 255, RGB16 / 257),
)
case("png-16-bit-grey", png(DEEP, 16, 0), grey(DEEP / 257))
case(
    "png-16-bit-grey-key",
    png(DEEP, 16, 0, chunk(b"tRNS", struct.pack(">H", DEEP[3, 4]))),
    grey(np.where(DEEP[3, 4] == DEEP, 255, DEEP / 257)),
)
for bits in (8, 10, 12, 14):
    NARROW = DEEP >> (16 - bits)
    NARROW[0, 0] = 2**bits - 1
    case(f"png-{bits}-of-16-bits", png(NARROW, 16, 0), grey(NARROW * 255 / (2**bits - 1)))
HOUNSFIELD = 100 * COLUMN - 1000 + ROW
case(
    "png-ct-offset-by-32768",
    png(HOUNSFIELD + 32768, 16, 0),
    grey((HOUNSFIELD + 1000) / (HOUNSFIELD.max() + 1000) * 255),
)
case("png-16-bit-blank-page", png(np.full((H, W), 65000) + ROW, 16, 0), flat([253] * 3))
case("png-trailing-garbage", png(RGB, 8, 2) + b"garbage" * 99, RGB, 0)
case("png-one-column", png(RGB[:, :1].repeat(200, 0), 8, 2), RGB[:, :1].repeat(200, 0), 0)
case("png-one-row", png(RGB[:1].repeat(200, 1), 8, 2), RGB[:1].repeat(200, 1), 0)
FRAMES = [Image.fromarray(RGB), Image.new("RGB", (W, H)), Image.new("RGB", (W, H), "red")]
ALL = {"save_all": True, "append_images": FRAMES[1:]}
case("apng", saved(FRAMES[0], "PNG", **ALL), RGB, 0)

# --- colour profiles ------------------------------------------------------------------------


MUTED = (RGB // 4 + 96).astype(np.uint8)  # inside every gamut, so that no clipping hides errors
LINEAR_GREY = icc(b"GRAY", b"XYZ ", b"mntr", {b"kTRC": gamma(1)})
for name, matrix, exponent in [("adobe", ADOBE, 2.2), ("prophoto", PROPHOTO, 1.8), ("p3", P3, 2.2)]:
    content = saved(MUTED, "PNG", icc_profile=rgb_profile(matrix, exponent))
    case(f"icc-{name}-png", content, seen_through(matrix, exponent, MUTED), 2)
WIDE = {"icc_profile": rgb_profile(ADOBE, 2.2)}
SEEN = seen_through(ADOBE, 2.2, MUTED)
case("icc-jpeg", saved(MUTED, "JPEG", quality=100, subsampling=0, **WIDE), SEEN, 4)
case("icc-tiff", saved(MUTED, "TIFF", **WIDE), SEEN, 2)
case("icc-webp", saved(MUTED, "WEBP", lossless=True, **WIDE), SEEN, 2)
case("icc-avif", saved(MUTED, "AVIF", quality=100, subsampling="4:4:4", **WIDE), SEEN, 7)
case("icc-rgba", saved(np.dstack([MUTED, ALPHA]), "PNG", **WIDE), over_white(SEEN, ALPHA), 2)
case("icc-palette", saved(indexed(), "PNG", **WIDE), seen_through(ADOBE, 2.2, PALETTE)[INDEX], 2)
case(
    "icc-grey-linear",
    saved(GREY, "PNG", icc_profile=LINEAR_GREY),
    grey(srgb_encoded(GREY / 255)),
    2,
)
CYAN = Image.new("CMYK", (W, H), (255, 0, 0, 0))
for form in ("JPEG", "TIFF"):
    content = saved(CYAN, form, icc_profile=lookup_profile())
    case(f"icc-cmyk-{form}".lower(), content, flat([119] * 3), 2)  # L* = 50
case("icc-damaged", saved(RGB, "PNG", icc_profile=b"no profile"), RGB, 0)
case("icc-cut-short", saved(RGB, "PNG", icc_profile=rgb_profile(P3, 2.2)[:300]), RGB, 0)
case("icc-of-another-space", saved(RGB, "PNG", icc_profile=LINEAR_GREY), RGB, 0)
case("icc-cmyk-in-rgb", saved(RGB, "TIFF", icc_profile=lookup_profile()), RGB, 0)

# --- orientation ----------------------------------------------------------------------------


FINE = {"quality": 100, "subsampling": 0}
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
SIDEWAYS = np.ascontiguousarray(STORED[6](RGB))
for number in STORED:
    case(f"exif-{number}-jpeg", turned(number, "JPEG", **FINE), RGB, 4)
case("exif-6-png", turned(6, "PNG"), RGB, 0)
case("exif-7-webp", turned(7, "WEBP", lossless=True), RGB, 0)
case("exif-8-tiff", turned(8, "TIFF"), RGB, 0)
case("exif-5-tiff-lzw", turned(5, "TIFF", compression="tiff_lzw"), RGB, 0)
for number in (2, 6, 7):
    options = {"quality": 100, "subsampling": "4:4:4"}
    case(f"exif-{number}-avif", turned(number, "AVIF", **options), RGB, 4)
case("xmp-6-jpeg", saved(SIDEWAYS, "JPEG", xmp=XMP, **FINE), RGB, 4)
case("xmp-6-webp", saved(SIDEWAYS, "WEBP", lossless=True, xmp=XMP), RGB, 0)

# --- JPEG and JPEG 2000 ---------------------------------------------------------------------

JPEG = saved(RGB, "JPEG", **FINE)
INK = np.dstack([255 - RGB, GREY // 4])
PRINTED = RGB * (255.0 - GREY[..., None] // 4) / 255
CMYK = Image.frombytes("CMYK", (W, H), INK.tobytes())
# Adobe's YCCK: ink as Y, Cb, Cr (BT.601), and all of it stored inverted.
YCCK = saved(Image.new("CMYK", (W, H), (255 - 100, 255 - 110, 255 - 150, 0)), "JPEG", quality=100)
YCCK = YCCK.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2")
SEEN_YCCK = [
    255 - (100 + 1.402 * 22),
    255 - (100 + 0.344 * 18 - 0.714 * 22),
    255 - (100 - 1.772 * 18),
]
STEREO = saved(FRAMES[0], "MPO", **ALL, **FINE)
J2K = {"irreversible": False}

case("jpeg-progressive", saved(RGB, "JPEG", progressive=True, **FINE), RGB, 4)
case("jpeg-restart-markers", saved(RGB, "JPEG", restart_marker_blocks=1, **FINE), RGB, 4)
case("jpeg-rgb-inside", saved(RGB, "JPEG", keep_rgb=True, **FINE), RGB, 3)
case("jpeg-grey", saved(GREY, "JPEG", quality=100), grey(GREY), 3)
case("jpeg-subsampled", saved(RGB, "JPEG", quality=100, subsampling=2), RGB, 12)
case("jpeg-cmyk-adobe", saved(CMYK, "JPEG", quality=100), PRINTED, 4)
case("jpeg-ycck", YCCK, flat(SEEN_YCCK), 3)
case("jpeg-trailing-garbage", JPEG + bytes(range(256)) * 20, RGB, 4)
case("mpo-stereo-phone", STEREO, RGB, 4)
case("jp2-lossless", saved(RGB, "JPEG2000", **J2K), RGB, 0)
case("j2k-codestream", saved(RGB, "JPEG2000", no_jp2=True, **J2K), RGB, 0)
case("jp2-rgba", saved(RGBA, "JPEG2000", **J2K), over_white(RGB, ALPHA))
case("jp2-16-bit", saved(DEEP.astype(np.uint16), "JPEG2000", **J2K), grey(DEEP / 257))

# --- TIFF, TIFF 6.0 and its supplements -------------------------------------------------------


EXTRA_RGBA = {"samples": 4}
PREMULTIPLIED = np.dstack([np.rint(RGB * (ALPHA[..., None] / 255)), ALPHA])
FLOATS = np.linspace(0, 1, H * W).reshape(H, W)
HOLED = np.where(BITS, np.nan, FLOATS)
TILES = [np.pad(RGB, ((0, 0), (0, 8), (0, 0)))[:, n : n + 16].tobytes() for n in (0, 16)]
COLOUR_MAP = tuple((np.pad(PALETTE, ((0, 12), (0, 0))).T.astype(int) * 257).ravel().tolist())

for order, end in (("<", "little"), (">", "big")):
    for big in (False, True)[: 2 if end == "little" else 1]:
        label = f"tiff-{end}{'-bigtiff' if big else ''}"
        case(label, tiff(RGB.tobytes(), 2, 8, order, big, samples=3), RGB, 0)
    case(
        f"tiff-16-bit-rgb-{end}",
        tiff(packed(RGB16, order + "u2"), 2, 16, order, samples=3),
        RGB16 / 257,
    )
    case(
        f"tiff-16-bit-grey-{end}", tiff(packed(DEEP, order + "u2"), 1, 16, order), grey(DEEP / 257)
    )
    case(
        f"tiff-float-{end}",
        tiff(packed(FLOATS, order + "f4"), 1, 32, order, t339=3),
        grey(FLOATS * 255),
    )
    signed = packed(HOUNSFIELD, order + "i2")
    span = (HOUNSFIELD - HOUNSFIELD.min()) / np.ptp(HOUNSFIELD) * 255
    case(f"tiff-signed-{end}", tiff(signed, 1, 16, order, t339=2), grey(span))
case(
    "tiff-float-with-nan",
    tiff(packed(HOLED, "<f4"), 1, 32, t339=3),
    grey(np.nan_to_num(HOLED) * 255),
)
case(
    "tiff-float-a-little-over-1",
    tiff(packed(FLOATS * 1.01, "<f4"), 1, 32, t339=3),
    grey(FLOATS * 255),
)
case("tiff-12-bit-packed", tiff(bits_packed(DEEP >> 4, 12), 1, 12), grey((DEEP >> 4) * 255 / 4095))
case("tiff-1-bit", tiff(bits_packed(BITS, 1), 1, 1), grey(BITS * 255))
case("tiff-1-bit-min-is-white", tiff(bits_packed(BITS, 1), 0, 1), grey(~BITS * 255))
case("tiff-4-bit-min-is-white", tiff(bits_packed(INDEX, 4), 0, 4), grey(255 - INDEX * 17))
case("tiff-8-bit-min-is-white", tiff(GREY.tobytes(), 0, 8), grey(255 - GREY))
case("tiff-16-bit-min-is-white", tiff(packed(DEEP, "<u2"), 0, 16), grey(255 - DEEP / 257))
case(
    "tiff-float-min-is-white", tiff(packed(FLOATS, "<f4"), 0, 32, t339=3), grey(255 - FLOATS * 255)
)
case("tiff-4-bit-palette", tiff(bits_packed(INDEX, 4), 3, 4, t320=COLOUR_MAP), PALETTE[INDEX])
case(
    "tiff-straight-alpha", tiff(RGBA.tobytes(), 2, 8, t338=2, **EXTRA_RGBA), over_white(RGB, ALPHA)
)
case(
    "tiff-premultiplied-alpha",
    tiff(packed(PREMULTIPLIED, "u1"), 2, 8, t338=1, **EXTRA_RGBA),
    over_white(RGB, ALPHA),
    2,
)
case("tiff-fourth-sample-unspecified", tiff(RGBA.tobytes(), 2, 8, t338=0, **EXTRA_RGBA), RGB, 0)
for kind, pixels in ((2, GREY), (1, np.rint(GREY * (ALPHA / 255)))):
    content = tiff(packed(np.dstack([pixels, ALPHA]), "u1"), 1, 8, t338=kind, samples=2)
    case(f"tiff-grey-alpha-{kind}", content, over_white(grey(GREY), ALPHA), 2)
case("tiff-tiled", tiff(TILES, 2, 8, tile=True, samples=3), RGB, 0)
case(
    "tiff-planar",
    tiff([p.tobytes() for p in np.moveaxis(RGB, 2, 0)], 2, 8, t284=2, samples=3),
    RGB,
    0,
)
case("tiff-three-pages", tiff(RGB.tobytes(), 2, 8, pages=3, samples=3), RGB, 0)
case("tiff-cmyk", saved(CMYK, "TIFF"), PRINTED)
case("tiff-16-bit-cmyk", tiff(packed(INK.astype(int) * 257, "<u2"), 5, 16, samples=4), PRINTED)
case("tiff-orientation-tag", tiff(STORED[3](RGB).tobytes(), 2, 8, t274=3, samples=3), RGB, 0)
for method in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd", "lzma"):
    case(f"tiff-{method}", saved(RGB, "TIFF", compression=method), RGB, 0)
case("tiff-predictor", saved(RGB, "TIFF", compression="tiff_lzw", tiffinfo={317: 2}), RGB, 0)
case("tiff-jpeg", saved(RGB, "TIFF", compression="jpeg", quality=100), RGB, 8)
for method in ("group3", "group4", "tiff_ccitt"):
    case(f"tiff-fax-{method}", saved(BITS, "TIFF", compression=method), grey(BITS * 255), 0)

# --- BMP --------------------------------------------------------------------------------------


FIVE = RGB.astype(int) >> 3
SIX = RGB.astype(int)[..., 1] >> 2
BGRA = np.dstack([RGB[..., ::-1], ALPHA])
MASKS = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
RUNS = b"".join(b"".join(bytes([1, v]) for v in row) + b"\0\0" for row in INDEX[::-1]) + b"\0\1"
HALF_RUNS = b"".join(b"".join(bytes([1, v << 4]) for v in row) + b"\0\0" for row in INDEX[::-1])

case("bmp-1-bit", bmp(upwards(bits_packed(BITS, 1)), 1, TWO), TWO[BITS.astype(int)], 0)
case("bmp-4-bit", bmp(upwards(bits_packed(INDEX, 4)), 4, PALETTE), PALETTE[INDEX], 0)
case("bmp-8-bit", bmp(upwards(INDEX.tobytes()), 8, PALETTE), PALETTE[INDEX], 0)
case(
    "bmp-8-bit-os2",
    bmp(upwards(INDEX.tobytes()), 8, np.pad(PALETTE, ((0, 252), (0, 0))), os2=True),
    PALETTE[INDEX],
    0,
)
case("bmp-rle8", bmp(RUNS, 8, PALETTE, 1), PALETTE[INDEX], 0)
case("bmp-rle4", bmp(HALF_RUNS + b"\0\1", 4, PALETTE, 2), PALETTE[INDEX], 0)
case(
    "bmp-555",
    bmp(upwards(packed(FIVE[..., 0] << 10 | FIVE[..., 1] << 5 | FIVE[..., 2], "<u2")), 16),
    FIVE * 255 / 31,
)
case(
    "bmp-565",
    bmp(
        upwards(packed(FIVE[..., 0] << 11 | SIX << 5 | FIVE[..., 2], "<u2")),
        16,
        None,
        3,
        (0xF800, 0x7E0, 0x1F),
    ),
    np.dstack([FIVE[..., 0] * 255 / 31, SIX * 255 / 63, FIVE[..., 2] * 255 / 31]),
)
case("bmp-top-down", bmp(RGB[..., ::-1].tobytes(), 24, height=-H), RGB, 0)
case("bmp-32-bit-unused", bmp(upwards(BGRA.tobytes()), 32), RGB, 0)
case("bmp-32-bit-alpha", bmp(upwards(BGRA.tobytes()), 32, None, 3, MASKS), over_white(RGB, ALPHA))
BLANK_ALPHA = np.dstack([RGB[..., ::-1], 0 * ALPHA]).tobytes()
case("bmp-alpha-all-zero", bmp(upwards(BLANK_ALPHA), 32, None, 3, MASKS), RGB, 0)

# --- GIF, WebP, AVIF and the small ones -------------------------------------------------------


SCREEN = PALETTE[[[0] * 4, [0, 1, 2, 0], [0] * 4]]  # colour 0 is the background
HOLE = {"transparency": 1}
SEEN_HOLE = np.where((INDEX == 1)[..., None], 255, PALETTE[INDEX])
LOSSLESS = {"lossless": True, "exact": True}
SQUARE = RGB[:, :16]

case("gif-transparent", saved(indexed(), "GIF", **HOLE), SEEN_HOLE, 0)
case(
    "gif-animated",
    saved(indexed(), "GIF", save_all=True, append_images=[indexed(PALETTE[::-1])]),
    PALETTE[INDEX],
    0,
)
case("gif-interlaced", saved(indexed(), "GIF", interlace=1), PALETTE[INDEX], 0)
case("gif-uncovered-screen", gif_first_frame_smaller(), SCREEN, 0)
case("webp-lossy", saved(RGB, "WEBP", quality=100), RGB, 12)
case("webp-alpha", saved(RGBA, "WEBP", **LOSSLESS), over_white(RGB, ALPHA))
case("webp-animated", saved(FRAMES[0], "WEBP", **ALL, **LOSSLESS), RGB, 0)
case("avif", saved(RGB, "AVIF", quality=100, subsampling="4:4:4"), RGB, 4)
case("avif-alpha", saved(RGBA, "AVIF", quality=100, subsampling="4:4:4"), over_white(RGB, ALPHA), 5)
case("avif-animated", saved(FRAMES[0], "AVIF", quality=100, subsampling="4:4:4", **ALL), RGB, 5)
case("pcx-1-bit", saved(BITS, "PCX"), grey(BITS * 255), 0)
case("pcx-palette", saved(indexed(), "PCX"), PALETTE[INDEX], 0)
case("pcx-rgb", saved(RGB, "PCX"), RGB, 0)
case("tga-rle", saved(RGBA, "TGA", compression="tga_rle"), over_white(RGB, ALPHA))
case("tga-top-down", tga(RGB[..., ::-1].tobytes(), 24, 0x20), RGB, 0)
case("tga-bottom-up", tga(RGB[::-1, :, ::-1].tobytes(), 24, 0), RGB, 0)
case("tga-alpha-all-zero", tga(BLANK_ALPHA, 32, 0x28), RGB, 0)
case("sgi-rgb", saved(RGB, "SGI"), RGB, 0)
case("sgi-16-bit", saved(GREY, "SGI", bpc=2), grey(GREY))
case(
    "ico-largest",
    saved(RGBA[:, :16], "ICO", sizes=[(8, 8), (16, 16)]),
    over_white(SQUARE, ALPHA[:, :16]),
)
case(
    "ico-bitmap",
    saved(RGBA[:, :16], "ICO", sizes=[(16, 16)], bitmap_format="bmp"),
    over_white(SQUARE, ALPHA[:, :16]),
)
case("icns", icns(saved(SQUARE, "PNG")), SQUARE, 0)
case("dds", saved(RGBA, "DDS"), over_white(RGB, ALPHA))
case("dds-dxt1", dxt1(31 << 11), flat([255, 0, 0], 8, 8), 0)
case("qoi", saved(RGBA, "QOI"), over_white(RGB, ALPHA))
case("pbm-text", b"P1\n# black is 1\n3 2\n0 1 1\n1 0 0\n", grey([[255, 0, 0], [0, 255, 255]]), 0)
case("pbm", b"P4 24 16\n" + bits_packed(BITS, 1), grey(~BITS * 255), 0)
case("pgm-text", b"P2 2 1 100\n100 50\n", grey([[255, 127.5]]))
case("pgm-12-bit", b"P5 24 16 4095\n" + packed(DEEP >> 4, ">u2"), grey((DEEP >> 4) * 255 / 4095))
case("ppm-text", b"P3 2 1 15\n15 0 0 0 15 5\n", [[[255, 0, 0], [0, 255, 85]]])
case("ppm-10-bit", b"P6 24 16 1023\n" + packed(RGB.astype(int) * 4, ">u2"), RGB * (4 * 255 / 1023))
case("pfm-big", b"Pf\n24 16\n1.0\n" + packed(FLOATS[::-1], ">f4"), grey(FLOATS * 255))
case("pfm-little", b"Pf\n24 16\n-1.0\n" + packed(FLOATS[::-1], "<f4"), grey(FLOATS * 255))

# --- what stays unread ------------------------------------------------------------------------


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect/></svg>'
BOMB = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(70_000_000), 9))
TEXT_BOMB = chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(70_000_000), 9))
NULL = {
    "empty": b"",
    "EPS, which would run a program": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "WMF": b"\xd7\xcd\xc6\x9a\0\0" + bytes(60),
    "SVG": SVG,
    "PDF": b"%PDF-1.7\n1 0 obj\n",
    "PSD": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 1, 1, 8, 3) + bytes(40),
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(60),
    "FITS": b"SIMPLE  =                    T".ljust(80) + b" " * 2800,
    "XBM": b"#define x_width 8\n#define x_height 1\nstatic char x_bits[] = {\n0x01};\n",
    "colour PFM": b"PF\n2 1\n-1.0\n" + bytes(24),
    "PAM": b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\nabc",
    "PNG without pixels": png([[0]], 8, 0)[:33],
    "PNG of no width": png(GREY, 8, 0, size=(1, 0), rows=b""),
    "PNG with a wrong checksum": damaged(png(RGB, 8, 2), b"IDAT", b"IDAU"),
    "PNG with half its rows": png(RGB, 8, 2, rows=bytes(9), size=(H, W)),
    "PNG of 3.6 gigapixels": png([[0]], 8, 0, size=(60_000, 60_000), rows=b"\0"),
    "PNG just above the limit": png([[0]], 1, 0, size=(10_000, 10_001), rows=b"\0"),
    "PNG with a profile bomb": png(RGB, 8, 2, BOMB),
    "PNG with a text bomb": png(RGB, 8, 2, TEXT_BOMB),
    "icon with a PNG of 3.6 gigapixels": icns(png([[0]], 8, 0, size=(60_000, 60_000), rows=b"\0")),
    "WebP of 268 megapixels": damaged(
        saved(RGBA, "WEBP", **LOSSLESS), b"VP8L", b"VP8X\x0a\0\0\0\0\0\0\0\xfe\x3f\0\xfe\x3f\0VP8L"
    ),
    "JPEG cut short": JPEG[: len(JPEG) // 2],
    "JPEG without its last two bytes": JPEG[:-2],
    "JPEG of 12 bits": damaged(JPEG, b"\xff\xc0\0\x11\x08", b"\xff\xc1\0\x11\x0c"),
    "JPEG after garbage": b"garbage" + JPEG,
    "JPEG 2000 cut short": saved(RGB, "JPEG2000", **J2K)[:200],
    "TIFF of not one number": tiff(packed(FLOATS * np.nan, "<f4"), 1, 32, t339=3),
    "TIFF of 10 bits": tiff(bits_packed(DEEP >> 6, 10), 1, 10),
    "TIFF of 16-bit Lab": tiff(packed(RGB16, "<u2"), 8, 16, samples=3),
    "TIFF of doubles": tiff(packed(FLOATS, "<f8"), 1, 64, t339=3),
    "TIFF cut short": tiff(RGB.tobytes(), 2, 8, samples=3)[:-40],
    "TIFF without its pixels": tiff(b"", 2, 8, samples=3),
    # The library behind these tells of the damage on the error stream, which must not be seen.
    **{
        f"damaged {method} TIFF": spoilt(saved(RGB, "TIFF", compression=method))
        for method in ("tiff_lzw", "tiff_adobe_deflate", "zstd", "jpeg")
    },
    "TIFF of 999 samples a pixel": tiff(RGB.tobytes(), 2, 8, samples=3, t277=999),
    "BigTIFF of big endian": tiff(RGB.tobytes(), 2, 8, ">", True, samples=3),
    "GIF cut short": saved(indexed(), "GIF")[:60],
    "GIF without a frame": saved(indexed(), "GIF")[:13] + b";",
    "AVIF cut short": saved(RGB, "AVIF")[:300],
    "WebP cut short": saved(RGB, "WEBP")[:100],
    "BMP cut short": bmp(upwards(INDEX.tobytes()), 8, PALETTE)[:-60],
    "BMP of a size below zero": damaged(
        bmp(upwards(INDEX.tobytes()), 8, PALETTE), struct.pack("<i", W), struct.pack("<i", -W)
    ),
    "TGA without its pixels": tga(b"", 24, 0),
    "PGM without its pixels": b"P5 24 16 255\n",
}


@pytest.mark.parametrize(("content", "expected", "tolerance"), CASES)
def test_a_careful_person_sees_the_original(content, expected, tolerance, tmp_path):
    # A name that says nothing, and one that lies: only the content decides.
    (tmp_path / "x").write_bytes(content)
    (tmp_path / "x.dcm").write_bytes(content)
    image = load_image(InsideAnother(content))
    assert (image.mode, image.info) == ("RGB", {})
    shown = np.asarray(image).astype(float)
    assert shown.shape == np.shape(expected)
    assert abs(shown - expected).max() <= tolerance
    for name in ("x", "x.dcm"):
        assert load_image(tmp_path / name).tobytes() == image.tobytes()


@pytest.mark.parametrize("name", NULL)
def test_the_list_of_what_stays_unread_is_fixed(name, tmp_path, capfd, recwarn):
    (tmp_path / "x.png").write_bytes(NULL[name])
    for source in (InsideAnother(NULL[name]), tmp_path / "x.png"):
        with pytest.raises(UnreadableImage) as caught:
            load_image(source)
        assert str(caught.value) == str(UnreadableImage())
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)
        assert missing_extra(source) is None
    assert not recwarn
    assert capfd.readouterr() == ("", "")


def test_there_are_many():
    assert len(CASES) >= 150
    assert len(NULL) >= 45


def test_every_picture_is_asymmetric():
    # Or the tests of orientation would prove nothing.
    for pixels in (RGB, GREY, BITS, INDEX):
        seen = [np.asarray(turn(pixels)) for turn in STORED.values()]
        equal = [a.shape == b.shape and bool((a == b).all()) for a in seen for b in seen]
        assert sum(equal) == len(STORED)


def test_an_image_that_the_caller_opened_stays_as_it_is():
    content = png(INDEX, 2, 0, chunk(b"tRNS", b"\0\3"))
    with Image.open(io.BytesIO(content)) as image:
        assert np.abs(np.asarray(load_image(image)) - KEYED).max() == 0
        assert image.info["transparency"] == 3
