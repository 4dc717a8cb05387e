"""The page without the markup that HTML lets a page leave out: a phone waits for every byte."""

from __future__ import annotations

import re

OPTIONAL_ENDS = ("td", "th", "tr", "thead", "tbody", "colgroup", "li", "dt", "dd", "option")
# Jinja writes every quote and every < of a text as an entity, so both stand in tags alone, or in style and script.
SPARED = re.compile(
    r"<(?P<spared>style|script)>.*?</(?P=spared)>"
    rf"|\s*</(?:{'|'.join(OPTIONAL_ENDS)})>\s*"
    r"""|="(?P<value>[^\s"'=<>`&]+)"(?=[ >])""",  # before /> the slash would belong to the value
    re.DOTALL | re.ASCII,
)


def compact(page: str) -> str:
    """Without end tags that are implied and without quotes around values that need none.

    >>> compact('<ul class="rows">\\n<li id="a">x</li>\\n<li class="b c"><use y="8"/></li>\\n</ul>')
    '<ul class=rows>\\n<li id=a>x<li class="b c"><use y="8"/></ul>'
    """

    def shorten(match: re.Match[str]) -> str:
        if match["spared"]:
            return match[0]
        return f"={match['value']}" if match["value"] else ""

    return SPARED.sub(shorten, page)


def compact_style(css: str) -> str:
    """Without comments, indentation and the space around braces.

    >>> compact_style("/* Why. */\\na { color: red; }\\n@media print {\\n  b::after { content: ': '; }\\n}\\n")
    "a{color: red}@media print{b::after{content: ': '}}"
    """
    lines = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL).splitlines()
    return re.sub(r";?\s*([{}])\s*", r"\1", "".join(f"{line.strip()} " for line in lines)).strip()
