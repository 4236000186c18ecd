"""`imp-server` and `python -m imp`: settings in, exit code out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from imp import settings


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 ok, 1 invalid argument, 2 host out of memory, 3 device, 4 file not found, 5 invalid model,
    6 unsupported, 7 internal, 8 cancelled, 9 capacity."""
    try:
        chosen = settings.load(sys.argv[1:] if argv is None else argv)
    except settings.SettingsError as error:
        print(f"imp-server: error: {error}", file=sys.stderr)
        return error.exit_code
    # after --help and errors, which need no second of imports
    if chosen.action is not settings.Action.SERVE:
        from imp import check

        return check.run(chosen)
    from imp import app

    return app.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
