"""`cortiq verify` of a CMF file: its hashes, and the signatures beside it."""

from __future__ import annotations

from pathlib import Path

from cortiq.cli.render import counted, echo, print_json, progress_bar


def verify_container(path: Path, key: str | None, strict: bool, as_json: bool) -> bool:
    """Check a model's files; print what was found, and return whether all is well.

    Parameters
    ----------
    key : file of the public key that must have signed them. strict : check all that a file says.
    """
    from cortiq.formats.cmf.reader import open_cmf
    from cortiq.receipts.file_signature import check_signature
    from cortiq.receipts.signing import fingerprint_of, load_public_key

    pinned = None if key is None else load_public_key(Path(key))
    with open_cmf(path, strict) as file:
        with progress_bar() as bar:
            bar("Checking hashes", 0, 1)
            problems = list(file.problems())
        tensors, files = len(file.entries), file.paths
    signed = [check_signature(part, pinned) for part in files]
    by = sorted({one.public_key for one in signed if one is not None})
    if pinned is not None and None in signed:
        problems.append("not signed by the key that is asked for: there is no .sig beside it")
    if as_json:
        print_json({"intact": not problems, "problems": problems, "signed_by": by})
        return not problems
    for problem in problems:
        echo(problem)
    if not problems:
        echo(f"intact: {counted(tensors, 'tensor')} in {counted(len(files), 'file')}")
    echo(f"signed by {', '.join(map(fingerprint_of, by))}" if by else "not signed")
    return not problems
