// A test double of libnccl.so.2: ranks are threads or processes of this machine, on the test double of a GPU, for tests
// alone. It behaves as NCCL's documentation says of communicators that do not block, wherever ckptengine depends on it;
// control.h makes rare days happen.
#include <cstring>
#include <random>

#include "../double/launch.hpp"
#include "communicator.hpp"
#include "control.h"
#include "faults.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using nccl_double::communicators;
using nccl_double::counters;
using nccl_double::faults;
using nccl_double::Operation;
using nccl_double::Operations;
namespace nccl = nccl_double::nccl;

struct nccl::Communicator {
  std::shared_ptr<nccl_double::Communicator> rank;
};

namespace {

constexpr int real_version = 22800;

// What a thread has begun with ncclGroupStart().
struct Group {
  int depth = 0;
  nccl::Result error = nccl::success;
  std::vector<std::pair<nccl::Communicator*, CUstream>> streams;
  std::map<nccl::Communicator*, Operations> operations;
};
thread_local Group group;  // NOLINT

// Sends to itself meet receives of the same group.
bool own_fit(const Operations& operations, int rank) {
  std::vector<std::size_t> sent, received;
  for (const Operation& operation : operations)
    if (operation.peer == rank) (operation.is_send ? sent : received).push_back(operation.size_bytes);
  return sent == received;
}

nccl::Result refuse(const Group& refused, nccl::Result result) {
  for (const auto& [comm, operations] : refused.operations) comm->rank->refuse(result);
  return result;
}

nccl::Result launch(Group ended) {
  for (const auto& [comm, operations] : ended.operations)
    if (!own_fit(operations, comm->rank->rank())) return refuse(ended, nccl::invalid_usage);
  for (const auto& [comm, stream] : ended.streams) comm->rank->launch(std::move(ended.operations[comm]), stream);
  return ended.streams.empty() ? nccl::success : nccl::in_progress;
}

nccl::Result check(const nccl::Communicator* comm, const void* data, std::size_t size_bytes, nccl::DataType type,
                   int peer) {
  if (comm == nullptr || type != nccl::uint8 || peer < 0 || peer >= comm->rank->ranks()) return nccl::invalid_argument;
  // Only what was begun before and has ended leaves it ready for more.
  const nccl::Result state = comm->rank->state();
  if (state != nccl::success) return state == nccl::in_progress ? nccl::invalid_argument : state;
  const bool is_there = size_bytes == 0 || cuda_double::bytes_at(data, size_bytes) != nullptr;
  return is_there ? nccl::success : nccl::invalid_argument;
}

nccl::Result add(const void* data, std::size_t size_bytes, nccl::DataType type, bool is_send, int peer,
                 nccl::Communicator* comm, CUstream stream) {
  if (const nccl::Result result = check(comm, data, size_bytes, type, peer); result != nccl::success) {
    if (comm != nullptr) comm->rank->refuse(result);
    return group.error = result;
  }
  auto& operations = group.operations[comm];
  if (operations.empty()) group.streams.emplace_back(comm, stream);
  operations.push_back({is_send, peer, cuda_double::bytes_at(data, size_bytes), size_bytes});
  return nccl::success;
}

}  // namespace

EXPORT nccl::Result ncclGetVersion(int* version) {
  *version = faults().version != 0 ? faults().version.load() : real_version;
  return nccl::success;
}

EXPORT const char* ncclGetErrorString(nccl::Result result) {
  switch (result) {
    case nccl::success:
      return "no error";
    case nccl::remote_error:
      return "remote process exited or there was a network error";
    case nccl::in_progress:
      return "NCCL operation in progress";
    case nccl::invalid_usage:
      return "invalid usage (as the test double found)";
    case nccl::invalid_argument:
      return "invalid argument (as the test double found)";
    default:
      return "unhandled error (as the test double was told)";
  }
}

EXPORT nccl::Result ncclGetUniqueId(nccl::UniqueId* id) {
  std::random_device random;
  const std::string name =
      "ckpt-nccl-double-" + std::to_string(random()) + "-" + std::to_string(random()) + "-" + std::to_string(random());
  *id = {};
  std::memcpy(id->internal, name.data(), name.size());
  return nccl::success;
}

EXPORT nccl::Result ncclCommInitRankConfig(nccl::Communicator** comm, int ranks, nccl::UniqueId id, int rank,
                                           nccl::Config* config) {
  const nccl::Config expected;
  if (config->magic != expected.magic || config->size < 32) return nccl::invalid_argument;
  if (config->blocking != 0) return nccl::invalid_usage;  // the test double knows no others
  if (ranks < 1 || ranks > nccl_double::ranks_max || rank < 0 || rank >= ranks) return nccl::invalid_argument;
  counters().max_ctas = config->max_ctas;
  while (faults().inits_held) std::this_thread::yield();
  *comm = new nccl::Communicator{std::make_shared<nccl_double::Communicator>(id.internal, ranks, rank)};
  (*comm)->rank->begin();
  return nccl::in_progress;
}

