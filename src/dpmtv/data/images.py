"""One safe way from an image file, or an open image, to upright RGB (docs/images.md)."""

from __future__ import annotations

import io
import os
import re
import threading
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image, ImageCms

from dpmtv.data.dicom import HEAD, first_frame, is_dicom, silenced
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpmtv.types import ImageSource

MAX_PIXELS = 100_000_000
"""Larger images are refused from their header, before anything is decoded."""

MAX_SCANS = 100
"""JPEG files that come in more passes are refused: every pass goes over all pixels again."""

# Pillow's other formats are left out: some start programs (EPS) or need Windows (WMF), some hold
# documents or measurements (PSD, FITS), the rest nobody meets.
# TGA comes last, because it has no signature: whatever another format claims is not asked of it.
FORMATS = (
    *("AVIF", "BMP", "DDS", "GIF", "ICNS", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM"),
    *("QOI", "SGI", "TIFF", "WEBP", "TGA"),
)

_ERROR_STREAM = threading.Lock()
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # none of these lies inside a scan
_START_OF_SCAN, _END = 0xDA, 0xD9
_ORIENTATION, _PHOTOMETRIC = 0x0112, 262  # tags of EXIF and of TIFF
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImage(DataError):  # noqa: N818 - it names the image, not the failure
    """An image that cannot be used. The message is fixed: it says nothing about the image."""

    def __init__(self) -> None:
        super().__init__(
            "An image cannot be read: the file is missing, damaged or cut short, has more than "
            f"{MAX_PIXELS // 1_000_000} megapixels, is a DICOM file while the extra "
            f"'dpmtv[dicom]' is not installed, or is none of DICOM, {', '.join(FORMATS)}. "
            "Replace it, or save it again as PNG or JPEG."
        )


def load_image(source: ImageSource) -> Image.Image:
    """Open an image as upright RGB, 8 bits a channel, in sRGB, free of metadata.

    Animations and documents give their first frame. The EXIF orientation and an embedded colour
    profile are applied. Transparent parts become white. Greys of more than 8 bits are scaled by
    the rule of docs/images.md, each image by itself.

    Args:
        source: path of a file, an image inside another file, or an open image, which stays as it
            is.

    Raises:
        UnreadableImage: for every failure, with one message and without the cause, because what
            Pillow says may hold the file name.
    """
    image = _attempt(source)
    if image is None:
        raise UnreadableImage  # outside the except block, so that no __context__ is kept either
    return image


def missing_extra(source: ImageSource) -> str | None:
    """Name the extra of this package that an image needs and that is not installed, if any."""
    if isinstance(source, Image.Image) or find_spec("pydicom") is not None:
        return None
    try:
        with _open(source) as file:
            return "dicom" if is_dicom(file.read(HEAD)) else None
    except Exception:  # no file, or no bytes: no extra helps
        return None


@contextmanager
def _open(source: Path | str | Any) -> Iterator[BinaryIO]:
    if not isinstance(source, str | Path):
        yield io.BytesIO(source.read())
    elif os.path.isfile(source):  # a pipe would wait for ever
        with open(source, "rb") as file:
            yield file
    else:
        raise FileNotFoundError


def _attempt(source: ImageSource) -> Image.Image | None:
    try:
        # What Pillow warns of and logs tells of the file's inside; what matters is checked here.
        with warnings.catch_warnings(), silenced("PIL"):
            warnings.simplefilter("ignore")
            if isinstance(source, Image.Image):
                return _upright_rgb(source)
            with _open(source) as file:
                dicom = is_dicom(file.read(HEAD))
                file.seek(0)
                if dicom:
                    return _upright_rgb(first_frame(file, MAX_PIXELS))
                with Image.open(file, formats=FORMATS) as image:
                    if image.format in ("JPEG", "MPO"):
                        _require_few_scans(file)
                    return _upright_rgb(image)
    except Exception:  # decoders of damaged files raise nearly anything
        return None


def _upright_rgb(image: Image.Image) -> Image.Image:
    _require_size(image)
    raw = _raw_mode(image)  # before load, which forgets it
    with _silent_libtiff(image):
        image.load()
    _require_size(image)  # icons tell the size of what they hold only now
    orientation = _orientation(image)  # after load: TIFF turns by itself and drops the tag
    result = _rgb(image, raw)
    if orientation in _UPRIGHT:
        result = result.transpose(_UPRIGHT[orientation])
    result.info.clear()  # or the next reader of the orientation would turn it again
    return result


@contextmanager
def _silent_libtiff(image: Image.Image) -> Iterator[None]:
    """The library behind TIFF tells of damaged files on the error stream, past Python."""
    if image.format != "TIFF":
        yield
        return
    with _ERROR_STREAM, open(os.devnull, "wb") as nowhere:
        stream = os.dup(2)
        try:
            os.dup2(nowhere.fileno(), 2)
            yield
        finally:
            os.dup2(stream, 2)
            os.close(stream)


def _require_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise ValueError


def _require_few_scans(file: BinaryIO) -> None:
    """Walk over the markers of a JPEG: its metadata may hold anything, such as a second JPEG."""
    there = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(there)
    at, scans = 2, 0
    while found := _MARKER.search(content, at):
        at, kind = found.end(), content[found.end() - 1]
        if kind == _END:
            return
        scans += kind == _START_OF_SCAN
        if scans > MAX_SCANS:
            raise ValueError
        if kind >= 0xC0 and kind != 0xD8:  # only these tell their length
            at += max(int.from_bytes(content[at : at + 2], "big"), 2)


def _raw_mode(image: Image.Image) -> str:
    """How a PNG stores its pixels, such as ``L;4``; empty for all else."""
    tiles = getattr(image, "tile", None)
    if image.format != "PNG" or not tiles:
        return ""
    args = tiles[0][3]
    return args if isinstance(args, str) else args[0]


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(_ORIENTATION)
    except Exception:  # damaged metadata beside good pixels: shown as stored, as browsers do
        return None


def _rgb(image: Image.Image, raw: str) -> Image.Image:
    """A new RGB image; Pillow's own ``convert`` cuts deep greys off at 255 and refuses LAB."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _deep_grey(image)
    profile = image.info.get("icc_profile")
    if not image.has_transparency_data:
        return _srgb(image, profile)
    unused_alpha = image.format in ("BMP", "ICO", "TGA")
    image = _with_scaled_key(image, raw)
    if image.mode == "La":
        image = image.convert("LA")  # Pillow knows no other way out of it
    grey = image.mode == "LA"
    image = image if grey else image.convert("RGBA")
    alpha = image.getchannel("A")
    colours = _srgb(image.convert("L" if grey else "RGB"), profile)
    if unused_alpha and alpha.getextrema() == (0, 0):
        return colours  # as viewers do: such files often hold zeros there
    white = Image.new("RGB", image.size, "white")
    white.paste(colours, mask=alpha)
    return white


def _with_scaled_key(image: Image.Image, raw: str) -> Image.Image:
    """Pillow scales the pixels of a PNG to 8 bits, but not the colour that is transparent."""
    key = image.info.get("transparency")
    if raw in ("L;2", "L;4") and isinstance(key, int):
        image = image.copy()  # not the caller's own
        image.info["transparency"] = key * (85 if raw == "L;2" else 17)
    elif raw == "RGB;16B" and isinstance(key, tuple):
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in key)
    return image


def _srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Colours as the embedded profile means them; none, or one that does not fit, means sRGB."""
    if image.mode == "LAB":
        # The shortcut table of an optimized transform is off by up to 7 of 255 here.
        return _transform(image, ImageCms.createProfile("LAB"), ImageCms.Flags.NOOPTIMIZE)
    if image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")
    if profile:
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            return _transform(image, source, ImageCms.Flags.BLACKPOINTCOMPENSATION)
        except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
            pass  # damaged, or of another colour space than the pixels: browsers ignore it too
    return image.convert("RGB")


def _transform(image: Image.Image, source: Any, flags: ImageCms.Flags) -> Image.Image:
    converted = ImageCms.profileToProfile(
        image,
        source,
        ImageCms.createProfile("sRGB"),
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        outputMode="RGB",
        flags=flags,
    )
    assert converted is not None  # it is only with inPlace
    return converted


def _deep_grey(image: Image.Image) -> Image.Image:
    values = np.array(image, dtype=np.float64)  # a copy, changed in place: it may be large
    known = np.isfinite(values)
    low = float(values.min(where=known, initial=np.inf))
    high = float(values.max(where=known, initial=-np.inf))
    if low > high:
        raise ValueError  # not one number
    key = image.info.get("transparency")
    transparent = values == key if isinstance(key, int) else None
    black, white = _scale(low, high, image.mode == "F")
    values -= black
    values *= 255 / (white - black)
    if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:  # Pillow inverts up to 8 bits only
        np.subtract(255, values, out=values)
    np.nan_to_num(values, copy=False, nan=0, posinf=255, neginf=0)
    if transparent is not None:
        values[transparent] = 255
    grey = np.rint(values, out=values).clip(0, 255, out=values).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def _scale(low: float, high: float, floating: bool) -> tuple[float, float]:
    """Which values of a deep grey image are black and white; docs/images.md says why."""
    if low == high:  # nothing to see, but no division by zero
        low = min(low, 0.0)
    offset = 2**14 <= low < high < 3 * 2**14
    if low < 0 or high > 65535 or offset:
        return low, max(high, low + 1)
    if floating and 1 < high < 16:
        return 0.0, high
    whites = (1,) * floating + (255, 1023, 4095, 16383, 65535)
    return 0.0, float(next(white for white in whites if high <= white))
