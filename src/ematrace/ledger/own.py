"""Claims that a user's own experiments bring along, kept beside their results as data, so that reading runs no code."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from ematrace.files import write_atomically
from ematrace.ledger.claims import Claims, ClaimsError
from ematrace.ledger.reading import load_claims, parse_claims

FILE = "claims.toml"


def with_command(text: str, command: str) -> str:
    """The claims of an experiment with the command that tests them; a JSON string is one of TOML, too."""
    return f"command = {json.dumps(command)}\n{text}"


def keep_claims(text: str, folder: Path, experiment: str, command: str) -> None:
    """Write the claims of an experiment beside its results, or take away those that it no longer has.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> own = 'X1 = { part = "extension", claim = "Traces help.", paper = "not in the paper" }'
    >>> with TemporaryDirectory() as folder:
    ...     keep_claims(own, Path(folder), "mine", command="ematrace reproduce mine.py")
    ...     load_claims(Path(folder) / "mine" / "claims.toml")["X1"].command
    'ematrace reproduce mine.py'
    """
    path = folder / experiment / FILE
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, with_command(text, command).encode())
    else:
        path.unlink(missing_ok=True)


def with_kept_claims(claims: Claims, folder: Path, but: Collection[str] = ()) -> Claims:
    """And the claims that lie in a folder of results, but for those of the experiments in `but`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> own = 'X1 = { part = "extension", claim = "Traces help.", paper = "not in the paper" }'
    >>> with TemporaryDirectory() as folder:
    ...     keep_claims(own, Path(folder), "mine", command="ematrace reproduce mine.py")
    ...     all_claims = with_kept_claims(load_claims(), Path(folder))
    >>> all_claims["X1"].claim, "C01" in all_claims
    ('Traces help.', True)
    """
    for path in sorted(folder.glob(f"*/{FILE}")):
        if path.parent.name not in but:
            claims = _joined(claims, load_claims(path), path)
    return claims


def with_own_claims(claims: Claims, text: str, name: str, command: str) -> Claims:
    """And those of an experiment of the user's, which is called `name`.

    >>> own = 'X1 = { part = "extension", claim = "Traces help.", paper = "not in the paper" }'
    >>> claims = with_own_claims(load_claims(), own, "mine.py", command="ematrace reproduce mine.py")
    >>> claims["X1"].command, "C01" in claims
    ('ematrace reproduce mine.py', True)
    """
    return _joined(claims, parse_claims(with_command(text, command), name), name) if text else claims


def _joined(claims: Claims, more: Claims, source: str | Path) -> Claims:
    try:
        return claims | more
    except ClaimsError as error:
        raise ClaimsError(f"{source}: {error}") from None
