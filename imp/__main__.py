"""`imp-server` and `python -m imp`: settings in, exit code out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from imp import models, settings
from imp.beside import Beside


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
    early = _reading_vocabulary(chosen)
    from imp import app

    return app.run(chosen, early)


def _reading_vocabulary(chosen: settings.Settings) -> Beside | None:
    """The process of encoder.py, begun before imports take as long here as it does there. None: which model there will
    be is not plain to see; then it is begun, or what is wrong is said, where the model is loaded."""
    own, paths = chosen.model, chosen.paths
    named = own.model if own.models_dir is not None else own.model or paths.default_model
    try:
        if named is not None and own.script is None:
            return Beside("imp.encoder", models.find_model(str(named), own.models_dir))
        if own.script is None and own.models_dir is None and (path := models.fetched(paths.model_cache)) is not None:
            return Beside("imp.encoder", path)
    except (models.ModelError, OSError):
        pass
    return None


if __name__ == "__main__":
    sys.exit(main())
