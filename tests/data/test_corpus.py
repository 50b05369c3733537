"""Raw text in every format, whole and damaged."""

import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from bnp_dask.cli import main
from bnp_dask.data import Text, as_source, load_documents, load_dropped, load_vocabulary
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.data.text.vocabulary import WordSums
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import rows

TEXTS = {
    "sky/a.txt": "Sun moon, moon.",
    "sky/b.txt": "star; Étoile sun",
    "sea/deep/c.txt": 'wave "sun"\nmoon, ebb',
}
ALL = Text(min_df=1)
WORDS = ("ebb", "moon", "star", "sun", "wave", "étoile")
COUNTS = {
    "sky/a.txt": [0, 2, 0, 1, 0, 0],
    "sky/b.txt": [0, 0, 1, 1, 0, 1],
    "sea/deep/c.txt": [1, 1, 0, 1, 1, 0],
}


def tar(members, mode="w"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return out.getvalue()


ENCODED = {name: text.encode() for name, text in TEXTS.items()}


def make_folder(path):
    for name, data in ENCODED.items():
        (path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "in" / name).write_bytes(data)
    (path / "in" / ".hidden.txt").write_text("hidden")
    return path / "in"


def make_file(name, data):
    def make(path):
        (path / name).write_bytes(data)
        return path / name

    return make


def make_csv(name, sep, pack=bytes):
    lines = [sep.join(("id", "year", "body"))]
    for number, (key, text) in enumerate(TEXTS.items()):
        lines.append(sep.join((key, str(1900 + number), '"' + text.replace('"', '""') + '"')))
    return make_file(name, pack("\n".join(lines).encode() + b"\n"))


def make_parquet(path):
    columns = {"id": list(TEXTS), "body": list(TEXTS.values()), "year": pa.array([1900, 1901, None], pa.int16())}
    pq.write_table(pa.table(columns), path / "x.parquet", row_group_size=2)
    return path / "x.parquet"


def jsonl(extra=b""):
    records = [{"id": k, "year": 1900 + i, "body": t} for i, (k, t) in enumerate(TEXTS.items())]
    return b"\n\n".join(json.dumps(r).encode() for r in records) + b"\n" + extra


BODY = Text(min_df=1, column="body")
FORMATS = {
    "folder": (make_folder, None, "text-folder"),
    "tar": (make_file("x.tar", tar(ENCODED)), None, "text-archive"),
    "tar.gz": (make_file("x.tar.gz", tar(ENCODED, "w:gz")), None, "text-archive"),
    "tar.xz": (make_file("x.txz", lzma.compress(tar(ENCODED))), None, "text-archive"),
    "zip": (make_file("x.zip", zipped(ENCODED)), None, "text-archive"),
    "packed members": (make_file("x.tar", tar({f"{k}.gz": gzip.compress(v) for k, v in ENCODED.items()})), None, ""),
    "jsonl": (make_file("x.jsonl", jsonl()), BODY, "jsonl"),
    "jsonl.gz": (make_file("x.jsonl.gz", gzip.compress(jsonl())), BODY, "jsonl"),
    "csv": (make_csv("x.csv", ","), BODY, "csv-text"),
    "csv.gz": (make_csv("x.csv.gz", ",", gzip.compress), BODY, "csv-text"),
    "tsv": (make_csv("x.tsv", "\t"), BODY, "tsv-text"),
    "parquet": (make_parquet, BODY, "parquet-text"),
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", FORMATS)
def test_formats(tmp_path, name):
    make, text, kind = FORMATS[name]
    source = make(tmp_path)
    told = []
    found = ingest(
        source, tmp_path / "x.zarr", batch_size=2, text=text or ALL, progress=lambda share, n: told.append(share)
    )
    assert kind in ("", found.format) and told == sorted(told) and told[-1] == 1
    documents = load_documents(tmp_path / "x.zarr")
    ids = [id.removesuffix(".gz") for id in documents["id"].to_pylist()]
    assert sorted(ids) == sorted(TEXTS)
    assert load_vocabulary(tmp_path / "x.zarr").words == WORDS
    np.testing.assert_array_equal(rows(as_source(tmp_path / "x.zarr")), [COUNTS[id] for id in ids])
    assert found.n_batches == 2 and found.text.n_documents == 3
    if text is None:
        assert documents["folder"].to_pylist() == [os.path.dirname(id) for id in ids]
        ingest(source, tmp_path / "y.zarr", text=Text(min_df=1, glob="sky/*"))
        assert as_source(tmp_path / "y.zarr").n_atoms == 2
    else:
        assert [str(y) for y in documents["year"].to_pylist()][:2] == ["1900", "1901"]
        if name == "parquet":
            assert documents.schema.field("year").type == pa.int16()
        ingest(source, tmp_path / "y.zarr", columns=[], text=text)
        assert load_documents(tmp_path / "y.zarr").column_names == ["id"]
    ingest(source, tmp_path / "kept.zarr", text=replace(text or ALL, keep_text=6))
    kept = load_documents(tmp_path / "kept.zarr")
    assert kept.drop(["begins"]) == documents
    assert kept["begins"].to_pylist() == [" ".join(TEXTS[id].split())[:6] for id in ids]
    # a source of text tells what to do, or is read as the table that it also is
    if not name.startswith(("csv", "tsv", "parquet")):
        with pytest.raises(DataError, match="raw text .* bnp-dask ingest"):
            as_source(source)


def test_lines(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"Sun moon\r\n\nsun sun")
    ingest(tmp_path / "x.txt", tmp_path / "x.zarr", format="lines", text=ALL)
    assert load_documents(tmp_path / "x.zarr")["id"].to_pylist() == ["1", "3"]
    np.testing.assert_array_equal(rows(as_source(tmp_path / "x.zarr")), [[1, 1], [0, 2]])
    with pytest.raises(SettingError, match="cannot be cut into lines"):
        ingest(tmp_path / "x.txt", tmp_path / "y.zarr", format="lines", text=Text(encoding="utf-16"))


def test_files_whose_names_say_nothing(tmp_path, capsys):
    for name, text in (("1", "sun moon"), ("deep/2", "moon\nstar")):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "in" / name).write_text(text)
    assert main(["ingest", str(tmp_path / "in"), str(tmp_path / "x.zarr")]) == 2
    assert "if its files are text, ingest it with format='text' (--format text)" in capsys.readouterr().err
    said = [str(tmp_path / "x.zarr"), "--format", "text", "--min-df", "1", "--overwrite", "--quiet"]
    for source, n_atoms, kind in (("in", 2, "text-folder"), ("in/deep/2", 2, "lines"), ("in/1", 1, "lines")):
        assert main(["ingest", str(tmp_path / source), *said]) == 0
        assert f"({kind})" in capsys.readouterr().out
        assert as_source(tmp_path / "x.zarr").n_atoms == n_atoms
    make_csv("x.csv", ",")(tmp_path)
    assert ingest(tmp_path / "x.csv", tmp_path / "y.zarr", format="text", text=BODY).format == "csv-text"
    with pytest.raises(DataError, match=r"raw text \(text\).* bnp-dask ingest .* OUT.zarr --format text"):
        as_source(tmp_path / "in", format="text")
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="an empty file"):
        ingest(tmp_path / "empty", tmp_path / "z.zarr", format="text")


