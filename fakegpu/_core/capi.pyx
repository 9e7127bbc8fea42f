"""The capsule C_API: fg_core_api_t, the functions of this package that C calls without the GIL.

Import this module, then PyCapsule_Import(FG_CORE_CAPSULE). The table is static and lives as long as the process;
its functions live in frame, reduce and staging, which stay imported as long as this module is. Nothing else here.
"""

from cpython.pycapsule cimport PyCapsule_New

from fakegpu._core.fg cimport FG_CORE_ABI_VERSION, FG_CORE_CAPSULE, fg_core_api_t
from fakegpu._core.frame cimport body_check, frame_check, frame_write
from fakegpu._core.reduce cimport dtype_size, reduce_blocks
from fakegpu._core.staging cimport segment_check, segment_close, segment_create, segment_map, segment_open

cdef fg_core_api_t table

table.abi_version = FG_CORE_ABI_VERSION
table.struct_size = sizeof(fg_core_api_t)
table.frame_write = frame_write
table.frame_check = frame_check
table.body_check = body_check
table.reduce = reduce_blocks
table.dtype_size = dtype_size
table.segment_create = segment_create
table.segment_open = segment_open
table.segment_map = segment_map
table.segment_close = segment_close
table.segment_check = segment_check

C_API = PyCapsule_New(&table, FG_CORE_CAPSULE, NULL)
ABI_VERSION = table.abi_version
