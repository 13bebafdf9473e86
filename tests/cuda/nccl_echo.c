/* A libnccl that does nothing: each function notes its name and arguments, and returns 4, which libckptinterpose never
 * returns by itself. Functions that make communicators succeed. */
#include <stdint.h>
#include <string.h>

typedef struct {
  char internal[128];
} unique_id;

const char* echo_name = "";
uint64_t echo_arguments[8];
void* echo_made = &echo_made;

#define NOTE(...)                        \
  const uint64_t all[8] = {__VA_ARGS__}; \
  echo_name = __func__;                  \
  memcpy(echo_arguments, all, sizeof all)
#define P(pointer) (uint64_t)(uintptr_t)(pointer)
#define I(number) (uint64_t)(number)
#define ECHO(name, parameters, ...) \
  int name parameters;              \
  int name parameters {             \
    NOTE(__VA_ARGS__);              \
    return 4;                       \
  }
#define MAKES(name, out, parameters, ...) \
  int name parameters;                    \
  int name parameters {                   \
    NOTE(__VA_ARGS__);                    \
    *(out) = echo_made;                   \
    return 0;                             \
  }

ECHO(ncclAllReduce, (const void* a, void* b, size_t n, int t, int op, void* c, void* s), P(a), P(b), n, I(t), I(op),
     P(c), P(s))
ECHO(ncclReduceScatter, (const void* a, void* b, size_t n, int t, int op, void* c, void* s), P(a), P(b), n, I(t), I(op),
     P(c), P(s))
ECHO(ncclAllGather, (const void* a, void* b, size_t n, int t, void* c, void* s), P(a), P(b), n, I(t), P(c), P(s))
ECHO(ncclAlltoAll, (const void* a, void* b, size_t n, int t, void* c, void* s), P(a), P(b), n, I(t), P(c), P(s))
ECHO(ncclReduce, (const void* a, void* b, size_t n, int t, int op, int r, void* c, void* s), P(a), P(b), n, I(t), I(op),
     I(r), P(c), P(s))
ECHO(ncclBroadcast, (const void* a, void* b, size_t n, int t, int r, void* c, void* s), P(a), P(b), n, I(t), I(r), P(c),
     P(s))
ECHO(ncclGather, (const void* a, void* b, size_t n, int t, int r, void* c, void* s), P(a), P(b), n, I(t), I(r), P(c),
     P(s))
ECHO(ncclScatter, (const void* a, void* b, size_t n, int t, int r, void* c, void* s), P(a), P(b), n, I(t), I(r), P(c),
     P(s))
ECHO(ncclBcast, (void* a, size_t n, int t, int r, void* c, void* s), P(a), n, I(t), I(r), P(c), P(s))
ECHO(ncclSend, (const void* a, size_t n, int t, int r, void* c, void* s), P(a), n, I(t), I(r), P(c), P(s))
ECHO(ncclRecv, (void* a, size_t n, int t, int r, void* c, void* s), P(a), n, I(t), I(r), P(c), P(s))
ECHO(ncclCommCount, (void* c, int* a), P(c), P(a))
ECHO(ncclCommCuDevice, (void* c, int* a), P(c), P(a))
ECHO(ncclCommUserRank, (void* c, int* a), P(c), P(a))
ECHO(ncclCommFinalize, (void* c), P(c))
ECHO(ncclCommRegister, (void* c, void* a, size_t n, void** b), P(c), P(a), n, P(b))
ECHO(ncclCommDeregister, (void* c, void* a), P(c), P(a))
ECHO(ncclRedOpCreatePreMulSum, (int* o, void* a, int t, int r, void* c), P(o), P(a), I(t), I(r), P(c))
ECHO(ncclRedOpDestroy, (int o, void* c), I(o), P(c))
ECHO(ncclCommDestroy, (void* c), P(c))
ECHO(ncclCommAbort, (void* c), P(c))
ECHO(ncclCommGetAsyncError, (void* c, int* e), P(c), P(e))
ECHO(ncclGroupStart, (void), 0)
ECHO(ncclGroupEnd, (void), 0)
MAKES(ncclCommInitRank, c, (void** c, int n, unique_id id, int r), P(c), I(n), I(id.internal[127]), I(r))
MAKES(ncclCommInitRankConfig, c, (void** c, int n, unique_id id, int r, void* f), P(c), I(n), I(id.internal[127]), I(r),
      P(f))
MAKES(ncclCommInitRankScalable, c, (void** c, int n, int r, int k, unique_id* id, void* f), P(c), I(n), I(r), I(k),
      P(id), P(f))
MAKES(ncclCommInitAll, c, (void** c, int n, const int* d), P(c), I(n), P(d))
MAKES(ncclCommSplit, m, (void* c, int k, int y, void** m, void* f), P(c), I(k), I(y), P(m), P(f))
MAKES(ncclCommShrink, m, (void* c, int* w, int n, void** m, void* f, int g), P(c), P(w), I(n), P(m), P(f), I(g))

const char* ncclGetLastError(void* c);
const char* ncclGetLastError(void* c) {
  NOTE(P(c));
  return "an error";
}
