/* The bridge to Python: finds the interpreter of the process, or loads libpython once into a program that has none, and
 * imports fakegpu._core.capi from it. Nothing here links against libpython and nothing runs in a constructor: all
 * symbols are looked up at the first communicator. Once the table of fakegpu._core is there, nobody needs the GIL.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include "bridge.h"

typedef struct { /* the part of the C API used here; all of it is in the stable ABI */
    int (*IsInitialized)(void);
    const char *(*GetVersion)(void);
    int (*GILState_Ensure)(void);
    void (*GILState_Release)(int);
    int (*GILState_Check)(void);
    void *(*SaveThread)(void);
    void (*RestoreThread)(void *);
    void *(*ImportModule)(const char *);
    void *(*CapsuleImport)(const char *, int);
    void (*DecRef)(void *);
    void (*ErrFetch)(void **, void **, void **);
    void (*ErrClear)(void);
    void *(*ObjectStr)(void *);
    const char *(*AsUTF8)(void *);
    void *(*SysGetObject)(const char *);
    int (*ListInsert)(void *, ssize_t, void *);
    void *(*UnicodeFromString)(const char *);
    void *(*BytesFromStringAndSize)(const char *, ssize_t);
    int (*BytesAsStringAndSize)(void *, char **, ssize_t *);
    void *(*CallMethod)(void *, const char *, const char *, ...);
    wchar_t *(*DecodeLocale)(const char *, size_t *);
    void (*SetProgramName)(const wchar_t *);
    void (*InitializeEx)(int);
    int (*IsFinalizing)(void); /* optional; 3.13 made the name public */
} python_api_t;

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
#define SYMBOL(field, name) {name, offsetof(python_api_t, field)}
    SYMBOL(IsInitialized, "Py_IsInitialized"), SYMBOL(GetVersion, "Py_GetVersion"),
    SYMBOL(GILState_Ensure, "PyGILState_Ensure"), SYMBOL(GILState_Release, "PyGILState_Release"),
    SYMBOL(GILState_Check, "PyGILState_Check"), SYMBOL(SaveThread, "PyEval_SaveThread"),
    SYMBOL(RestoreThread, "PyEval_RestoreThread"), SYMBOL(ImportModule, "PyImport_ImportModule"),
    SYMBOL(CapsuleImport, "PyCapsule_Import"), SYMBOL(DecRef, "Py_DecRef"), SYMBOL(ErrFetch, "PyErr_Fetch"),
    SYMBOL(ErrClear, "PyErr_Clear"), SYMBOL(ObjectStr, "PyObject_Str"), SYMBOL(AsUTF8, "PyUnicode_AsUTF8"),
    SYMBOL(SysGetObject, "PySys_GetObject"), SYMBOL(ListInsert, "PyList_Insert"),
    SYMBOL(UnicodeFromString, "PyUnicode_FromString"),
    SYMBOL(BytesFromStringAndSize, "PyBytes_FromStringAndSize"),
    SYMBOL(BytesAsStringAndSize, "PyBytes_AsStringAndSize"), SYMBOL(CallMethod, "PyObject_CallMethod"),
    SYMBOL(DecodeLocale, "Py_DecodeLocale"), SYMBOL(SetProgramName, "Py_SetProgramName"),
    SYMBOL(InitializeEx, "Py_InitializeEx"),
#undef SYMBOL
};

static python_api_t py;
static atomic_int py_known; /* 0 not looked up, 1 found, 2 not there */
static pthread_mutex_t lookup_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(const fg_core_api_t *) core_api;