def test_a_function_that_makes_documents(tmp_path):
    calls = []

    def make():
        calls.append(1)
        yield 1, "sun moon", {"when": 3, "mixed": 1, "deep": {"a": [1]}, "id": "own", "big": 2**70}
        yield 2, "sun \ud800 moon", {"mixed": "x", "rate": 1}
        yield 3, "sun", {"rate": 0.5, "mixed": None}

    report = ingest(make, tmp_path / "x.zarr", text=ALL)
    assert len(calls) == 2 and report.source == "make" and report.text.n_bad_characters == 1
    assert load_documents(tmp_path / "x.zarr").to_pylist() == [
        {"id": "1", "when": 3, "mixed": "1", "deep": '{"a": [1]}', "id_": "own", "big": str(2**70), "rate": None},
        {"id": "2", "when": None, "mixed": "x", "deep": None, "id_": None, "big": None, "rate": 1.0},
        {"id": "3", "when": None, "mixed": None, "deep": None, "id_": None, "big": None, "rate": 0.5},
    ]
    with pytest.raises(DataError, match="an iterator itself can be read only once; ingest takes a function"):
        ingest(make(), tmp_path / "y.zarr")
    with pytest.raises(DataError, match=r"document 1 is \('b',\); needs \(id, text\)"):
        ingest([("a", "b"), ("b",)], tmp_path / "y.zarr")
    with pytest.raises(DataError, match="has no documents"):
        ingest([], tmp_path / "y.zarr")
    once = iter([("a", "sun"), ("b", "moon")])
    with pytest.raises(DataError, match="changed while it was read"):
        ingest(lambda: once, tmp_path / "y.zarr", text=ALL)
    assert not (tmp_path / "y.zarr").exists() and not list(tmp_path.glob(".y*"))


