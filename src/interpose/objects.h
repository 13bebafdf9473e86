/* Looks at the libraries that are loaded in this process. Thread-safe. */
#ifndef CKPT_INTERPOSE_OBJECTS_H
#define CKPT_INTERPOSE_OBJECTS_H

/* Returns NCCL's own function of this name, in whatever way NCCL was loaded. Keeps it in `*found` for later calls.
 * Returns null if there is none. Then a line on stderr says so, once for each function. */
void* nccl_function(void* _Atomic* found, const char* name);
/* Does what ckpt_interpose_static_nccl_function (interface.h) says. */
const char* static_nccl(void);
/* The path of this library if it was loaded by dlopen(), so that nobody's calls come through it. Null if it was
 * preloaded or linked. */
const char* own_path_if_loaded_late(void);

#endif