/* Fills the table; false when the process has no interpreter. `retry` looks again after a miss. */
static bool find_python(void *handle, bool retry) {
    int known = atomic_load_explicit(&py_known, memory_order_acquire);
    if (known == 1 || (known == 2 && !retry)) {
        return known == 1;
    }
    pthread_mutex_lock(&lookup_lock);
    if (atomic_load(&py_known) != 1) {
        size_t found = 0, count = sizeof symbols / sizeof symbols[0];
        for (size_t i = 0; i < count; i++) {
            void *address = dlsym(handle, symbols[i].name);
            memcpy((char *)&py + symbols[i].offset, &address, sizeof address);
            if (!address) {
                break; /* a program without Python stops at the first name */
            }
            found++;
        }
        void *finalizing = found ? dlsym(handle, "Py_IsFinalizing") : NULL;
        if (found && !finalizing) {
            finalizing = dlsym(handle, "_Py_IsFinalizing");
        }
        memcpy(&py.IsFinalizing, &finalizing, sizeof finalizing);
        atomic_store_explicit(&py_known, found == count ? 1 : 2, memory_order_release);
    }
    known = atomic_load(&py_known);
    pthread_mutex_unlock(&lookup_lock);
    return known == 1;
}

static bool python_usable(void) {
    return find_python(RTLD_DEFAULT, false) && py.IsInitialized() && !(py.IsFinalizing && py.IsFinalizing());
}

void *fg_rt_gil_unlock(void) {
    return python_usable() && py.GILState_Check() ? py.SaveThread() : NULL;
}

void fg_rt_gil_relock(void *token) {
    if (token) {
        py.RestoreThread(token);
    }
}

/* The folder that holds the package fakegpu, from where this library lies: <root>/fakegpu/lib/libfakegpu_rt.so. */
static bool package_root(char out[PATH_MAX]) {
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void *)&package_root, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) {
        return false;
    }
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            return false;
        }
        *slash = 0;
    }
    memcpy(out, path, strlen(path) + 1);
    return true;
}

/* Minor version of the Python 3 that the extension was built for, from its file name; -1 = not told there. */
static int built_for_minor(const char *root) {
    char path[PATH_MAX];
    int minor = -1;
    if (snprintf(path, sizeof path, "%s/fakegpu/_core", root) >= (int)sizeof path) {
        return -1;
    }
    DIR *folder = opendir(path);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) {
        if (strncmp(e->d_name, "capi.cpython-3", 14) == 0) {
            minor = atoi(e->d_name + 14);
            break;
        }
    }
    if (folder) {
        closedir(folder);
    }
    return minor;
}

/* Error text of the Python exception that is set. GIL held. */
static int python_error(const char *doing) {
    void *type = NULL, *value = NULL, *trace = NULL;
    py.ErrFetch(&type, &value, &trace);
    void *text = value ? py.ObjectStr(value) : NULL;
    const char *why = text ? py.AsUTF8(text) : NULL;
    int status = fg_rt_set_error(FG_PYTHON, "%s failed: %s", doing, why ? why : "unknown reason");
    void *objects[] = {type, value, trace, text};
    for (size_t i = 0; i < 4; i++) {
        if (objects[i]) {
            py.DecRef(objects[i]);
        }
    }
    py.ErrClear();
    return status;
}

static void add_to_sys_path(const char *root) {
    void *list = py.SysGetObject("path"); /* borrowed */
    void *item = list ? py.UnicodeFromString(root) : NULL;
    if (item) {
        if (py.ListInsert(list, 1 << 20, item)) { /* past the end: appends */
            py.ErrClear();
        }
        py.DecRef(item);
    }
}

/* Imports the capsule. GIL held, which also keeps other threads out. */
static int import_core(void) {
    char root[PATH_MAX];
    bool rooted = package_root(root);
    int built = rooted ? built_for_minor(root) : -1;
    int major = 0, minor = 0;
    if (sscanf(py.GetVersion(), "%d.%d", &major, &minor) == 2 && built >= 0 && (major != 3 || minor != built)) {
        return fg_rt_set_error(FG_PYTHON, "this process runs Python %d.%d, but fakegpu was built for Python 3.%d; "
                               "install fakegpu for the Python that runs the program", major, minor, built);
    }
    void *module = py.ImportModule("fakegpu._core.capi");
    if (!module && rooted) {
        py.ErrClear();
        add_to_sys_path(root);
        module = py.ImportModule("fakegpu._core.capi");
    }
    if (!module) {
        return python_error("importing fakegpu._core.capi");
    }
    const fg_core_api_t *api = py.CapsuleImport(FG_CORE_CAPSULE, 0); /* the module stays referenced for good */
    if (!api) {
        return python_error("reading the capsule " FG_CORE_CAPSULE);
    }
    if (api->abi_version != FG_CORE_ABI_VERSION || api->struct_size < sizeof *api) {
        return fg_rt_set_error(FG_PYTHON, "fakegpu._core has ABI %u with %u bytes, expected %u with %zu; the libraries "
                               "and the Python package are of different builds: rebuild both", api->abi_version,
                               api->struct_size, FG_CORE_ABI_VERSION, sizeof *api);
    }
    atomic_store_explicit(&core_api, api, memory_order_release);
    return FG_OK;
}