def test_paths_that_lead_out_of_an_archive_are_names_only(tmp_path):
    evil = {"../../up.txt": b"sun", "/root/abs.txt": b"moon", "in.txt": b"star"}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.zip").write_bytes(zipped(evil))
    data = io.BytesIO(tar(evil))
    with tarfile.open(fileobj=data, mode="a") as file:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo(f"other{kind}")
            info.type, info.linkname = kind, "/etc/passwd"
            file.addfile(info)
    (tmp_path / "in" / "x.tar").write_bytes(data.getvalue())
    before = sorted(tmp_path.parent.rglob("*.txt"))
    for name in ("x.zip", "x.tar"):
        report = ingest(tmp_path / "in" / name, tmp_path / f"{name}.zarr", text=Text(min_df=1, glob="*"))
        assert load_documents(tmp_path / f"{name}.zarr")["id"].to_pylist() == list(evil)
        assert any("2 members have paths that lead out" in note for note in report.notes)
    assert any("3 links or devices in the archive were not followed" in note for note in report.notes)
    assert sorted(tmp_path.parent.rglob("*.txt")) == before


def test_bad_encodings_are_replaced_and_counted(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_bytes("sun caf\u00e9 \ufffd".encode() + b" \xff\xfe moon")
    (folder / "b.txt").write_bytes("sun café".encode("latin-1"))
    (folder / "c.txt").write_bytes(b"\xef\xbb\xbfsun\0moon\0")
    (folder / "d.txt").write_bytes(b"")
    report = ingest(folder, tmp_path / "x.zarr", text=ALL)
    assert report.text.n_bad_characters == 3 and report.text.n_empty == 1
    notes = "\n".join(report.notes)
    assert "3 characters could not be decoded and were replaced, in 2 of them:" in notes and "b.txt" in notes
    assert "NUL bytes in" in notes and "c.txt" in notes
    assert load_vocabulary(tmp_path / "x.zarr").words == ("caf", "café", "moon", "sun")
    with pytest.raises(DataError, match=r"a.txt: 'utf-8' codec can't decode byte 0xff in position"):
        ingest(folder, tmp_path / "y.zarr", text=Text(min_df=1, strict=True))
    ingest(folder, tmp_path / "y.zarr", text=Text(min_df=1, encoding="latin-1", glob="b.txt", strict=True))
    assert load_vocabulary(tmp_path / "y.zarr").words == ("café", "sun")
    (tmp_path / "x.csv").write_bytes("text\nsun café\n".encode("utf-16"))
    ingest(tmp_path / "x.csv", tmp_path / "z.zarr", text=Text(min_df=1, encoding="utf-16"))
    assert load_vocabulary(tmp_path / "z.zarr").words == ("café", "sun")
    (tmp_path / "l.csv").write_bytes("text,who\nsun café,é\n".encode("latin-1"))
    report = ingest(tmp_path / "l.csv", tmp_path / "l.zarr", text=ALL)
    assert report.text.n_bad_characters == 2
    assert load_documents(tmp_path / "l.zarr").to_pylist() == [{"id": "1", "who": "\ufffd"}]


def test_enormous_documents_are_cut_and_counted(tmp_path):
    (tmp_path / "x.txt").write_bytes("é".encode() * 100 + b"\nsun\n")
    text = Text(min_df=1, max_bytes=11)
    report = ingest(tmp_path / "x.txt", tmp_path / "x.zarr", format="lines", text=text)
    # the character in the middle of which the limit lies is not a bad one
    assert load_vocabulary(tmp_path / "x.zarr").words == ("sun", "é" * 5) and report.text.n_bad_characters == 0
    assert any("cut because too long: " in note and "line 1" in note for note in report.notes)
    (tmp_path / "x.tar").write_bytes(tar({"a": b"sun " * 100}))
    ingest(tmp_path / "x.tar", tmp_path / "y.zarr", text=text)
    np.testing.assert_array_equal(rows(as_source(tmp_path / "y.zarr")), [[3]])
    (tmp_path / "x.jsonl").write_bytes(b'{"a":"sun"}\n' + jsonl())
    with pytest.raises(DataError, match="line 2: more than 11 bytes"):
        ingest(tmp_path / "x.jsonl", tmp_path / "z.zarr", text=Text(max_bytes=11, column="a"))


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("x.tar.gz", tar(ENCODED, "w:gz")[:-60], "x.tar.gz.*cut short or damaged"),
        ("x.tar", tar(ENCODED)[:1100], "x.tar, at or after member sky/a.txt: cut short"),
        ("x.tar", tar(ENCODED)[:1024], "x.tar, at or after member sky/a.txt: cut short"),
        ("x.tar", tar(ENCODED)[:1540], "x.tar, at or after member sky/b.txt: cut short"),
        ("x.zip", zipped(ENCODED).replace(b"sky/b.txt", b"sky/q.txt", 1), "x.zip:sky/b.txt: damaged or locked"),
        ("x.tar", tar({**ENCODED, "z.gz": gzip.compress(b"sun" * 99)[:-9]}), "x.tar:z.gz: cut short or damaged"),
        ("x.jsonl", jsonl(b'{"body": "a'), "x.jsonl line 6: no JSON"),
        ("x.jsonl", jsonl(b"[1]\n"), "x.jsonl line 6: a JSON list, needs an object"),
        ("x.jsonl", jsonl(b'{"body": 3, "id": 1}\n'), "x.jsonl line 6: 'body' is int, needs text"),
        ("x.jsonl", jsonl(b'{"body": "sun"}\n'), "x.jsonl line 6: no id in 'id'"),
        ("x.jsonl.gz", gzip.compress(jsonl())[:-9], "x.jsonl.gz after line 4: cut short or damaged"),
        ("x.csv", b"id,body\na,sun\nb,moon\nc,d,e\n", "x.csv after row .*Expected 2 columns"),
    ],
)
def test_damaged_parts_are_named_or_skipped(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    text = Text(min_df=1, column=None if "tar" in name or "zip" in name else "body")
    with pytest.raises(DataError, match=message):
        ingest(tmp_path / name, tmp_path / "x.zarr", text=text)
    assert not (tmp_path / "x.zarr").exists()
    if name == "x.tar.gz":
        return
    text = Text(min_df=1, column=text.column, on_bad="skip")
    report = ingest(tmp_path / name, tmp_path / "x.zarr", text=text)
    assert report.text.n_skipped == 1 and report.n_atoms >= 1
    assert any("could not be read and were left out" in note for note in report.notes)
    assert load_dropped(tmp_path / "x.zarr")["place"].to_pylist() != []


def test_no_archive_at_all(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(DataError, match="x.tar: cut short or damaged"):
        ingest(tmp_path / "x.tar", tmp_path / "x.zarr")
    (tmp_path / "x.zip").write_bytes(zipped(ENCODED)[:-30])
    with pytest.raises(DataError, match="x.zip: no .zip archive"):
        ingest(tmp_path / "x.zip", tmp_path / "x.zarr")
    (tmp_path / "y.tar").write_bytes(tar(ENCODED))
    with pytest.raises(DataError, match=r"none of its 3 files fits the pattern '\*.md'"):
        ingest(tmp_path / "y.tar", tmp_path / "x.zarr", text=Text(glob="*.md"))


def test_duplicate_ids(tmp_path):
    lines = [json.dumps({"id": f"d{i % 7}", "text": "sun"}) for i in range(9)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"2 documents .* the first is 'd0': .*line 1 and .*line 8\. Choose"):
        ingest(tmp_path / "x.jsonl", tmp_path / "x.zarr", text=ALL)
    report = ingest(tmp_path / "x.jsonl", tmp_path / "x.zarr", text=Text(min_df=1, on_duplicate="keep"))
    assert report.n_atoms == 9 and report.text.n_duplicates == 2
    assert any("2 documents have an id that was there before" in note for note in report.notes)


def test_columns_are_found_or_asked_for(tmp_path):
    (tmp_path / "x.csv").write_text("title,body\na,sun\n")
    with pytest.raises(DataError, match=r"which column is the text\? It has title, body; say .*--text-column"):
        ingest(tmp_path / "x.csv", tmp_path / "x.zarr", format="csv-text")
    with pytest.raises(DataError, match="no column 'bodi'; nearest existing name: 'body'"):
        ingest(tmp_path / "x.csv", tmp_path / "x.zarr", text=Text(column="bodi"))
    pq.write_table(pa.table({"n": [1], "words": ["sun"]}), tmp_path / "x.parquet")
    ingest(tmp_path / "x.parquet", tmp_path / "x.zarr", text=ALL)
    assert load_documents(tmp_path / "x.zarr").to_pylist() == [{"id": "1", "n": 1}]
    with pytest.raises(DataError, match="column 'n' is int64; needs text"):
        ingest(tmp_path / "x.parquet", tmp_path / "y.zarr", text=Text(column="n"))
    with pytest.raises(SettingError, match="is no raw text"):
        np.save(tmp_path / "x.npy", np.ones((2, 2)))
        ingest(tmp_path / "x.npy", tmp_path / "y.zarr", text=ALL)
    with pytest.raises(SettingError, match="are for other data"):
        ingest(tmp_path / "x.parquet", tmp_path / "y.zarr", text=ALL, project=2)


def test_command_line(tmp_path, capsys):
    source = make_folder(tmp_path)
    options = ["--min-df", "1", "--max-df", "0.9", "--stop-words", "none", "--ngrams", "1,1", "--glob", "*.txt"]
    assert main(["ingest", str(source), str(tmp_path / "x.zarr"), *options]) == 0
    out = capsys.readouterr().out
    assert "3 documents, 5 words" in out and "read 3 documents" in out
    assert "too common:                1 words               3 tokens" in out
    assert len(out.splitlines()) < 24
    assert load_vocabulary(tmp_path / "x.zarr").words == tuple(w for w in WORDS if w != "sun")
    assert main(["ingest", str(source), str(tmp_path / "y.zarr"), "--min-df", "9"]) == 2
    assert "no word is left of 6 in 3 documents (6 too rare); change min_df=9" in capsys.readouterr().err


def test_a_stored_zero_is_no_document_with_the_word():
    sums = WordSums()
    sums.add(sparse.csr_array(([2.0, 0.0, 1.0], [0, 1, 1], [0, 2, 3]), shape=(2, 2)))
    doc_freq, total = sums.of(3)
    assert doc_freq.tolist() == [1, 1, 0] and total.tolist() == [2.0, 1.0, 0.0]


def test_only_characters_that_were_replaced_here_are_counted(tmp_path):
    texts = [("a", "sun \ufffd caf\u00e9"), ("b", "moon \ufffd \udc80 \ud83d")]
    report = ingest(texts, tmp_path / "x.zarr", text=Text(min_df=1))
    assert report.text.n_bad_characters == 2
