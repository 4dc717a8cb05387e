"""The page without the markup that HTML lets a page leave out: a phone waits for every byte."""

from __future__ import annotations

import re

OPTIONAL_ENDS = "td|th|tr|thead|tbody|colgroup|li|dt|dd|option"
BLOCKS = "p|div|ul|li|dl|table|thead|tbody|tr|details|summary|figure|section|header|footer|nav|main|h1|h2|h3"
# Before one of these, or at the end of what a paragraph stands in, the paragraph ends by itself.
AFTER_P = r"(?=<(?:p|div|ul|dl|table|details|figure|section|footer|nav|form|h2)\b|</(?:div|details|section|figure|td)>)"
# Jinja writes every quote and every < of a text as an entity, so both stand in tags alone, or in style and script.
SPARED = re.compile(
    r"<(?P<spared>style|script)>.*?</(?P=spared)>"
    rf"|\s*</(?:{OPTIONAL_ENDS})>\s*"
    rf"|\s*</p>\s*{AFTER_P}"
    rf"|\s+(?=</?(?:{BLOCKS})\b)"
    r"|(?P<apostrophe>&\#39;)"  # no value of an attribute stands between apostrophes
    r"""|="(?P<value>[^\s"'=<>`&]+)"(?=[ >])""",  # before /> the slash would belong to the value
    re.DOTALL | re.ASCII,
)


def compact(page: str) -> str:
    """Without end tags that are implied, space beside blocks, and quotes around values that need none.

    >>> compact('<ul class="rows">\\n<li id="a">it&#39;s</li>\\n<li class="b c"><use y="8"/></li>\\n</ul>')
    '<ul class=rows><li id=a>it\\'s<li class="b c"><use y="8"/></ul>'
    >>> compact("<div><p>x</p>\\n<p>y</p>\\n</div> <p>z</p> and")
    '<div><p>x<p>y</div><p>z</p> and'
    """

    def shorten(match: re.Match[str]) -> str:
        if match["spared"]:
            return match[0]
        if match["apostrophe"]:
            return "'"
        return f"={match['value']}" if match["value"] else ""

    return SPARED.sub(shorten, page)


def compact_style(css: str) -> str:
    """Without comments, indentation and the space around punctuation.

    >>> compact_style('/* Why. */\\na, i { color: red; }\\n@media print {\\n  b::after { content: ": "; }\\n}\\n')
    'a,i{color:red}@media print{b::after{content:": "}}'
    """
    lines = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL).splitlines()
    text = "".join(f"{line.strip()} " for line in lines)
    return re.sub(
        r'("[^"]*")|;?\s*([{}])\s*|([,;:]) ', lambda match: "".join(filter(None, match.groups())), text
    ).strip()


def compact_script(source: str) -> str:
    """Without indentation and lines that are comments.

    >>> compact_script("// Why.\\nif (x) {\\n  y(); // z\\n}\\n")
    'if (x) {\\ny(); // z\\n}\\n'
    """
    lines = (line.strip() for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))
