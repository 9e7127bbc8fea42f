"""Shared memory between processes: segments (memfd) and the control segment of a communicator.

A segment has no name. Other processes reach it as /proc/<pid>/fd/<fd> and compare the inode, or are handed the
descriptor. So nothing is ever unlinked or reclaimed: when the last process that maps it or holds its descriptor is
gone, killed or not, the kernel frees the memory, and /dev/shm never shows an entry.
The functions serve the C interposer through the capsule; the classes serve the coordinator and the Python client.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport EINTR, ENOMEM, errno
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memset, strerror

from fakegpu._core.fg cimport *

cdef extern from *:
    """
    #include <fcntl.h>
    #include <limits.h>
    #include <linux/futex.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static long fg_futex_wake_all(uint32_t *word) { return syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, 0, 0, 0); }
    static uint32_t fg_load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
    static void fg_store(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }
    static int fg_set_once(uint32_t *word, uint32_t value) {
        uint32_t none = 0;
        return __atomic_compare_exchange_n(word, &none, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    /* sealed against shrinking: a peer that has it mapped can not be killed by SIGBUS */
    static int fg_memfd(uint64_t bytes) {
        int fd = memfd_create("fakegpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0) return -1;
        if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
            return fd;
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    """
    long fg_futex_wake_all(uint32_t *word) nogil
    uint32_t fg_load(const uint32_t *word) nogil
    void fg_store(uint32_t *word, uint32_t value) nogil
    int fg_set_once(uint32_t *word, uint32_t value) nogil
    int fg_memfd(uint64_t bytes) nogil
    ctypedef struct stat_t "struct stat":
        uint64_t st_size, st_ino
        uint32_t st_mode
    int fstat(int fd, stat_t *out) nogil
    int S_ISREG(uint32_t mode) nogil
    int c_open "open"(const char *path, int flags) nogil
    int c_close "close"(int fd) nogil
    void *mmap(void *at, size_t bytes, int prot, int flags, int fd, long offset) nogil
    int munmap(void *at, size_t bytes) nogil
    void *MAP_FAILED
    int O_RDWR, O_CLOEXEC, O_NONBLOCK, O_NOCTTY, PROT_READ, PROT_WRITE, MAP_SHARED, MAP_NORESERVE

cdef enum:
    WHY_BYTES = 200


cdef int failed(const char *call, char *why, size_t why_bytes) noexcept nogil:
    cdef int code = errno
    snprintf(why, why_bytes, "segment: %s: %s", call, strerror(code))
    return FG_OUT_OF_MEMORY if code == ENOMEM else FG_SYSTEM


cdef int segment_map(int fd, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil:
    """Map a descriptor's whole file. The descriptor is taken over in any case: a failure closes it."""
    cdef stat_t info
    cdef int status
    memset(out, 0, sizeof(fg_segment_t))
    out.fd = -1
    if fstat(fd, &info):
        status = failed("fstat", why, why_bytes)
    elif not S_ISREG(info.st_mode) or info.st_size == 0:
        snprintf(why, why_bytes, "segment: descriptor %d: found %s, expected a memory file", fd,
                 b"an empty file" if S_ISREG(info.st_mode) else b"no file")
        status = FG_INVALID_ARGUMENT
    else:
        out.base = <uint8_t *>mmap(NULL, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
        if out.base != MAP_FAILED:
            out.fd, out.bytes, out.inode = fd, info.st_size, info.st_ino
            return FG_OK
        out.base = NULL
        status = failed("mmap", why, why_bytes)
    if fd >= 0:
        c_close(fd)
    return status


cdef int segment_create(uint64_t bytes, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil:
    cdef int fd
    memset(out, 0, sizeof(fg_segment_t))
    out.fd = -1
    if bytes == 0 or bytes > <uint64_t>1 << 62:
        snprintf(why, why_bytes, "segment: bytes: found %llu, expected 1 to 2**62", <unsigned long long>bytes)
        return FG_INVALID_ARGUMENT
    fd = fg_memfd(bytes)
    if fd < 0:
        return failed("memfd_create", why, why_bytes)
    return segment_map(fd, out, why, why_bytes)


cdef int segment_open(const fg_buffer_ref_t *ref, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil:
    """Map the whole segment that ref lies in; refused unless inode and range fit. The mapping keeps no descriptor."""
    cdef char path[64]
    cdef int fd, status
    memset(out, 0, sizeof(fg_segment_t))
    out.fd = -1
    if ref.pid == 0 or ref.fd < 0:
        snprintf(why, why_bytes, "segment: reference: found pid %u fd %d, expected a mappable buffer", ref.pid, ref.fd)
        return FG_INVALID_ARGUMENT
    snprintf(path, sizeof(path), "/proc/%u/fd/%d", ref.pid, ref.fd)
    fd = c_open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
    while fd < 0 and errno == EINTR:
        fd = c_open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
    if fd < 0:
        return failed(path, why, why_bytes)
    status = segment_map(fd, out, why, why_bytes)
    if status:
        return status
    c_close(fd)
    out.fd = -1
    if out.inode == ref.inode and segment_check(out, ref.offset, ref.bytes) == FG_OK:
        return FG_OK
    snprintf(why, why_bytes, "segment: %s: found inode %llu and %llu bytes, expected inode %llu and %llu bytes at %llu",
             path, <unsigned long long>out.inode, <unsigned long long>out.bytes, <unsigned long long>ref.inode,
             <unsigned long long>ref.bytes, <unsigned long long>ref.offset)
    segment_close(out)
    return FG_LIMIT if out.inode == ref.inode else FG_INVALID_ARGUMENT


cdef void segment_close(fg_segment_t *segment) noexcept nogil:
    """Unmap and close; closing twice does nothing. `inode` and `bytes` stay for texts."""
    if segment.base != NULL:
        munmap(segment.base, segment.bytes)
    if segment.fd >= 0:
        c_close(segment.fd)
    segment.base, segment.fd = NULL, -1


cdef int segment_check(const fg_segment_t *segment, uint64_t offset, uint64_t bytes) noexcept nogil:
    if segment.base == NULL or offset > segment.bytes or bytes > segment.bytes - offset:
        return FG_LIMIT
    return FG_OK


# ---- Python --------------------------------------------------------------------------------------------------

cdef int raise_for(int status, const char *why) except -1:
    if status == FG_OK:
        return 0
    text = why.decode("utf-8", "replace")
    if status == FG_OUT_OF_MEMORY:
        raise MemoryError(text)
    raise OSError(text) if status == FG_SYSTEM else ValueError(text)


cdef class Segment:
    """An anonymous shared segment, mapped. Use create, open or from_fd; a context manager; close is idempotent.

    A buffer itself (memoryview(segment)); `view` gives a bounded part. Views must go before close: it is refused
    while one exists, since the memory would vanish under it.
    """
    cdef fg_segment_t segment
    cdef int views

    def __cinit__(self):
        self.segment.fd = -1

    def __dealloc__(self):
        segment_close(&self.segment)

    @classmethod
    def create(cls, uint64_t bytes):
        cdef Segment self = cls.__new__(cls)
        cdef char why[WHY_BYTES]
        raise_for(segment_create(bytes, &self.segment, why, WHY_BYTES), why)
        return self

    @classmethod
    def open(cls, uint32_t pid, int32_t fd, uint64_t inode, uint64_t offset=0, uint64_t bytes=0):
        """The segment of another process; ValueError: another inode, or offset + bytes beyond its end."""
        cdef Segment self = cls.__new__(cls)
        cdef char why[WHY_BYTES]
        cdef fg_buffer_ref_t ref
        ref.pid, ref.fd, ref.inode, ref.offset, ref.bytes = pid, fd, inode, offset, bytes
        raise_for(segment_open(&ref, &self.segment, why, WHY_BYTES), why)
        return self

    @classmethod
    def from_fd(cls, int fd):
        """Map a descriptor, which belongs to the segment from here on, in failure, too."""
        cdef Segment self = cls.__new__(cls)
        cdef char why[WHY_BYTES]
        raise_for(segment_map(fd, &self.segment, why, WHY_BYTES), why)
        return self

    @property
    def fd(self):
        return self.segment.fd

    @property
    def inode(self):
        return self.segment.inode

    @property
    def bytes(self):
        return self.segment.bytes

    @property
    def closed(self):
        return self.segment.base == NULL

    def view(self, uint64_t offset, uint64_t bytes):
        """A writable memoryview of that part; ValueError beyond the end or after close."""
        if segment_check(&self.segment, offset, bytes):
            raise ValueError(f"segment: view: found {bytes} bytes at {offset}, expected at most "
                             f"{0 if self.closed else self.segment.bytes} in all")
        return memoryview(self)[offset:offset + bytes]

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.segment.base == NULL:
            raise ValueError("segment: buffer: found a closed segment, expected an open one")
        PyBuffer_FillInfo(buffer, self, self.segment.base, <Py_ssize_t>self.segment.bytes, False, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.views -= 1

    def close(self):
        if self.views:
            raise BufferError(f"segment: close: found {self.views} views, expected none")
        segment_close(&self.segment)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef class ControlSegment(Segment):
    """The control segment of a communicator (fg_control_t), made and written by the coordinator."""

    @classmethod
    def create(cls, uint32_t nranks, uint64_t comm_id):
        if not 1 <= nranks <= FG_MAX_RANKS:
            raise ValueError(f"control segment: nranks: found {nranks}, expected 1 to {FG_MAX_RANKS}")
        cdef ControlSegment self = cls.__new__(cls)
        cdef char why[WHY_BYTES]
        raise_for(segment_create(fg_control_bytes(nranks), &self.segment, why, WHY_BYTES), why)
        cdef fg_control_t *control = <fg_control_t *>self.segment.base
        control.version, control.nranks, control.slots = FG_CORE_ABI_VERSION, nranks, FG_CONTROL_SLOTS
        control.comm, control.bytes = comm_id, self.segment.bytes
        fg_store(&control.magic, FG_CONTROL_MAGIC)
        return self

    cdef fg_control_t *control(self) except NULL:
        if self.segment.base == NULL:
            raise ValueError("control segment: found it closed, expected open")
        return <fg_control_t *>self.segment.base

    @property
    def nranks(self):
        return self.control().nranks

    @property
    def abort(self):
        return fg_load(&self.control().abort)

    def set_abort(self, uint32_t status):
        """Stop every member: the first status stays; all who sleep on the abort word or a barrier are woken."""
        cdef fg_control_t *control = self.control()
        cdef uint32_t slot
        if status == 0:
            raise ValueError("control segment: set_abort: found status 0, expected an error")
        fg_set_once(&control.abort, status)
        fg_futex_wake_all(&control.abort)
        for slot in range(<uint32_t>FG_CONTROL_SLOTS):
            fg_futex_wake_all(&fg_control_barrier_at(control, slot).arrived)

    def set_dead(self, uint32_t rank):
        fg_store(&fg_control_rank_at(self.control(), self.checked(rank)).dead, 1)

    def is_dead(self, uint32_t rank):
        return fg_load(&fg_control_rank_at(self.control(), self.checked(rank)).dead) != 0

    def is_busy(self, uint32_t rank):
        """Whether the rank may be reading or writing its peers' memory."""
        return fg_load(&fg_control_rank_at(self.control(), self.checked(rank)).busy) != 0

    cdef uint32_t checked(self, uint32_t rank) except? 0xffffffff:
        if rank >= self.control().nranks:
            raise ValueError(f"control segment: rank: found {rank}, expected 0 to {self.control().nranks - 1}")
        return rank
