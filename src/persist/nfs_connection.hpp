// A connection to an NFS server, made when it is needed and made anew after it was lost. Every call waits at most its
// deadline; what it waits for then is given up together with the connection.
//
// A reply lost is an error, never a silent repetition: libnfs is not allowed to reconnect by itself, so that between a
// write and the sync that makes it durable it is always the same server's incarnation that answers.
//
// Belongs to one thread.
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
  // What a successful call brought, which is valid only here.
  std::function<void(const NfsCall& call, void* data)> take;
  std::function<void(const NfsCall& call)> end;  // whatever the end
  std::shared_ptr<const void> owner;             // of memory
  std::uint64_t tag = 0;
  bool ended = false;
  bool lost = false;  // given up with its connection
  int result = 0;
};

class NfsConnection {
 public:
  // `url` as nfs://server/export/path[?option=value...]. Throws Failure (CKPT_ERR_INVALID); does not connect yet.
  NfsConnection(std::string url, const FileSystemOptions& options);
  ~NfsConnection();
  NfsConnection(const NfsConnection&) = delete;
  NfsConnection& operator=(const NfsConnection&) = delete;

  const std::string& url() const { return url_; }

  // Queues a call by `begin`, which hands libnfs the callback and its argument. `doing` is for messages.
  using Callback = void (*)(int, nfs_context*, void*, void*);
  using Begin = std::function<int(nfs_context*, Callback, void*)>;
  std::shared_ptr<NfsCall> start(NfsCall call, const Begin& begin, const std::string& doing);
  // Until `arrived`.
  void await(const std::function<bool()>& arrived, const std::string& doing);
  // One call from beginning to end; its result, which may be a negative errno.
  int attempt(const Begin& begin, const std::function<void(void*)>& take, const std::string& doing);

  // Grows by one when a connection is lost: handles of an earlier incarnation are of no use.
  std::uint64_t generation() const { return broken_ ? generation_ + 1 : generation_; }
  // Lets a file handle go; waits for nothing.
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
