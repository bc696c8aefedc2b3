"""DICOM files as hospitals write them, each beside what a viewer shows: PS3.3 by numpy."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import zlib

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom import uid
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from tests.data.odd_files import COLUMN, RGB, ROW, H, InsideAnother, W, saved

from dpmtv.data.images import UnreadableImage, load_image, missing_extra

CANARY = "canary-7f3a"
CT = 90 * COLUMN + 7 * ROW  # 12 bits
IMPLICIT, EXPLICIT = uid.ImplicitVRLittleEndian, uid.ExplicitVRLittleEndian

CASES: list = []
NULL: dict[str, bytes] = {}


def dicom(pixels, syntax=EXPLICIT, frames=None, preamble=True, drop=(), **tags) -> bytes:
    """A file of these pixels; ``frames`` are encoded ones instead, ``tags`` override."""
    pixels = np.asarray(pixels)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax
    meta.MediaStorageSOPClassUID = uid.SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    implicit, little = syntax == IMPLICIT, syntax != uid.ExplicitVRBigEndian
    dataset = FileDataset(CANARY, {}, bytes(128) if preamble else None, meta, implicit, little)
    dataset.SOPClassUID = uid.SecondaryCaptureImageStorage
    dataset.PatientName = CANARY
    dataset.PatientID = CANARY
    colour = pixels.ndim == 3 and pixels.shape[-1] == 3
    bits = 8 * pixels.itemsize
    values = {
        "Rows": pixels.shape[0],
        "Columns": pixels.shape[1],
        "SamplesPerPixel": 3 if colour else 1,
        "PhotometricInterpretation": "RGB" if colour else "MONOCHROME2",
        "BitsAllocated": bits,
        "BitsStored": bits,
        "HighBit": tags.get("BitsStored", bits) - 1,
        "PixelRepresentation": int(pixels.dtype.kind == "i"),
        **({"PlanarConfiguration": 0} if colour else {}),
        **tags,
    }
    for keyword, value in values.items():
        if keyword not in drop:
            setattr(dataset, keyword, value)
    if "PixelData" not in drop:
        raw = pixels.tobytes() if "PixelData" not in tags else tags["PixelData"]
        dataset.PixelData = encapsulate(frames) if frames else raw + bytes(len(raw) % 2)
        dataset["PixelData"].VR = "OB" if frames or bits == 8 else "OW"
    file = io.BytesIO()
    if preamble:
        dataset.save_as(file, enforce_file_format=True)
    else:
        del dataset.file_meta
        dataset.save_as(file, implicit_vr=implicit, little_endian=True)
    return file.getvalue()


def item(**tags) -> Dataset:
    dataset = Dataset()
    for keyword, value in tags.items():
        setattr(dataset, keyword, value)
    return dataset


def case(name: str, content: bytes, expected, tolerance: float = 1) -> None:
    expected = np.asarray(expected, dtype=float)
    if expected.ndim == 2:
        expected = np.repeat(expected[..., None], 3, axis=2)
    CASES.append(pytest.param(content, expected, tolerance, id=name))


def full(values) -> np.ndarray:
    """From smallest to largest."""
    values = np.asarray(values, dtype=float)
    return (values - values.min()) / np.ptp(values) * 255


def linear(values, centre: float, width: float) -> np.ndarray:
    """PS3.3 C.11.2.1.2.1, word by word."""
    share = ((values - (centre - 0.5)) / (width - 1) + 0.5) * 255
    share = np.where(values <= centre - 0.5 - (width - 1) / 2, 0, share)
    return np.where(values > centre - 0.5 + (width - 1) / 2, 255, share)


def ycbcr(rgb) -> np.ndarray:
    """ITU-R BT.601, full range."""
    matrix = [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
    return np.rint(rgb @ np.transpose(matrix) + [0, 128, 128]).clip(0, 255).astype(np.uint8)


STORED = CT.astype(np.uint16)
TWELVE = {"BitsStored": 12}
HU = CT - 1024
RESCALED = {"RescaleSlope": 2, "RescaleIntercept": -1024}
WINDOW = {"WindowCenter": 40, "WindowWidth": 400}
HALVES = {"WindowCenter": [900, 40], "WindowWidth": [1000, 400]}
PADDED = np.where(COLUMN < 5, -2000, HU).astype(np.int16)
SEEN_PADDED = np.where(COLUMN < 5, 0, (HU - HU[:, 5:].min()) / np.ptp(HU[:, 5:]) * 255)
JUNK = (STORED | 0xF000).astype(np.uint16)  # what overlays left in the unused bits

case("8-bit", dicom((CT // 10).astype(np.uint8)), full(CT // 10))
case("12-bit-without-window", dicom(STORED, **TWELVE), full(CT))
case("implicit", dicom(STORED, IMPLICIT, **TWELVE), full(CT))
case(
    "big-endian",
    dicom(STORED, uid.ExplicitVRBigEndian, PixelData=STORED.astype(">u2").tobytes()),
    full(CT),
)
case("signed", dicom(HU.astype(np.int16)), full(HU))
case(
    "signed-12-bit",
    dicom((HU & 0xFFF).astype(np.uint16), PixelRepresentation=1, **TWELVE),
    full(HU),
)
case("overlay-in-unused-bits", dicom(JUNK, **TWELVE), full(CT))
case("32-bit", dicom((CT * 1000).astype(np.uint32)), full(CT))
case("window", dicom(HU.astype(np.int16), **WINDOW), linear(HU, 40, 400))
case("rescaled-window", dicom(STORED, **RESCALED, **WINDOW), linear(2 * CT - 1024.0, 40, 400))
case("first-of-two-windows", dicom(STORED, **HALVES), linear(CT, 900, 1000))
case("window-of-width-1", dicom(STORED, WindowCenter=900, WindowWidth=1), (CT > 899.5) * 255)
case("window-of-width-0", dicom(STORED, WindowCenter=900, WindowWidth=0), full(CT))
case("window-left-empty", dicom(STORED, WindowCenter=None, WindowWidth=None), full(CT))
case(
    "window-exact",
    dicom(STORED, **HALVES, VOILUTFunction="LINEAR_EXACT"),
    ((CT - 900) / 1000 + 0.5).clip(0, 1) * 255,
)
case(
    "window-sigmoid",
    dicom(STORED, **HALVES, VOILUTFunction="SIGMOID"),
    255 / (1 + np.exp(-4 * (CT - 900) / 1000)),
)
case("monochrome1", dicom(STORED, PhotometricInterpretation="MONOCHROME1"), 255 - full(CT))
case(
    "monochrome1-window",
    dicom(STORED, PhotometricInterpretation="MONOCHROME1", **HALVES),
    255 - linear(CT, 900, 1000),
)
case("padding", dicom(PADDED, PixelPaddingValue=-2000), SEEN_PADDED)
case(
    "padding-as-unsigned",
    dicom(PADDED).replace(
        # PixelRepresentation 1, then the padding tag with the representation of the other sign
        b"\x28\0\x03\x01US\x02\0\x01\0",
        b"\x28\0\x03\x01US\x02\0\x01\0\x28\0\x20\x01US\x02\0\x30\xf8",
    ),
    SEEN_PADDED,
)
case(
    "padding-range-in-monochrome1",
    dicom(
        PADDED - (COLUMN < 3).astype(np.int16),
        PixelPaddingValue=-2001,
        PixelPaddingRangeLimit=-2000,
        PhotometricInterpretation="MONOCHROME1",
    ),
    np.where(COLUMN < 5, 0, 255 - SEEN_PADDED),
)
SQUARES = (np.arange(4096) ** 2 // 4096).astype(np.uint16)
LUT = {"LUTDescriptor": [4096, 0, 16], "LUTData": SQUARES.tobytes()}
case("voi-lut", dicom(STORED, VOILUTSequence=[item(**LUT)]), SQUARES[CT] / SQUARES.max() * 255)
EIGHT = (255 - np.arange(1000) // 4).astype(np.uint8)
case(
    "voi-lut-8-bit-from-500",
    dicom(STORED, VOILUTSequence=[item(LUTDescriptor=[1000, 500, 8], LUTData=EIGHT.tobytes())]),
    EIGHT[(CT - 500).clip(0, 999)] / EIGHT.max() * 255,
)
case(
    "modality-lut",
    dicom(STORED, ModalityLUTSequence=[item(**LUT, ModalityLUTType="US")]),
    full(SQUARES[CT]),
)
case("constant", dicom(np.full((H, W), 700, np.uint16)), np.zeros((H, W)))

STACK = np.stack([STORED, STORED * 0, STORED[::-1]])
FRAME = {"NumberOfFrames": 3, "Rows": H, "Columns": W}
case("multi-frame", dicom(STACK, **FRAME), full(CT))
GROUPS = {
    "SharedFunctionalGroupsSequence": [item(PixelValueTransformationSequence=[item(**RESCALED)])],
    "PerFrameFunctionalGroupsSequence": [
        item(FrameVOILUTSequence=[item(WindowCenter=c, WindowWidth=400)]) for c in (40, 50, 60)
    ],
}
case("enhanced-multi-frame", dicom(STACK, **FRAME, **GROUPS), linear(2 * CT - 1024.0, 40, 400))

case("rgb", dicom(RGB), RGB, 0)
case(
    "rgb-planar",
    dicom(RGB, PlanarConfiguration=1, PixelData=np.moveaxis(RGB, 2, 0).tobytes()),
    RGB,
    0,
)
case("rgb-16-bit", dicom(RGB.astype(np.uint16) * 257), RGB)
case("ybr-full", dicom(ycbcr(RGB), PhotometricInterpretation="YBR_FULL"), RGB, 3)
PAIRS = ycbcr(RGB[:, ::2].repeat(2, axis=1)).reshape(H, W // 2, 2, 3)
FOUR = np.stack([PAIRS[..., 0, 0], PAIRS[..., 1, 0], PAIRS[..., 0, 1], PAIRS[..., 0, 2]], -1)
case(
    "ybr-full-422",
    dicom(RGB, PhotometricInterpretation="YBR_FULL_422", PixelData=FOUR.tobytes()),
    RGB[:, ::2].repeat(2, axis=1),
    3,
)
INDEX = (COLUMN + ROW).astype(np.uint8)
COLOURS = np.arange(40)[:, None] * [5, 3, 6]
for bits, kind in ((16, "<u2"), (8, "u1")):
    scaled = (COLOURS * (257 if bits == 16 else 1)).astype(kind)
    palette = {"PhotometricInterpretation": "PALETTE COLOR"}
    for n, name in enumerate(("Red", "Green", "Blue")):
        palette[f"{name}PaletteColorLookupTableDescriptor"] = [40, 0, bits]
        palette[f"{name}PaletteColorLookupTableData"] = scaled[:, n].tobytes()
    case(f"palette-{bits}-bit", dicom(INDEX, **palette), COLOURS[INDEX])


def runs(pixels) -> bytes:
    return pydicom.pixels.encoders.RLELosslessEncoder.encode(
        pixels.tobytes(),
        rows=H,
        columns=W,
        samples_per_pixel=1 if pixels.ndim == 2 else 3,
        bits_allocated=8 * pixels.itemsize,
        bits_stored=8 * pixels.itemsize,
        pixel_representation=0,
        number_of_frames=1,
        photometric_interpretation="MONOCHROME2" if pixels.ndim == 2 else "RGB",
        planar_configuration=0,
    )


FINE = {"quality": 100, "subsampling": 0}
JPEG, J2K = uid.JPEGBaseline8Bit, uid.JPEG2000Lossless
GREY8 = (CT // 10).astype(np.uint8)
PLAIN = {"irreversible": False, "no_jp2": True}
OTHER = saved(RGB[::-1].copy(), "JPEG", **FINE)
case("rle", dicom(STORED, uid.RLELossless, [runs(STORED)]), full(CT))
case("rle-rgb", dicom(RGB, uid.RLELossless, [runs(RGB)]), RGB, 0)
case("jpeg-grey", dicom(GREY8, JPEG, [saved(GREY8, "JPEG", quality=100)]), full(GREY8), 4)
YBR = {"PhotometricInterpretation": "YBR_FULL_422"}
case("jpeg-ybr", dicom(RGB, JPEG, [saved(RGB, "JPEG", **FINE)], **YBR), RGB, 4)
case("jpeg-rgb", dicom(RGB, JPEG, [saved(RGB, "JPEG", keep_rgb=True, **FINE)]), RGB, 4)
case(
    "jpeg-three-frames",
    dicom(RGB, JPEG, [saved(RGB, "JPEG", **FINE), OTHER, OTHER], NumberOfFrames=3, **YBR),
    RGB,
    4,
)
case("jpeg2000", dicom(RGB, J2K, [saved(RGB, "JPEG2000", mct=0, **PLAIN)]), RGB, 0)
case("jpeg2000-16-bit", dicom(STORED, J2K, [saved(STORED, "JPEG2000", **PLAIN)]), full(CT))
RCT = {"PhotometricInterpretation": "YBR_RCT"}
case("jpeg2000-rct", dicom(RGB, J2K, [saved(RGB, "JPEG2000", mct=1, **PLAIN)], **RCT), RGB, 0)

OLD = {"preamble": False}
case("no-preamble-implicit", dicom(STORED, IMPLICIT, **OLD, **TWELVE), full(CT))
case("no-preamble-explicit", dicom(STORED, EXPLICIT, **OLD, **TWELVE), full(CT))
case("trailing-padding", dicom(STORED) + b"\xfc\xff\xfc\xffOB\0\0\x10\0\0\0" + bytes(16), full(CT))


def deflated() -> bytes:
    content = dicom(STORED)
    start = 128 + 4 + 12 + int.from_bytes(content[140:144], "little")
    squeezed = zlib.compressobj(wbits=-15)
    body = squeezed.compress(content[start:]) + squeezed.flush()
    head = content[:start].replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99")
    return head.replace(b"\x02\0\x10\0UI\x14\0", b"\x02\0\x10\0UI\x16\0") + body


BIG = saved(np.zeros((500, 500), np.uint8), "JPEG2000", **PLAIN)
NULL = {
    "no pixels": dicom(STORED, drop=["PixelData"]),
    "no rows": dicom(STORED, drop=["Rows"]),
    "no photometric interpretation": dicom(STORED, drop=["PhotometricInterpretation"]),
    "rows of zero": dicom(STORED, Rows=0),
    "too large": dicom(STORED, Rows=65_535, Columns=65_535),
    "cut short": dicom(STORED)[:-100],
    "cut short in its head": dicom(STORED)[:200],
    "preamble only": bytes(128) + b"DICM",
    "deflated": deflated(),
    "JPEG cut short": dicom(RGB, JPEG, [saved(RGB, "JPEG", **FINE)[:300]], **YBR),
    "a JPEG 2000 larger than it says": dicom(GREY8, J2K, [BIG]),
    "no JPEG 2000": dicom(GREY8, J2K, [CANARY.encode() * 10]),
    "JPEG-LS": dicom(GREY8, uid.JPEGLSLossless, [b"\xff\xd8\xff\xf7\0\x0b\x08" + bytes(50)]),
    "a film": dicom(GREY8, uid.MPEG2MPML, [bytes(90)]),
    "unknown transfer syntax": dicom(STORED).replace(
        b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.9.9.9\0"
    ),
}


@pytest.mark.parametrize(("content", "expected", "tolerance"), CASES)
def test_a_viewer_shows_the_same(content, expected, tolerance, tmp_path, capfd, recwarn):
    (tmp_path / "x.png").write_bytes(content)
    image = load_image(InsideAnother(content))
    assert (image.mode, image.info) == ("RGB", {})
    shown = np.asarray(image).astype(float)
    assert shown.shape == expected.shape
    assert abs(shown - expected).max() <= tolerance
    assert load_image(tmp_path / "x.png").tobytes() == image.tobytes()
    assert not recwarn
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", NULL)
def test_the_list_of_what_stays_unread_is_fixed(name, capfd, recwarn, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UnreadableImage) as caught:
        load_image(InsideAnother(NULL[name]))
    assert str(caught.value) == str(UnreadableImage())
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert not recwarn
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_there_are_many():
    assert len(CASES) >= 40
    assert len(NULL) >= 12


@pytest.mark.parametrize("name", ["PIL", "pydicom"])
def test_others_may_log_again_afterwards(name):
    before = logging.getLogger(name).level
    load_image(InsideAnother(dicom(STORED)))
    assert logging.getLogger(name).level == before


def test_the_first_file_is_as_silent_as_all(tmp_path):
    # In a new process, because pydicom makes its logger speak when it is imported.
    (tmp_path / "x").write_bytes(NULL["cut short"])
    code = (
        "import contextlib, logging; logging.basicConfig(level=logging.INFO)\n"
        "from dpmtv.data.images import UnreadableImage, load_image\n"
        f"with contextlib.suppress(UnreadableImage): load_image({str(tmp_path / 'x')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_nothing_about_patients_is_read(monkeypatch):
    from pydicom import filereader

    asked = []
    real = filereader.read_partial

    def watched(*args, **options):
        asked.extend(options["specific_tags"])
        return real(*args, **options)

    monkeypatch.setattr(filereader, "read_partial", watched)
    load_image(InsideAnother(dicom(STORED)))
    assert asked
    assert {tag >> 16 for tag in asked} <= {0x0008, 0x0028, 0x5200}
    assert {tag for tag in asked if tag >> 16 == 8} <= {0x00080005}  # the character set


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr("pydicom.pixels.utils.pixel_array", None)
    for name in ("too large", "deflated", "a JPEG 2000 larger than it says"):
        with pytest.raises(UnreadableImage):
            load_image(InsideAnother(NULL[name]))


def test_without_the_extra_the_operator_can_be_told(monkeypatch, tmp_path):
    (tmp_path / "x").write_bytes(dicom(STORED))
    (tmp_path / "y").write_bytes(saved(RGB, "PNG"))
    assert missing_extra(tmp_path / "x") is None
    monkeypatch.setattr("dpmtv.data.images.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UnreadableImage):
        load_image(tmp_path / "x")
    assert missing_extra(tmp_path / "x") == "dicom"
    assert missing_extra(InsideAnother(dicom(STORED))) == "dicom"
    for other in (tmp_path / "y", tmp_path / "none", Image.new("RGB", (1, 1))):
        assert missing_extra(other) is None


def test_pydicom_is_imported_only_for_a_dicom_file():
    code = "import sys, dpmtv.data.images; assert 'pydicom' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