EXPORT nccl::Result ncclCommGetAsyncError(nccl::Communicator* comm, nccl::Result* error) {
  if (comm == nullptr) return nccl::invalid_argument;
  *error = comm->rank->state();
  return nccl::success;
}

EXPORT nccl::Result ncclCommAbort(nccl::Communicator* comm) {
  cuda_double::use();
  comm->rank->abort();
  delete comm;
  return nccl::success;
}

// Of memory that is there, once the ranks have met.
EXPORT nccl::Result ncclCommRegister(nccl::Communicator* comm, void* data, std::size_t size_bytes, void** handle) {
  if (comm == nullptr || comm->rank->state() != nccl::success) return nccl::invalid_argument;
  if (cuda_double::bytes_at(data, size_bytes) == nullptr) return nccl::invalid_argument;
  counters().registered_bytes += size_bytes;
  *handle = data;
  return nccl::success;
}

EXPORT nccl::Result ncclGroupStart() {
  ++group.depth;
  return nccl::success;
}

EXPORT nccl::Result ncclGroupEnd() {
  if (group.depth == 0) return nccl::invalid_usage;
  if (--group.depth != 0) return nccl::success;
  Group ended = std::move(group);
  group = {};
  return ended.error == nccl::success ? launch(std::move(ended)) : refuse(ended, ended.error);
}

EXPORT nccl::Result ncclSend(const void* data, std::size_t count, nccl::DataType type, int peer,
                             nccl::Communicator* comm, CUstream stream) {
  ncclGroupStart();
  add(data, count, type, true, peer, comm, stream);
  return ncclGroupEnd();
}

EXPORT nccl::Result ncclRecv(void* data, std::size_t count, nccl::DataType type, int peer, nccl::Communicator* comm,
                             CUstream stream) {
  ncclGroupStart();
  add(data, count, type, false, peer, comm, stream);
  return ncclGroupEnd();
}

// ---- What tests can do ----

EXPORT void ckpt_nccl_double_reset(void) {
  faults().hangs.set(-1, false);
  faults().pause_us.set(-1, 0);
  faults().failure.set(-1, 0);
  faults().corrupts.set(-1, false);
  faults().launches_held = faults().inits_held = faults().aborts_held = false;
  faults().abort_pause_us = 0;
  faults().version = 0;
}
EXPORT void ckpt_nccl_double_hang(int rank, int on) { faults().hangs.set(rank, on != 0); }
EXPORT void ckpt_nccl_double_corrupt(int rank, int on) { faults().corrupts.set(rank, on != 0); }
EXPORT void ckpt_nccl_double_slow(int rank, std::uint64_t pause_us) { faults().pause_us.set(rank, pause_us); }
EXPORT void ckpt_nccl_double_hold_launches(int on) { faults().launches_held = on != 0; }
EXPORT void ckpt_nccl_double_hold_inits(int on) { faults().inits_held = on != 0; }
EXPORT void ckpt_nccl_double_hold_aborts(int on) { faults().aborts_held = on != 0; }
EXPORT void ckpt_nccl_double_slow_aborts(std::uint64_t pause_us) { faults().abort_pause_us = pause_us; }
EXPORT void ckpt_nccl_double_fail(int rank, int result) { faults().failure.set(rank, result); }
EXPORT void ckpt_nccl_double_die(int rank) {
  for (const auto& one : communicators())
    if (rank == -1 || rank == one->rank()) one->die();
}
EXPORT void ckpt_nccl_double_version(int version) { faults().version = version; }
EXPORT std::uint64_t ckpt_nccl_double_communicators(void) { return counters().communicators; }
EXPORT std::uint64_t ckpt_nccl_double_aborts(void) { return counters().aborts; }
EXPORT std::uint64_t ckpt_nccl_double_orphans(void) { return counters().orphans; }
EXPORT std::uint64_t ckpt_nccl_double_groups(void) { return counters().groups; }
EXPORT std::uint64_t ckpt_nccl_double_sent_bytes(void) { return counters().sent_bytes; }
EXPORT std::uint64_t ckpt_nccl_double_mismatches(void) { return counters().mismatches; }
EXPORT std::uint64_t ckpt_nccl_double_registered_bytes(void) { return counters().registered_bytes; }
EXPORT int ckpt_nccl_double_max_ctas(void) { return counters().max_ctas; }
