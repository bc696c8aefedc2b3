"""Malformed and odd files, in one table: a right result or one clear message, and no content."""

from __future__ import annotations

import base64
import codecs
import json
import os
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from dpmtv.data.demonstrations import BadRow, read_demonstrations
from dpmtv.errors import UserError
from dpmtv.types import Demonstration

CANARY = "canary-9c1e"
X, Q, A = f"{CANARY}.png", f"What {CANARY}?", f"This {CANARY}."
GOOD = {"image": X, "question": Q, "answer": A}
PNG = base64.b64encode(b"\x89PNG, never decoded here").decode()
OK = (Q, A)  # what stands for a good entry below; other pairs are question and answer


def rec(**changes) -> dict:
    return {name: value for name, value in {**GOOD, **changes}.items() if value != "-"}


def js(value: object) -> bytes:
    return json.dumps(value).encode()


def lines(*rows: object) -> bytes:
    return b"\n".join(row if isinstance(row, bytes) else js(row) for row in rows)


def talk(*turns: object, **changes: object) -> dict:
    roles = ("user", "assistant")
    said = [
        t if isinstance(t, dict) else {"role": roles[n % 2], "content": t}
        for n, t in enumerate(turns)
    ]
    return {"image": X, "messages": said, **changes}


class Case(NamedTuple):
    what: str
    files: dict[str, object]  # name → bytes, an object for JSON, or what makes it
    expected: object  # entries in order (a pair, or a reason), or the message
    options: dict[str, object] = {}  # noqa: RUF012
    read: tuple[str, ...] = ()  # what to read, where it is not the first file


def one(what: str, row: object, expected: object, **options: object) -> Case:
    """One odd record in JSONL, between two good ones that stay good."""
    return Case(what, {"data.jsonl": lines(GOOD, row, GOOD)}, [OK, expected, OK], options)


def table(what: str, row: str, expected: object, head: str = "image,question,answer") -> Case:
    good = f"{X},{Q},{A}"
    text = "\n".join([head, good, row, good]) + "\n"
    return Case(what, {"data.csv": text.encode()}, [OK, expected, OK])


def doc(what: str, content: bytes, expected: object, **options: object) -> Case:
    return Case(what, {"data.json": content}, expected, options)


def vqa(what: str, expected: object, *, asked: object = (), answered: object = ()) -> Case:
    """Question 1 is good; ``asked`` and ``answered`` are added."""
    files = {
        "q.json": {"questions": [question(1), *asked]},
        "a.json": {"annotations": [annotation(1), *answered]},
        "000007.png": png,
    }
    return Case(what, files, expected, {}, ("q.json", "a.json"))


def question(number: object, **changes: object) -> dict:
    return {"question_id": number, "image_id": 7, "question": Q, **changes}


def annotation(number: object, answer: object = A) -> dict:
    return {"question_id": number, "multiple_choice_answer": answer}


def png(path: Path) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new("RGB", (1, 1)).save(path)


def link(target: str):
    return lambda path: path.symlink_to(path.parent / target)


def parquet(rows: list[dict], schema=None):
    def make(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows, schema and schema(pa)), path)

    return make


