"""From a page's bytes to its title and readable text."""

import re
import time
from email.message import Message
from html.parser import HTMLParser

from modules.research.fetch import Page
from toolfleet.sdk import ToolError

# Pages can be written so that the standard library's parser takes hours; what it has found by then must do.
_PARSE_SECONDS = 2.0
_MAX_TITLE_CHARS = 300
_HTML = frozenset({"text/html", "application/xhtml+xml", ""})
_OTHER_TEXT = re.compile(r"text/.+|application/(.+\+)?(json|xml)|application/javascript")
_UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BLOCK = re.compile(
    r"address|article|aside|blockquote|br|dd|div|dl|dt|figure|footer|form|h[1-6r]|header|li|main|nav|ol|p|pre|section"
    r"|table|td|th|tr|ul"
)
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([A-Za-z0-9_-]{1,40})", re.IGNORECASE)
# Python knows codecs that are no text encodings, or slow on hostile bytes: only those that pages really use.
_CHARSETS = re.compile(
    r"utf-?8|utf-?16(le|be)?|(us-)?ascii|iso-?8859-\d{1,2}|latin-?1|windows-125\d|gb2312|gbk|gb18030|big5|shift_jis"
    r"|euc-(jp|kr)|koi8-[ru]",
    re.IGNORECASE,
)


def readable(page: Page) -> tuple[str, str]:
    """The title and the text. Raises `ToolError` for what is neither HTML nor other text."""
    header = Message()
    header["Content-Type"] = page.content_type
    kind = header.get_content_type() if page.content_type else ""
    text = page.body.decode(_charset(page.body, header.get_param("charset")), "replace")
    if kind not in _HTML:
        if not _OTHER_TEXT.fullmatch(kind):
            raise ToolError(f"{page.url} is {kind}, not text.")
        return "", text
    parser = _TextParser()
    try:
        parser.feed(text)
        parser.close()
    except (_OutOfTime, AssertionError):  # the parser asserts on some malformed markup
        pass
    return parser.title(), parser.text()


class _OutOfTime(Exception):
    """The page takes too long to parse."""


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._give_up_at = time.monotonic() + _PARSE_SECONDS
        self._title: list[str] = []
        self._text: list[str] = []
        self._in_title = False
        self._unseen = ""  # the element that hides what is inside it
        self._depth = 0  # of elements of that name within each other

    def title(self) -> str:
        return " ".join("".join(self._title).split())[:_MAX_TITLE_CHARS]

    def text(self) -> str:
        lines = (" ".join(line.split()) for line in "".join(self._text).splitlines())
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's signature
        self._check_time()
        if tag == "title":
            self._in_title = True
        elif tag == "body":  # also ends a head that was left open
            self._unseen, self._depth = "", 0
        elif self._unseen:
            self._depth += tag == self._unseen
        elif tag in _UNSEEN:
            self._unseen, self._depth = tag, 1
        elif _BLOCK.fullmatch(tag):
            self._text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._check_time()
        if tag == "title":
            self._in_title = False
        elif self._unseen:
            self._depth -= tag == self._unseen
            self._unseen = self._unseen if self._depth else ""
        elif _BLOCK.fullmatch(tag):
            self._text.append("\n")

    def handle_data(self, data: str) -> None:
        self._check_time()
        if self._in_title:
            self._title.append(data)
        elif not self._unseen:
            self._text.append(data)

    def handle_comment(self, data: str) -> None:  # noqa: ARG002 - the parser's signature
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self._give_up_at:
            raise _OutOfTime


def _charset(body: bytes, declared: object) -> str:
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    meta = _META_CHARSET.search(body, 0, 2048)
    name = declared if isinstance(declared, str) else meta[1].decode() if meta else "utf-8"
    return name if _CHARSETS.fullmatch(name) else "utf-8-sig"
