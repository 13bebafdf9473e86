#define _GNU_SOURCE
#include "interpose/objects.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char nccl_file_name[] = "libnccl.so.2";

/* The loaded object that has an address; null if none has. */
static const char* file_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fname : NULL;
}

static const char* own_file(void) { return file_of(nccl_file_name); }

static const char* base_name(const char* path) {
  const char* const slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

struct names {
  char** all;
  size_t count;
};

static int add_name(struct dl_phdr_info* info, size_t size_bytes, void* data) {
  (void)size_bytes;
  struct names* const names = data;
  if (info->dlpi_name == NULL || *info->dlpi_name == '\0') return 0;
  char** const larger = realloc(names->all, (names->count + 1) * sizeof *larger);
  if (larger == NULL) return 1;
  names->all = larger;
  names->all[names->count] = strdup(info->dlpi_name);
  return names->all[names->count] == NULL || ++names->count == 0;
}

/* The first loaded object besides this one that itself defines the function. Null if none does. */
static void* definition(const char* name) {
  struct names names = {NULL, 0};
  dl_iterate_phdr(add_name, &names); /* not more in there: it holds a lock of the loader */
  const char* const own = own_file();
  void* found = NULL;
  for (size_t i = 0; i < names.count; ++i) {
    void* const object = found == NULL ? dlopen(names.all[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (object != NULL) {
      void* const function = dlsym(object, name); /* of the object, or of one that it needs */
      const char* const file = function == NULL ? NULL : file_of(function);
      if (file != NULL && (own == NULL || strcmp(file, own) != 0)) found = function;
      dlclose(object);
    }
    free(names.all[i]);
  }
  free(names.all);
  return found;
}

static void* look_for(const char* name) {
  void* function = dlsym(RTLD_NEXT, name);
  if (function != NULL) return function;
  /* Loaded by an import of Python, for example, so not in the global scope. */
  void* const library = dlopen(nccl_file_name, RTLD_LAZY | RTLD_NOLOAD);
  if (library != NULL) {
    function = dlsym(library, name);
    dlclose(library);
  }
  return function != NULL ? function : definition(name);
}

void* nccl_function(void* _Atomic* found, const char* name) {
  static char missing;
  void* function = atomic_load_explicit(found, memory_order_acquire);
  if (function == &missing) return NULL;
  if (function != NULL) return function;
  function = look_for(name);
  if (function == NULL)
    fprintf(stderr,
            "libckptinterpose.so: NCCL has no function %s, so the call fails; update NCCL, or train without "
            "libckptinterpose.so\n",
            name);
  atomic_store_explicit(found, function == NULL ? &missing : function, memory_order_release);
  return function;
}

const char* static_nccl(void) {
  const void* const function = definition("ncclAllReduce");
  const char* const file = function == NULL ? NULL : file_of(function);
  return file == NULL || strncmp(base_name(file), "libnccl", strlen("libnccl")) == 0 ? NULL : file;
}

/* Objects that a program needs or that are preloaded come before the C library in the list of loaded objects, because
 * they need it. Those of dlopen() come after it. */
const char* own_path_if_loaded_late(void) {
  Dl_info info;
  void* own = NULL;
  if (dladdr1(nccl_file_name, &info, &own, RTLD_DL_LINKMAP) == 0) return NULL;
  for (const struct link_map* object = ((const struct link_map*)own)->l_prev; object != NULL; object = object->l_prev)
    if (strncmp(base_name(object->l_name), "libc.so.", strlen("libc.so.")) == 0) return info.dli_fname;
  return NULL;
}
