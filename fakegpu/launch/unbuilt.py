"""Settings that have a name already but nothing behind it yet: refused before anything starts.

A setting that is accepted and then ignored would be a silent lie. Each entry here goes when its feature lands.
Called by fakegpu.launch.job; the interposer refuses the same modes by itself (interposer/runtime/comm_init.c).
"""

from fakegpu.errors import SettingsError
from fakegpu.settings import BY_FIELD, Settings

_HINT = "use the default; the changelog says when this arrives"


def _found(settings: Settings) -> tuple[str, str] | None:
    """(field, what is missing) of the first setting that nothing acts on."""
    if settings.mode == "hybrid":
        return "mode", "real CUDA compute with simulated communication is not built yet"
    if settings.dist_mode == "proxy":
        return "dist_mode", "the control plane beside the real NCCL is not built yet"
    for field in ("tls_cert", "tls_ca"):
        if getattr(settings, field):
            return field, "libnccl.so.2 does not speak TLS; only `fgpu coordinator` and the Python client do"
    return None


def refuse_unbuilt(settings: Settings) -> None:
    """SettingsError for the first setting that is not built; names its variable, value and what is missing."""
    found = _found(settings)
    if found:
        field, missing = found
        variable = BY_FIELD[field]
        name = f"{variable.flag} ({variable.env})" if variable.flag else variable.env
        raise SettingsError(f"{name} is {str(getattr(settings, field))!r}: {missing}", _HINT)
