"""What the surface names and this build does not have: asking for it is refused at the start, never passed over.

Whoever builds one of these deletes its line here and adds a setting.
"""

from __future__ import annotations

from .sources import Absent

_VISION = "vision"
_MTP = "model with heads for several tokens"
_RECURRENT = "recurrent models, hence no snapshots of them"

FLAGS = (
    Absent("--mmproj", _VISION),
    Absent("--allow-remote-images", _VISION),
    Absent("--max-images-per-request", _VISION),
    Absent("--speech-model", "speech models"),
    Absent("--video-model", "video runner"),
)
SWITCHES = ("--allow-remote-images",)  # take no value

KEYS = (
    Absent("runtime.prefill_batch", "limit on prompts per step", (0,)),
    Absent("runtime.warmup", "warm-up requests", (False,)),
    Absent("runtime.graph_prewarm", "choice: graphs are captured at the load", (True,)),
    Absent("runtime.decode_burst", "decode bursts", (0, 1)),
    Absent("kv_cache.block_size", "other block size than 16", (16,)),
    Absent("server.recurrent_snapshot_mb", _RECURRENT, (0,)),
    Absent("server.recurrent_snapshot_host_mb", _RECURRENT, (0,)),
    Absent("speculative.mtp_k", _MTP, (0, -1)),
    Absent("speculative.mtp_adaptive_k", _MTP, (False,)),
)
