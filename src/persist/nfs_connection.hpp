// NfsConnection is a connection to an NFS server, for NfsFileSystem. It connects when it is first used, and again after
// it was lost. Every call has a deadline. If a call misses it, the call and the connection are given up.
//
// If a reply is lost, the call fails; it is never repeated in secret. A write and the sync that makes it durable must
// reach the same start of the server. So libnfs may not reconnect by itself.
//
// Only one thread may use it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "persist/file_system.hpp"

struct nfs_context;
struct nfsfh;

namespace ckpt::persist {

// A call under way. `result` is libnfs's: negative errno, or what the call returns.
struct NfsCall {
  // Called with the result of a successful call, which is valid only during `take`.
  std::function<void(const NfsCall& call, void* data)> take;
  std::function<void(const NfsCall& call)> end;  // however the call ended
  std::shared_ptr<const void> owner;             // keeps the call's memory
  std::uint64_t tag = 0;
  bool ended = false;
  bool lost = false;  // given up with its connection
  int result = 0;
};

class NfsConnection {
 public:
  // `url` is nfs://server/export/path[?option=value...]. Throws Failure (CKPT_ERR_INVALID). Does not connect yet.
  NfsConnection(std::string url, const FileSystemOptions& options);
  ~NfsConnection();
  NfsConnection(const NfsConnection&) = delete;
  NfsConnection& operator=(const NfsConnection&) = delete;

  const std::string& url() const { return url_; }

  // Queues a call through `begin`, which passes libnfs the callback and its argument. `doing` is for messages.
  using Callback = void (*)(int, nfs_context*, void*, void*);
  using Begin = std::function<int(nfs_context*, Callback, void*)>;
  std::shared_ptr<NfsCall> start(NfsCall call, const Begin& begin, const std::string& doing);
  // Waits until `arrived` returns true.
  void await(const std::function<bool()>& arrived, const std::string& doing);
  // Makes one call and waits for it. Returns its result, which may be a negative errno.
  int attempt(const Begin& begin, const std::function<void(void*)>& take, const std::string& doing);

  // Grows by one when a connection is lost. Handles of an earlier generation are useless.
  std::uint64_t generation() const { return broken_ ? generation_ + 1 : generation_; }
  // Closes a file handle without waiting.
  void close(nfsfh* handle);

 private:
  struct Url;
  static void on_end(int result, nfs_context* context, void* data, void* call);
  void connect(const std::string& doing);
  void serve(std::chrono::steady_clock::time_point until);
  void lose();

  const std::string url_;
  const FileSystemOptions options_;
  nfs_context* context_ = nullptr;
  bool broken_ = false;
  std::uint64_t generation_ = 0;
  std::unordered_map<NfsCall*, std::shared_ptr<NfsCall>> calls_;
  std::vector<nfsfh*> unclosed_;  // of lost connections
};

}  // namespace ckpt::persist
