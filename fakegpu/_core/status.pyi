TABLE: tuple[tuple[str, int, int, str], ...]
"""(name, code, ncclResult_t, text) of every status, from fg_status.h."""
