"""Removes HTML from texts, as exports of support desks and mails have it."""

from html.parser import HTMLParser

# Tags within a line; any other stands between words.
_INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins"),
    *("kbd", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "tt"),
    *("u", "var", "wbr"),
}
_UNREAD = {"script", "style", "head", "title"}


def strip_html(text: str) -> str:
    """The readable text of a piece of HTML: tags become spaces or, within a line, nothing.

    Scripts, styles and comments are left out, and entities such as &amp; become characters.
    """
    if "<" not in text and "&" not in text:
        return text
    parser = _Reader()
    parser.feed(text)
    parser.close()
    return "".join(parser.pieces)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unread: list[str] = []  # tags that are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNREAD:
            self._unread.append(tag)
        if tag not in _INLINE:
            self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unread:
            self._unread.remove(tag)
        if tag not in _INLINE:
            self.pieces.append(" ")

    def handle_data(self, data: str) -> None:
        if not self._unread:
            self.pieces.append(data)
