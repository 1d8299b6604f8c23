"""A corpus of engine answers, well formed, odd and hostile, as bytes on the wire."""

from __future__ import annotations

from typing import NamedTuple

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"transfer-encoding: chunked\r\n\r\n"


class Answer(NamedTuple):
    name: str
    wire: bytes
    reset: bool = False
    """Ends with RST instead of FIN."""
    stricter: str = ""
    """Why the relay refuses what the reference accepts; empty where the two must agree."""


def _length(value: bytes, body: bytes = b"hello") -> bytes:
    return _OK + b"content-length: " + value + b"\r\n\r\n" + body


WELL_FORMED = (
    Answer("content-length", _length(b"5")),
    Answer("content-length 0", _length(b"0", b"")),
    Answer("chunked", _CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"),
    Answer("chunked, upper case", _OK + b"Transfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    Answer("chunk sizes with leading zeros and capitals", _CHUNKED + b"000A\r\n0123456789\r\n00\r\n\r\n"),
    Answer("chunk extension", _CHUNKED + b'5;name="v"\r\nhello\r\n0;last\r\n\r\n'),
    Answer("trailers", _CHUNKED + b"5\r\nhello\r\n0\r\nx-sum: 1\r\nx-b: 2\r\n\r\n"),
    Answer("framed by close", _OK + b"\r\nhello"),
    Answer("framed by close, empty", _OK + b"\r\n"),
    Answer("http/1.0", b"HTTP/1.0 200 OK\r\n\r\nhello"),
    Answer("no reason phrase", b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello"),
    Answer(
        "reason phrase with bytes beyond ascii", b"HTTP/1.1 200 \xc3\xa9t\xc3\xa9\r\ncontent-length: 5\r\n\r\nhello"
    ),
    Answer("field value beyond ascii", _OK + b"x: \xff\xfe\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("field without a value", _OK + b"x:\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("no fields at all", b"HTTP/1.1 200 OK\r\n\r\n"),
    Answer("204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    Answer("204 with a length", b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n"),
    Answer("304 with a length", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
    Answer("404", b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("status 599", b"HTTP/1.1 599 Odd\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("100 and then 200", b"HTTP/1.1 100 Continue\r\n\r\n" + _length(b"5")),
    Answer("103 with fields", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + _length(b"5")),
    Answer("many interim answers", b"HTTP/1.1 102 Processing\r\n\r\n" * 20 + _length(b"5")),
    Answer(
        "upgrade offered and not taken", _OK + b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 5\r\n\r\nhello"
    ),
    Answer("garbage behind the end", _length(b"5") + b"XXXX"),
    Answer("second answer behind the end", _length(b"5") + _length(b"2", b"no")),
    Answer("line break behind the end", _length(b"5") + b"\r\n"),
    Answer(
        "json error for a stream",
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n" + _length(b"5")[17:],
    ),
)

CUT = (
    Answer("nothing", b""),
    Answer("nothing, reset", b"", reset=True),
    Answer("half a status line", b"HTTP/1.1 20"),
    Answer("half a head", _OK + b"content-length: 5\r\n"),
    Answer("interim only", b"HTTP/1.1 100 Continue\r\n\r\n"),
    Answer("body shorter than its length", _length(b"5", b"hel")),
    Answer("body shorter than its length, reset", _length(b"5", b"hel"), reset=True),
    Answer("body missing", _length(b"5", b"")),
    Answer("framed by close, reset", _OK + b"\r\nhello", reset=True),
    Answer("chunk cut", _CHUNKED + b"5\r\nhel"),
    Answer("chunk size cut", _CHUNKED + b"5\r\nhello\r\n1"),
    Answer("no last chunk", _CHUNKED + b"5\r\nhello\r\n"),
    Answer("last chunk without its end", _CHUNKED + b"5\r\nhello\r\n0\r\n"),
    Answer("last chunk without its end, reset", _CHUNKED + b"5\r\nhello\r\n0\r\n", reset=True),
    Answer("trailers cut", _CHUNKED + b"5\r\nhello\r\n0\r\nx: y\r\n"),
    Answer("no chunk", _CHUNKED),
)

MALFORMED = (
    Answer("not http", b"XYZ\r\n"),
    Answer("http/0.9", b"hello"),
    Answer("rtsp", b"RTSP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("empty line first", b"\r\n" + _length(b"5")),
    Answer("tls alert", b"\x15\x03\x03\x00\x02\x02\x28"),
    Answer("zmtp greeting", b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"),
    Answer("version missing", b"HTTP/ 200 OK\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("two digit status", b"HTTP/1.1 20 OK\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("four digit status", b"HTTP/1.1 2000 OK\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("status 000", b"HTTP/1.1 000 No\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("status 099", b"HTTP/1.1 099 No\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("status in letters", b"HTTP/1.1 abc OK\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("two lengths", _OK + b"content-length: 5\r\ncontent-length: 500\r\n\r\nhello"),
    Answer("two lengths in one field", _length(b"5, 500")),
    Answer("negative length", _length(b"-5")),
    Answer("signed length", _length(b"+5")),
    Answer("length in hex", _length(b"0x5")),
    Answer("length empty", _length(b"")),
    Answer("length beyond all bounds", _length(b"9" * 40)),
    Answer("transfer coding unknown", _OK + b"transfer-encoding: gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    Answer("two transfer codings", _OK + b"transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    Answer("chunked not last", _OK + b"transfer-encoding: chunked, gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    Answer("chunked misspelt", _OK + b"transfer-encoding: xchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    Answer("chunk size in letters", _CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n"),
    Answer("chunk size negative", _CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"),
    Answer("chunk size beyond all bounds", _CHUNKED + b"f" * 20 + b"\r\nhello\r\n0\r\n\r\n"),
    Answer("chunk size missing", _CHUNKED + b"\r\nhello\r\n0\r\n\r\n"),
    Answer("chunk longer than it says", _CHUNKED + b"3\r\nhello\r\n0\r\n\r\n"),
    Answer("space in a field name", _OK + b"a b: c\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("nul in a field value", _OK + b"a: b\0c\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("field without a colon", _OK + b"nocolon\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("field without a name", _OK + b": x\r\ncontent-length: 5\r\n\r\nhello"),
    Answer("head beyond all bounds", _OK + b"x: " + b"a" * 200_000 + b"\r\n\r\n"),
    Answer("fields beyond all bounds", _OK + b"x: aaaaaaaa\r\n" * 20_000 + b"\r\n"),
    Answer("upgraded unasked", b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello"),
)

STRICTER = (
    Answer(
        "equal lengths twice",
        _OK + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        stricter="a doubled length is what a confused peer sends; no engine does",
    ),
    Answer(
        "length beside a transfer coding",
        _OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        stricter="two framings in one head are response splitting (RFC 9112, 6.3)",
    ),
    Answer(
        "transfer coding beside a length",
        _OK + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        stricter="two framings in one head are response splitting (RFC 9112, 6.3)",
    ),
    Answer(
        "bare line feeds",
        b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello",
        stricter="line ends that peers read differently hide fields",
    ),
    Answer(
        "folded field",
        _OK + b"x: a\r\n b\r\ncontent-length: 5\r\n\r\nhello",
        stricter="obsolete folding is refused (RFC 9112, 5.2)",
    ),
)
