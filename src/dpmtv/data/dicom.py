"""The first frame of a DICOM file as a hospital's viewer shows it (extra ``dicom``)."""

from __future__ import annotations

import io
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = 132
"""So many bytes tell whether a file is DICOM."""

# The only tags that are read: pixels and how to show them, nothing about patients.
_TAGS = [
    *("SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames"),
    *("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("PixelPaddingValue", "PixelPaddingRangeLimit", "ICCProfile"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "VOILUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction"),
    *(f"{c}PaletteColorLookupTableDescriptor" for c in ("Red", "Green", "Blue")),
    *(f"{c}PaletteColorLookupTableData" for c in ("Red", "Green", "Blue")),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
]


@contextmanager
def silenced(*names: str) -> Iterator[None]:
    """No word from these loggers: what they say may quote the file."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def is_dicom(head: bytes) -> bool:
    """Tell by the first `HEAD` bytes, so that a name never decides.

    Old files have no preamble; they begin with a tag of group 0002 or the first ones of 0008.
    """
    if head[128:132] == b"DICM" or head[:4] == b"\2\0\0\0":
        return True
    return head[:2] == b"\x08\0" and head[2:4] in {bytes([n, 0]) for n in (0, 1, 5, 8, 0x16, 0x18)}


def first_frame(file: BinaryIO, max_pixels: int) -> Image.Image:
    """Decode the first frame.

    Args:
        file: the DICOM file, at its beginning.
        max_pixels: a larger frame is refused before it is decoded.

    Raises:
        Exception: of nearly any kind, when there is no such picture.
    """
    from pydicom import dcmread
    from pydicom.filereader import _read_file_meta_info, read_preamble
    from pydicom.pixels.utils import pixel_array
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    # Only now, because pydicom sets its own level when it is imported.
    with silenced("pydicom", "pylibjpeg", "openjpeg"):
        read_preamble(file, force=True)
        syntax = _read_file_meta_info(file).get("TransferSyntaxUID")
        if syntax == DeflatedExplicitVRLittleEndian:
            raise ValueError  # it would be inflated as a whole, whatever its size
        file.seek(0)
        dataset: Any = dcmread(file, force=True, stop_before_pixels=True, specific_tags=_TAGS)
        if dataset.Rows * dataset.Columns > max_pixels:
            raise ValueError
        syntax = syntax or _guessed(dataset)
        if syntax.is_compressed:
            _require_honest_frame(file, dataset)
        file.seek(0)
        pixels = pixel_array(file, index=0, transfer_syntax_uid=syntax)
        if dataset.PhotometricInterpretation == "PALETTE COLOR":
            pixels = _coloured(pixels, dataset)
            bits = 16 if pixels.max() > 255 else 8  # some declare 16 and write 8
        elif pixels.ndim == 3:
            bits = dataset.BitsStored
        else:
            return Image.fromarray(_grey(pixels, dataset))
        colours = pixels if bits == 8 else np.rint(pixels * (255 / (2**bits - 1)))
        image = Image.fromarray(colours.astype(np.uint8))
        image.info["icc_profile"] = dataset.get("ICCProfile")
        return image


def _guessed(dataset: Any) -> Any:
    """The transfer syntax of a file without meta information: never a compressed one."""
    from pydicom import uid

    implicit, little = dataset.original_encoding
    if implicit:
        return uid.ImplicitVRLittleEndian
    return uid.ExplicitVRLittleEndian if little else uid.ExplicitVRBigEndian


def _require_honest_frame(file: BinaryIO, dataset: Any) -> None:
    """Decoders go by the size that the JPEG states, so it must be the one that was checked."""
    from pydicom.encaps import get_frame
    from pydicom.uid import RLELossless

    if dataset.file_meta.TransferSyntaxUID == RLELossless:
        return  # no size of its own
    file.seek(12, io.SEEK_CUR)  # tag, representation and length of the pixel data
    frame = get_frame(file, 0, number_of_frames=int(dataset.get("NumberOfFrames") or 1))
    with Image.open(io.BytesIO(frame), formats=("JPEG", "JPEG2000")) as image:
        # No transfer syntax that is read is progressive, and thousands of scans take hours.
        if image.size != (dataset.Columns, dataset.Rows) or image.info.get("progressive"):
            raise ValueError


def _grey(stored: np.ndarray, dataset: Any) -> np.ndarray:
    """Stored values through rescaling and window, 0 to 255. Padding is black, as background."""
    padding = _padding(stored, dataset)
    values = stored.astype(np.float64)
    rescale = _group(dataset, "PixelValueTransformationSequence", "RescaleSlope")
    if dataset.get("ModalityLUTSequence"):
        values = _looked_up(values, dataset.ModalityLUTSequence[0], dataset)
    elif rescale is not None:
        values = values * float(rescale.RescaleSlope) + float(rescale.get("RescaleIntercept") or 0)
    window = _group(dataset, "FrameVOILUTSequence", "WindowWidth")
    if dataset.get("VOILUTSequence"):
        item = dataset.VOILUTSequence[0]
        share = _looked_up(values, item, dataset) / max(1, _table(item, dataset).max())
    elif window is not None and _first(window.WindowWidth) > 0:
        share = _windowed(values, window)
    else:
        seen = values[~padding]
        low, high = (seen.min(), seen.max()) if seen.size else (0.0, 0.0)
        share = (values - low) / ((high - low) or 1.0)
    share = share.clip(0, 1)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        share = 1 - share
    share[padding] = 0
    grey: np.ndarray = np.rint(share * 255).astype(np.uint8)
    return grey


def _padding(stored: np.ndarray, dataset: Any) -> Any:
    """Where the frame holds no picture: beside a round field of view, or no number."""
    first = dataset.get("PixelPaddingValue")
    if stored.dtype.kind == "f" or first is None:
        return ~np.isfinite(stored)
    last = dataset.get("PixelPaddingRangeLimit")
    # Wrapped as pixels are, because scanners write -2000 as 63536 and mean the same.
    ends = np.array([first, first if last is None else last]).astype(stored.dtype)
    return (stored >= ends.min()) & (stored <= ends.max())


def _group(dataset: Any, sequence: str, keyword: str) -> Any | None:
    """Where ``keyword`` stands: in the first frame's group, the one for all frames, or outside."""
    for groups in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        for group in (dataset.get(groups) or [])[:1]:
            for item in (group.get(sequence) or [])[:1]:
                if keyword in item:
                    return item
    return None if dataset.get(keyword) in (None, "") else dataset


def _first(value: Any) -> float:
    return float(value if isinstance(value, int | float | str) else value[0])


def _windowed(values: np.ndarray, window: Any) -> Any:
    """DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3: black below 0, white above 1."""
    centre, width = _first(window.WindowCenter), _first(window.WindowWidth)
    function = window.get("VOILUTFunction") or "LINEAR"
    if function == "SIGMOID":
        return 1 / (1 + np.exp((-4 * (values - centre) / width).clip(-700, 700)))
    if function == "LINEAR":  # a window of width 1 is a threshold
        return (values - (centre - 0.5)) / max(width - 1, 1e-9) + 0.5
    return (values - centre) / width + 0.5


def _table(item: Any, dataset: Any, colour: str = "") -> np.ndarray:
    """The entries of a look-up table: of one colour of a palette, or of a grey."""
    palette = f"{colour}PaletteColorLookupTable" if colour else "LUT"
    data = item[f"{palette}Data"].value
    if not isinstance(data, bytes):
        return np.atleast_1d(np.array(data))
    entries = item[f"{palette}Descriptor"].value[0] or 2**16
    if len(data) < 2 * entries:
        return np.frombuffer(data, np.uint8)
    return np.frombuffer(data, "<u2" if dataset.original_encoding[1] else ">u2")


def _looked_up(values: np.ndarray, item: Any, dataset: Any, colour: str = "") -> Any:
    palette = f"{colour}PaletteColorLookupTable" if colour else "LUT"
    entries, first, _ = item[f"{palette}Descriptor"].value
    table = _table(item, dataset, colour)[: entries or 2**16]
    index = (np.rint(values) - first).clip(0, len(table) - 1)
    return table[index.astype(np.intp)]


def _coloured(stored: np.ndarray, dataset: Any) -> np.ndarray:
    values = stored.astype(np.float64)
    bands = [_looked_up(values, dataset, dataset, c) for c in ("Red", "Green", "Blue")]
    return np.stack(bands, axis=-1)
