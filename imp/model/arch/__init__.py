"""One file per architecture family, found by the `model_type` of the checkpoint's config.

A file registers nothing: it defines `MODEL_TYPES` and `build(checkpoint, context) -> ops.Model`.
"""

from __future__ import annotations

import importlib
import pkgutil
from copy import copy
from functools import cache
from types import ModuleType

from ...weights.checkpoint import Checkpoint
from ..config import Config, Unsupported
from ..ops import Model
from ..rescaling import OWN, Rescaling, rescaled


@cache
def families() -> dict[str, ModuleType]:
    """model_type -> the module that builds it."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found.update(dict.fromkeys(getattr(module, "MODEL_TYPES", ()), module))
    return found


def build(checkpoint: Checkpoint, context: int = 0, rescaling: Rescaling = OWN) -> Model:
    """The model of a checkpoint. `context` bounds the position tables; 0: what the model was trained for, and more is
    refused (config.positions). rescaling: of its positions, where that is not the model's own. Raises InvalidModel,
    UnsupportedModel, ContextTooLong."""
    if rescaling != OWN:
        checkpoint = copy(checkpoint)
        checkpoint.config = rescaled(checkpoint.config, rescaling)
    kind = Config(checkpoint.config).text("model_type")
    if kind not in families():
        raise Unsupported(f'architecture "{kind}" is not supported; supported: {", ".join(sorted(families()))}')
    return families()[kind].build(checkpoint, context)
