C_API: object
"""PyCapsule named fakegpu._core.capi.C_API around a const fg_core_api_t *."""
ABI_VERSION: int