/* Loads libpython into a program that has no interpreter and starts it without signal handlers. */
static int load_python(void) {
    const fg_config_t *config = fg_rt_config();
    char root[PATH_MAX], file[64];
    int built = package_root(root) ? built_for_minor(root) : -1;
    snprintf(file, sizeof file, "libpython3.%d.so.1.0", built);
    const char *library = config->libpython && *config->libpython ? config->libpython : file;
    void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (!handle) {
        return fg_rt_set_error(FG_PYTHON, "cannot load %s (%s); set FAKEGPU_LIBPYTHON to the shared library of the "
                               "Python that fakegpu is installed in (./fgpu does it; a Python built without "
                               "--enable-shared has none)", library, dlerror());
    }
    if (!find_python(handle, true)) {
        return fg_rt_set_error(FG_PYTHON, "%s lacks a function of the Python C API that fakegpu needs", library);
    }
    if (config->python_program && *config->python_program) {
        wchar_t *program = py.DecodeLocale(config->python_program, NULL);
        if (program) {
            py.SetProgramName(program); /* keeps the pointer: its environment's packages are found through it */
        }
    }
    py.InitializeEx(0);
    py.SaveThread(); /* the GIL belongs to whoever asks from now on */
    return FG_OK;
}

int fg_rt_core(const fg_core_api_t **out) {
    static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
    *out = atomic_load_explicit(&core_api, memory_order_acquire);
    if (*out) {
        return FG_OK;
    }
    if (!find_python(RTLD_DEFAULT, true) || !py.IsInitialized()) {
        pthread_mutex_lock(&start_lock); /* no interpreter, so nobody can hold its GIL while waiting here */
        int status = find_python(RTLD_DEFAULT, true) && py.IsInitialized() ? FG_OK : load_python();
        pthread_mutex_unlock(&start_lock);
        if (status) {
            return status;
        }
    }
    if (!python_usable()) {
        return fg_rt_set_error(FG_PYTHON, "the Python interpreter is shutting down");
    }
    int gil = py.GILState_Ensure();
    int status = atomic_load(&core_api) ? FG_OK : import_core();
    py.GILState_Release(gil);
    *out = atomic_load(&core_api);
    return status;
}

int fg_bridge_hmac_sha256(const char *key, const uint8_t challenge[32], uint8_t digest[32]) {
    if (!python_usable()) {
        return fg_rt_set_error(FG_PYTHON, "the Python interpreter is not usable for authentication");
    }
    int gil = py.GILState_Ensure();
    void *module = py.ImportModule("hmac");
    void *secret = py.BytesFromStringAndSize(key, (ssize_t)strlen(key));
    void *message = py.BytesFromStringAndSize((const char *)challenge, 32);
    void *result = module && secret && message ? py.CallMethod(module, "digest", "OOs", secret, message, "sha256") : NULL;
    char *bytes = NULL;
    ssize_t size = 0;
    int status = FG_OK;
    if (!result || py.BytesAsStringAndSize(result, &bytes, &size) || size != 32) {
        status = python_error("hmac.digest");
    } else {
        memcpy(digest, bytes, 32);
    }
    void *objects[] = {module, secret, message, result};
    for (size_t i = 0; i < 4; i++) {
        if (objects[i]) {
            py.DecRef(objects[i]);
        }
    }
    py.GILState_Release(gil);
    return status;
}
