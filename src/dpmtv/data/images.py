"""One safe way from an image file, or an open image, to upright RGB."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dpmtv.errors import DataError

if TYPE_CHECKING:
    from dpmtv.types import ImageSource

MAX_PIXELS = 100_000_000
"""Larger images are refused from their header, before anything is decoded."""

# Pillow's other formats are left out: some start programs or write temporary files (EPS, WMF).
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")

_ORIENTATION = 0x0112  # the EXIF tag
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
            f"{MAX_PIXELS // 1_000_000} megapixels, or is none of {', '.join(FORMATS)}. "
            "Replace it, or save it again as PNG or JPEG."
        )


def load_image(source: ImageSource) -> Image.Image:
    """Open an image as upright RGB, 8 bits a channel, free of metadata.

    Animations and documents give their first frame. The EXIF orientation is applied. Transparent
    parts become white. Colour profiles are not applied, as in every Hugging Face processor.

    Grey images of more than 8 bits are scaled by themselves: full white is the smallest of 255,
    4095 and 65535 (8, 12 or 16 bits) that no pixel exceeds, and for floating point also 1. With a
    negative pixel, or one above 65535, the range from smallest to largest becomes black to white.

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


def _attempt(source: ImageSource) -> Image.Image | None:
    try:
        # Pillow's warnings tell of the file's inside; what matters among them is checked here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(source, Image.Image):
                return _upright_rgb(source)
            if not isinstance(source, str | Path):
                with Image.open(io.BytesIO(source.read()), formats=FORMATS) as image:
                    return _upright_rgb(image)
            if not os.path.isfile(source):  # a pipe would wait for ever
                return None
            with open(source, "rb") as file, Image.open(file, formats=FORMATS) as image:
                return _upright_rgb(image)
    except Exception:  # decoders of damaged files raise nearly anything
        return None


def _upright_rgb(image: Image.Image) -> Image.Image | None:
    if image.width * image.height > MAX_PIXELS:
        return None
    image.load()
    orientation = _orientation(image)  # after load: TIFF turns by itself and drops the tag
    result = _rgb(image)
    if orientation in _UPRIGHT:
        result = result.transpose(_UPRIGHT[orientation])
    result.info.clear()  # or the next reader of the orientation would turn it again
    return result


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(_ORIENTATION)
    except Exception:  # damaged metadata beside good pixels: shown as stored, as browsers do
        return None


def _rgb(image: Image.Image) -> Image.Image:
    """A new RGB image; Pillow's own ``convert`` cuts deep greys off at 255 and refuses LAB."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _grey_from_deep(np.asarray(image, dtype=np.float64), image.mode == "F")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    if image.mode == "LAB":
        from PIL import ImageCms

        converted = ImageCms.profileToProfile(
            image,
            ImageCms.createProfile("LAB"),
            ImageCms.createProfile("sRGB"),
            outputMode="RGB",
            flags=ImageCms.Flags.NOOPTIMIZE,  # its shortcut table is off by up to 7 of 255
        )
        assert converted is not None  # it is only with inPlace
        return converted
    return image.convert("RGB")


def _grey_from_deep(values: np.ndarray, floating: bool) -> Image.Image:
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError
    if low >= 0 and high <= 65535:
        low = 0.0
        high = next(white for white in (1, 255, 4095, 65535)[not floating :] if high <= white)
    grey = np.rint((values - low) * (255 / ((high - low) or 1.0)))
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