def parquet_not_utf8(path: Path) -> None:
    """Arrow itself makes no such text of Python's, but other writers do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    questions = pa.array([Q.encode(), b"\xff", Q.encode()]).view(pa.string())
    pq.write_table(pa.table({"image": [X] * 3, "question": questions, "answer": [A] * 3}), path)


HEADLESS = "has no column image, question, answer. If columns have other names, say which"
NAMES = "Name the format, one of: jsonl, json, vqa, csv, parquet, metadata, classes, datasets; see"

CASES = [
    # --- one row of JSONL: blank and broken lines
    one("empty line", b"", "empty line"),
    one("spaces", b"   ", "empty line"),
    one("a carriage return", b"\r", "empty line"),
    one("Latin-1", js(GOOD).replace(b"What", b"Gr\xfc\xdfe"), "not UTF-8"),
    one("UTF-16 in the middle", b"\xff\xfe{\0}\0", "not UTF-8"),
    one("a null character", b"\0" + js(GOOD), "not JSON"),
    one("cut short", js(GOOD)[:-1], "not JSON"),
    one("two objects", js(GOOD) + js(GOOD), "not JSON"),
    one("a comma behind", js(GOOD) + b",", "not JSON"),
    one("single quotes", str(GOOD).encode(), "not JSON"),
    one("a CSV line", f"{X},{Q},{A}".encode(), "not JSON"),
    one("a mark inside the file", codecs.BOM_UTF8 + js(GOOD), "not JSON"),
    one("nested beyond measure", b"[" * 99_999, "not JSON"),
    one("a number of 5000 digits", b'{"answer": ' + b"1" * 5000 + b"}", "not JSON"),
    one("a list", [GOOD], "not an object"),
    one("a text", CANARY, "not an object"),
    one("null", None, "not an object"),
    one("carriage return at the end", js(GOOD) + b"\r", OK),
    one("a key twice: the last counts", js(GOOD)[:-1] + b', "answer": "B"}', (Q, "B")),
    # --- one row of JSONL: fields
    one("no fields", {}, "no image"),
    one("image missing", rec(image="-"), "no image"),
    one("image null", rec(image=None), "no image"),
    one("image blank", rec(image=" "), "no image"),
    one("image is a number", rec(image=3), "image is not text"),
    one("image is half a character", rec(image="\ud800"), "image is not text"),
    one("images empty", rec(image="-", images=[]), "no image"),
    one("images with a hole", rec(image="-", images=[X, None]), "no image"),
    one("images with a number", rec(image="-", images=[X, 3]), "image is not text"),
    one("images nested", rec(image="-", images=[[X]]), "image is not text"),
    one("images nested beyond measure", b'{"images": ' + b"[" * 900 + b"]" * 900 + b"}",
         "image is not text"),
    one("images is one path", rec(image="-", images=X), OK),
    one("image struct without anything", rec(image={}), "no image"),
    one("image struct with a path", rec(image={"bytes": None, "path": X}), OK),
    one("image struct nested", rec(image={"path": {"path": X}}), "image is not text"),
    one("question missing", rec(question="-"), "no question"),
    one("question blank", rec(question="\u2003\n"), "no question"),
    one("question is a list", rec(question=[CANARY]), "question is not text"),
    one("question is half a character", rec(question="\udfff"), "question is not text"),
    one("question of 65,537 characters", rec(question="q" * (2**16 + 1)),
         "question is too long"),
    one("answer missing", rec(answer="-"), "no answer"),
    one("answer of zero width", rec(answer="\u200b\ufeff\u2060 \u00ad"), "no answer"),
    one("answers of zero width", rec(answer="-", answers=["\u200b", "a"]), (Q, "a")),
    one("question of zero width", rec(question="\u3164\ufe0f"), "no question"),
    one("decomposed letters", rec(question="Gro\u0308\u00dfe?", answer="gru\u0308n"),
        ("Gr\u00f6\u00dfe?", "gr\u00fcn")),
    one("answer is an object", rec(answer={"answer": CANARY}), "answer is not text"),
    one("answer is not a number", js(rec(answer=float("nan"))), "answer is not text"),
    one("answer is a number", rec(answer=12), (Q, "12")),
    one("answer is a whole float", rec(answer=4.0), (Q, "4")),
    one("answer is true", rec(answer=True), (Q, "true")),
    one("answer in lines", rec(answer="a\r\nb"), (Q, "a\nb")),
    one("answers is a text", rec(answer="-", answers=CANARY), "answers is not a list"),
    one("answers empty", rec(answer="-", answers=[]), "no answer"),
    one("answers blank", rec(answer="-", answers=["", None, {}]), "no answer"),
    one("answers nested", rec(answer="-", answers=["a", ["b"]]), "answer is not text"),
    one("answers, the majority", rec(answer="-", answers=["b", "a", "A "]), (Q, "a")),
    one("options is a text", rec(options=CANARY), "options is not a list"),
    one("options with an object", rec(options=["a", {}]), "options is not text"),
    one("options empty", rec(options=[]), OK),
    one("task is a list", rec(task=[]), "task is not text"),
    Case("unit missing", {"data.jsonl": lines(GOOD, rec(who="u"))}, ["no unit", OK],
         {"unit": "who"}),
    Case("unit is no name", {"data.jsonl": lines(rec(who=[1]), rec(who=1.5), rec(who="\u200b"))},
         ["unit is not text", OK, "no unit"], {"unit": "who"}),
    Case("one id three times", {"data.jsonl": lines(*[rec(id=CANARY)] * 3)}, [OK] * 3),
    # --- one row of JSONL: where the image is
    one("image file missing", rec(image=f"no-{X}"), "image file missing"),
    one("image is the folder", rec(image="."), "image file missing"),
    one("image path with a null character", rec(image=f"{X}\0"), "image file missing"),
    one("image path of 5000 characters", rec(image="n" * 5000), "image file missing"),
    one("image path of ten million characters", rec(image="/" * 10**7), "image file missing"),
    one("image on the web", rec(image=f"https://example.org/{X}"), "image is a web address"),
    one("image in a bucket", rec(image=f"s3://bucket/{X}"), "image is a web address"),
    one("file URI of another machine", rec(image=f"file://host/{X}"), "image is a web address"),
    one("file URI, percent signs", rec(image="file:{folder}/" + X.replace("-", "%2D")), OK),
    one("file URI of this machine", rec(image="FILE://localhost{folder}/" + X), OK),
    one("absolute path", rec(image="{folder}/" + X), OK),
    one("Windows path", rec(image=".\\" + X), OK),
    one("a way out of the folder and back", rec(image="sub/../../{name}/" + X),
         "image file missing"),
    one("out of the folder, to nothing", rec(image=f"../../{X}"), "image file missing"),
    one("a device", rec(image="/dev/zero"), "image file missing"),
    one("data URI", rec(image=f"data:image/png;base64,{PNG}"), OK),
    one("data URI without base64", rec(image=f"data:image/png,{CANARY}"),
         "image data is not base64"),
    one("data URI cut short", rec(image="data:"), "image data is not base64"),
    Case("image is a pipe", {"data.jsonl": lines(rec(image="pipe")), "pipe": os.mkfifo},
         ["image file missing"]),
    Case("image is a link", {"data.jsonl": lines(rec(image="l.png")), "l.png": link(X)}, [OK]),
    Case("image is a link to nothing", {"data.jsonl": lines(rec(image="l")), "l": link("no")},
         ["image file missing"]),
    Case("image is a link to itself", {"data.jsonl": lines(rec(image="l")), "l": link("l")},
         ["image file missing"]),
    # --- conversations
    one("a talk", talk(Q, A), OK),
    one("a talk in LLaVA's words", {"image": X, "conversations": [
        {"from": "human", "value": f"<image>\n{Q}"}, {"from": "gpt", "value": A}]}, OK),
    one("a talk that is a text", talk(messages=CANARY), "conversation is not a list"),
    one("a talk of texts", talk(messages=[CANARY]), "conversation is not a list"),
    one("an empty talk", talk(), "no question"),
    one("a talk of the system alone", talk({"role": "system", "content": CANARY}), "no question"),
    one("a talk the assistant begins", talk({"role": "assistant", "content": "Hi"}, A,
        {"role": "user", "content": Q}, A), (Q, A)),
    one("a question without answer", talk(Q), "no answer"),
    one("an answer that is empty", talk(Q, ""), "no answer"),
    one("an answer that is a number", talk(Q, 3), (Q, "3")),
    one("a role that is a list", talk({"role": [], "content": CANARY}), "no question"),
    one("a talk without image", talk(Q, A, image="-", images=None) | {"image": None}, "no image"),
    one("more images than marks: the first turn has them",
        {"images": [X, f"no-{X}"], "messages": talk(f"<image>{Q}", A)["messages"]},
        "image file missing"),
    one("blanks after a mark", talk("<image>x" + " " * 59_999 + "y", A),
        ("x" + " " * 59_999 + "y", A)),
    one("a part without text", talk([{"type": "text"}], A), "no question"),
    one("a part of unknown kind", talk([{"type": "audio", "audio": CANARY}, Q], A), OK),
    one("image_url without url", talk([{"type": "image_url", "image_url": {}}, Q], A), OK),
    one("image_url is a number", talk([{"type": "image_url", "image_url": 3}, Q], A),
         "image is not text"),
    one("image_url on the web", talk([{"type": "image_url", "image_url": {"url": "http://a/b"}},
         Q], A),
        "image is a web address"),
    # --- the whole JSONL file
    Case("empty file", {"data.jsonl": b""}, "{path} is empty. Write records into it."),
    Case("white space alone", {"data.jsonl": b" \r\n\n"}, ["empty line"] * 2),
    Case("a gzip file", {"data.jsonl.gz": b"\x1f\x8b\x08"}, "{path} is a gzip file: unpack it."),
    Case("a zip file by the name of JSONL: no record decides", {"data.jsonl": b"PK\3\4\n"
         + js(GOOD)}, ["not JSON", OK]),
    *(Case(f"an Excel file by the name {name}", {name: b"PK\3\4" + b"\n" * 99},
           "{path} is a zip (or Excel) file: unpack it, or export the sheet as CSV.")
      for name in ("data.xlsx", "data.csv", "data.json", "data.parquet", "data")),
    *(Case(f"{name}, in which records are not apart", {"data.jsonl": lines(GOOD)},
           f"encoding {name!r} is not read: in it one record could", {"encoding": name})
      for name in ("utf-7", "iso2022_jp", "hz", "unicode_escape")),
    Case("a mark alone", {"data.jsonl": codecs.BOM_UTF8},
         "{path} is empty. Write records into it."),
    Case("blank lines at the end", {"data.jsonl": lines(GOOD, b"", b"")}, [OK, "empty line"]),
    Case("Windows line ends", {"data.jsonl": js(GOOD) + b"\r\n" + js(GOOD) + b"\r\n"}, [OK, OK]),
    Case("old Mac line ends", {"data.jsonl": js(GOOD) + b"\r" + js(GOOD)}, ["not JSON"]),
    Case("UTF-8 with mark", {"data.jsonl": codecs.BOM_UTF8 + js(GOOD)}, [OK]),
    Case("UTF-16 with mark", {"data.jsonl": lines(GOOD, GOOD).decode().encode("utf-16")}, [OK, OK]),
    Case("UTF-16 cut short", {"data.jsonl": lines(GOOD, GOOD).decode().encode("utf-16")[:-1]},
         [OK, "not in its encoding"]),
    Case("UTF-16 without mark", {"data.jsonl": js(GOOD).decode().encode("utf-16-le")},
         ["not JSON"]),
    Case("UTF-16 as told", {"data.jsonl": lines(GOOD, GOOD).decode().encode("utf-16-be")}, [OK, OK],
         {"encoding": "UTF-16BE"}),
    Case("Windows-1252 as told", {"data.jsonl": lines(GOOD, js(rec(answer="u")).replace(b'"u"',
         b'"\xfc"'))},
         [OK, (Q, "ü")], {"encoding": "cp1252"}),
    Case("a byte Windows-1252 lacks", {"data.jsonl": lines(GOOD, js(GOOD).replace(b"This",
         b"\x81"))},
         [OK, "not in its encoding"], {"encoding": "cp1252"}),
    Case("a JSON list by that name", {"data.jsonl": b"[\n" + js(GOOD) + b"\n]"},
         ["not JSON", OK, "not JSON"]),
    Case("the file is a link", {"real.jsonl": lines(GOOD), "data.jsonl": link("real.jsonl")}, [OK],
         {},
         ("data.jsonl",)),
    Case("the file is a pipe", {"data.jsonl": os.mkfifo},
         "{path} is not an ordinary file. Name a file of records."),
    Case("the file is not there", {}, "{path} does not exist. Check the path.", {}, ("no.jsonl",)),
    Case("a link to nothing", {"data.jsonl": link("no")}, "{path} does not exist. Check the path."),
    Case("a file inside a file", {"a": b"x"}, "{path} does not exist. Check the path.", {},
         ("a/b.jsonl",)),
    Case("a name too long", {}, "{path} cannot be read. Check the path and its permissions.", {},
         ("n" * 5000 + ".jsonl",)),
    Case("an unknown ending", {"data.xml": lines(GOOD)},
         "{path} has no format that its name tells. " + NAMES),
    Case("an unknown ending, told", {"data.txt": lines(GOOD)}, [OK], {"format": "jsonl"}),
    # --- JSON documents
    doc("a list", js([GOOD, rec(image=3), 5, None]), [OK, "image is not text",
         *["not an object"] * 2]),
    doc("an empty list", b" [ ] ", "{path} holds no records."),
    doc("a list with a mark", codecs.BOM_UTF8 + js([GOOD]), [OK]),
    doc("a list in UTF-16", js([GOOD]).decode().encode("utf-16"), [OK]),
    doc("Latin-1 in one record", js([GOOD, "-"]).replace(b'"-"', b'{"answer": "\xfc"}'), [OK,
         "not UTF-8"]),
    doc("Latin-1 between records", b"[\xfc]", "{path} is not one JSON document: line 1"),
    doc("cut short", js([GOOD])[:-1], "{path} is not one JSON document: line 1 cannot be read."),
    doc("a comma too many", b"[\n" + js(GOOD) + b",\n]", "{path} is not one JSON document: line 3"),
    doc("no comma", b"[" + js(GOOD) * 2 + b"]", "{path} is not one JSON document: line 1"),
    doc("something behind", js([GOOD]) + b"\n\n x", "{path} is not one JSON document: line 3"),
    doc("JSON Lines by that name", lines(GOOD, GOOD), "{path} is not one JSON document: line 2"),
    doc("JSON Lines, told", lines(GOOD, GOOD), [OK, OK], format="jsonl"),
    doc("nested beyond measure", b"[" * 99_999, "{path} is not one JSON document: line 1 cannot"),
    doc("one record nested beyond measure", b"[%s,\n{\"]\\\"\":%s%s},\n%s]"
        % (js(GOOD), b"[" * 5000, b"]" * 5000, js(GOOD)), [OK, "not JSON", OK]),
    doc("UTF-32", js([GOOD]).decode().encode("utf-32"), "{path} is UTF-32, which is not read."),
    doc("UTF-32, told", js([GOOD]), "encoding 'utf-32-le' is not read", encoding="utf-32-le"),
    doc("UTF-16, half a character", (js([GOOD, rec(answer="#"), GOOD]).decode()
        .encode("utf-16-le").replace(b"#\0", b"\0\xd8")), [OK, "not in its encoding", OK],
        encoding="utf-16-le"),
    doc("blank lines alone", b"\n \n", "{path} is not one JSON document: line 3"),
    doc("a number of 5000 digits", b'[{"answer": ' + b"1" * 5000 + b"}]", ["no image"]),
    doc("one object", js(GOOD), "{path} is one JSON object that lists neither questions"),
    doc("one object, told", js({"a": [1]}), "{path} holds one object, not a list of records",
         format="json"),
    doc("an object with a number for a key", b"{3: 4}", "{path} is not one JSON document: line 1"),
    doc("an empty object", b"{}", "{path} is one JSON object that lists neither"),
    # --- VQA-v2
    vqa("a pair", [OK]),
    vqa("annotation missing", [OK, "no answer"], asked=[question(2)]),
    vqa("annotation twice: the first counts", [OK], answered=[annotation(1, "B")]),
    vqa("annotation of nothing", [OK], answered=[annotation(9), {}, 3, None, CANARY]),
    vqa("question id twice", [OK, "question_id given before"], asked=[question(1)]),
    vqa("question id missing", [OK, "no question_id"], asked=[question(None)]),
    vqa("question id is a list", [OK, "no question_id"], asked=[question([1])]),
    vqa("question is a number", [OK, "not an object"], asked=[5]),
    vqa("question is text by id", [OK, OK], asked=[question("a")], answered=[annotation("a")]),
    vqa("image id missing", [OK, "no image"], asked=[question(2, image_id=None)],
         answered=[annotation(2)]),
    vqa("image id is a path", [OK, "image file missing"], asked=[question(2, image_id=f"../{X}")],
        answered=[annotation(2)]),
    vqa("image id of many zeros", [OK, "image file missing"],
        asked=[question(2, image_id="0" * 10**6 + "x")], answered=[annotation(2)]),
    vqa("ids are whole floats", [OK, OK], asked=[question(2.0, image_id=7.0)],
        answered=[annotation(2)]),
    vqa("image id of no file", [OK, "image file missing"], asked=[question(2, image_id=8)],
        answered=[annotation(2)]),
    vqa("image id as text", [OK, OK], asked=[question(2, image_id="0007")],
         answered=[annotation(2)]),
    Case("questions alone", {"q.json": {"questions": [question(1)]}},
         "{path}: of VQA-v2, name the file of questions and the file of annotations together."),
    Case("annotations alone", {"a.json": {"annotations": [annotation(1)]}},
         "{path}: of VQA-v2, name"),
    Case("a build report", {"x.report.json": {"private": CANARY, "bad_rows": [{"row": 1}]}},
         "{path} is a build report, not data."),
    Case("questions that are no list", {"q.json": {"questions": {"1": CANARY}}},
         "{path} is one JSON object that lists neither questions nor annotations."),
    Case("no questions in the pair", {"q.json": {"questions": []}, "a.json": {"annotations": []}},
         "{path} is one JSON object that lists neither", {}, ("q.json", "a.json")),
    # --- CSV
    table("a good row", f"{X},{Q},{A}", OK),
    table("quotes, a comma and lines", f'{X},"a ""b"", c\nd",{A}', ('a "b", c\nd', A)),
    table("blank row", "", "empty line"),
    table("commas alone", ",,", "empty line"),
    table("too few cells", f"{X},{Q}", "wrong number of columns"),
    table("too many cells", f"{X},{Q},{A},more", "wrong number of columns"),
    table("an empty cell", f"{X},,{A}", "no question"),
    table("a list of answers", f'{X},{Q},"[""b"", ""a"", ""a""]"', (Q, '["b", "a", "a"]')),
    Case("a column of answers",
         {"data.csv": f'image,question,answers\n{X},q,"[""b"",""a"",""a""]"'.encode()},
         [("q", "a")]),
    Case("answers that are no list", {"data.csv": f"image,question,answers\n{X},q,[b|a".encode()},
         ["answers is not a list"]),
    Case("Latin-1 in one row",
         {"data.csv": f"image,question,answer\n{X},\xfc,a\n{X},q,a".encode("latin-1")},
         ["not UTF-8", ("q", "a")]),
    Case("a quote that stays open",
         {"data.csv": f'image,question,answer\n{X},"{Q},a\n{X},q,a'.encode()},
         "{path}, line 2: a quote opens in this row and stays open to the end of the file."),
    table("letters behind a quote", f'{X},"{Q}"x,a', "cannot be read"),
    table("letters behind a quote over lines", f'{X},"a\nb"x,a', "cannot be read"),
    table("a stray carriage return", f"{X},a\rb,{A}", "cannot be read"),
    table("a null character", f"\0{X},{Q},{A}", "image file missing"),
    Case("a header with letters behind a quote",
         {"data.csv": f'image,"question"x,answer\n{X},q,a'.encode()},
         "{path}, line 1: its quotes or line ends do not match."),
    Case("a header with an open quote", {"data.csv": f'image,question,"answer\n{X},q,a'.encode()},
         "{path}, line 1: a quote opens in this row"),
    Case("the delimiter in Excel's first line",
         {"data.csv": f"sep=;\r\nimage;question;answer\r\n{X};a,b;c\r\n".encode()},
         [("a,b", "c")]),
    Case("Excel's first line alone", {"data.csv": b"sep=;\n"}, "{path} " + HEADLESS),
    Case("blank lines for a table", {"data.csv": b"\n\n"}, "{path} " + HEADLESS),
    Case("old Mac line ends", {"data.csv": f"image,question,answer\r{X},q,a\r{X},q,b".encode()},
         "{path}, line 1: its quotes or line ends do not match."),
    Case("Windows line ends", {"data.csv": f"image,question,answer\r\n{X},q,a\r\n".encode()},
         [("q", "a")]),
    Case("UTF-16 from a spreadsheet",
         {"data.csv": f"image\tquestion\tanswer\n{X}\tq\tä".encode("utf-16")},
         [("q", "ä")]),
    Case("semicolons and blanks in the header",
         {"data.csv": f" image ;question; answer\n{X};a,b;c".encode()},
         [("a,b", "c")]),
    Case("no header line", {"data.csv": f"{X},{Q},{A}\n".encode()}, "{path} " + HEADLESS),
    Case("header without answer", {"data.csv": f"image,question,{CANARY}\na,b,c".encode()},
         "{path} has no column answer. If"),
    Case("a header name twice", {"data.csv": b"image,question,answer,image\na,b,c,d"},
         "{path} has two columns of one name."),
    Case("header alone", {"data.csv": b"image,question,answer\n"}, "{path} holds no records."),
    Case("header in Latin-1", {"data.csv": b"image,question,answer,\xfc\na,b,c,d"},
         "{path}, line 1: not UTF-8. Name the encoding (encoding='cp1252' / --encoding cp1252)."),
    Case("no column of the unit", {"data.csv": f"image,question,answer\n{X},q,a".encode()},
         "{path} has no column who. If", {"unit": "who"}),
    Case("no column of that name", {"data.csv": f"image,question,answer\n{X},q,a".encode()},
         "{path} has no column Frage. If", {"columns": {"question": "Frage"}}),
    Case("a cell of 200,000 characters",
         # More than the csv module takes in a cell by itself.
         {"data.csv": f"image,question,answer\n{X},{'q' * 200_000},a".encode()},
         ["question is too long"]),
    # --- Parquet
    Case("rows of Parquet", {"data.parquet": parquet([GOOD, rec(image=None), rec(answer=None)])},
         [OK, "no image", "no answer"]),
    Case("not Parquet", {"data.parquet": lines(GOOD)},
         "{path} cannot be read as Parquet: it is damaged, or something else."),
    Case("Parquet, empty file", {"data.parquet": b""}, "{path} cannot be read as Parquet"),
    Case("Parquet, head alone", {"data.parquet": b"PAR1" * 4}, "{path} cannot be read as Parquet"),
    Case("Parquet by another name", {"data.bin": parquet([GOOD])}, [OK]),
    Case("Parquet without rows", {"data.parquet": parquet([], lambda pa: pa.schema([(n,
         pa.string()) for n in GOOD]))},
         "{path} holds no records."),
    Case("Parquet without question", {"data.parquet": parquet([{"image": X, "answer": A}])},
         "{path} has no column question. If"),
    Case("Parquet, Latin-1 in one row", {"data.parquet": parquet_not_utf8},
         [OK, "cannot be read", OK]),
    Case("Parquet, text as bytes", {"data.parquet": parquet([rec(question=b"q")])},
         ["question is not text"]),
    Case("Parquet, numbers for answers", {"data.parquet": parquet([rec(answer=3),
         rec(answer=None)])},
         [(Q, "3"), "no answer"]),
    Case("Parquet, bytes for the image", {"data.parquet": parquet([rec(image=b"\x89PNG")])}, [OK]),
    # --- folders
    Case("metadata", {"d/metadata.jsonl": lines(rec(image="-", file_name=f"../{X}"), {}),
         "d/y.png": png},
         [OK, "no image"], {}, ("d",)),
    Case("metadata, told but not there", {"d/x.png": png}, "{path} holds none of metadata.jsonl, ",
         {"format": "metadata"}, ("d",)),
    Case("a folder of images", {"d/x.png": png},
         "{path} is a folder, and none that holds records. " + NAMES,
         {}, ("d",)),
    Case("splits", {"d/train/metadata.jsonl": b"{}", "d/test/metadata.csv": b"", "d/x.png": png},
         "{path} holds no records itself: name the folder inside: {path}/test, {path}/train.", {},
         ("d",)),
    Case("one class folder", {"d/cat/x.png": png},
         "{path} holds fewer than two folders with images", {}, ("d",)),
    Case("class folders without images", {"d/a/x.txt": b"", "d/b/x.txt": b""},
         "{path} holds fewer than two folders with images", {}, ("d",)),
    Case("class folders of one name", {"d/a_b/x.png": png, "d/a b/x.png": png, "d/c/x.png": png},
         "{path} has two class folders of one name, but for underscores.", {}, ("d",)),
    Case("class folders and a unit", {"d/a/x.png": png, "d/b/x.png": png},
         "unit means nothing for the format classes", {"unit": "who"}, ("d",)),
    Case("three pictures are too few", {"d/a/x.png": png, "d/b/x.png": png},
         "{path} holds no records.",
         {"ways": 2}, ("d",)),
    Case("a picture that is a link to nothing", {"d/a/x.png": png, "d/b/x.png": link("no")},
         [("What is shown in this image? Answer with one of: a, b.", "a"), "image file missing"],
         {}, ("d",)),
    Case("a saved dataset that is damaged", {"d/state.json": b"{", "d/dataset_info.json": b"{"},
         "{path} is no saved dataset.", {}, ("d",)),
    Case("links in circles among class folders",
         {"d/a/x.png": png, "d/b/x.png": png, "d/c": link("c"), "d/a/y.png": link("y.png")},
         [("What is shown in this image? Answer with one of: a, b.", "a"), "image file missing",
          ("What is shown in this image? Answer with one of: a, b.", "b")], {}, ("d",)),
    Case("names with a null character", {}, "{path} cannot be read. Check", {"format": "jsonl"},
         ("a\0b", "c\0d")),
    Case("a folder's name too long", {}, "{path} holds none of metadata.jsonl",
         {"format": "metadata"}, ("n" * 5000,)),
    Case("a folder that is a file", {"d": b"x"}, "{path} cannot be listed. Check that it is a",
         {"format": "classes"}),
    Case("JSONL is a folder", {"data.jsonl/x.png": png},
         "{path} is a folder. Name the file inside it.",
         {"format": "jsonl"}, ("data.jsonl",)),
    # --- several files
    Case("one file twice", {"a.jsonl": lines(GOOD)}, "{path} is named twice.", {}, ("a.jsonl",
         "a.jsonl")),
    Case("one file twice, by a link", {"a.jsonl": lines(GOOD), "b.jsonl": link("a.jsonl")},
         "{folder}/b.jsonl is named twice.", {}, ("a.jsonl", "b.jsonl")),
    Case("a metadata folder and its file", {"d/metadata.jsonl": lines({})},
         "{folder}/d/metadata.jsonl is named twice.", {}, ("d", "d/metadata.jsonl")),
    Case("the second file is empty", {"a.jsonl": lines(GOOD), "b.jsonl": b""},
         "{folder}/b.jsonl is empty. Write", {}, ("a.jsonl", "b.jsonl")),
]  # fmt: skip


def test_there_are_enough_cases():
    assert len(CASES) >= 150
    assert len({case.what + str(sorted(case.files)) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_odd_file(case, tmp_path, capfd):
    png(tmp_path / X)
    for name, content in case.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            raw = content if isinstance(content, bytes) else js(content)
            for mark, value in ((b"{folder}", str(tmp_path)), (b"{name}", tmp_path.name)):
                raw = raw.replace(mark, value.encode())
            path.write_bytes(raw)
    paths = [tmp_path / name for name in case.read or [next(iter(case.files))]]
    error, rows = None, []
    try:
        rows = read_demonstrations(paths, **case.options)
    except UserError as refused:
        error = refused
    if error is not None:
        shown = str(error) + repr(error) + "".join(traceback.format_exception(error))
        assert error.__context__ is None
        assert "\n" not in str(error)
        assert isinstance(case.expected, str), error
        assert str(error).startswith(case.expected.format(path=paths[0], folder=tmp_path))
    else:
        shown = repr(rows)
        assert [told(row) for row in rows] == case.expected
        assert [row.row for row in rows if isinstance(row, BadRow)] == [
            n for n, row in enumerate(rows, start=1) if isinstance(row, BadRow)
        ]
        reasons = {row.reason for row in rows if isinstance(row, BadRow)}
        documented = " ".join(BadRow.__doc__.split())
        for reason in reasons:
            kind = reason.replace(reason.split()[0], "F", 1)
            assert f'"{reason}"' in documented or kind == "F is not text" or reason[:3] == "no "
    assert CANARY not in shown
    assert capfd.readouterr() == ("", "")


def told(row: Demonstration | BadRow) -> object:
    return row.reason if isinstance(row, BadRow) else (row.question, row.answer)
