// NfsConnection is a connection to an NFS server, for NfsFileSystem. It connects when it is first used, and again after
// the connection was lost. Every call has a deadline. If a call does not end by then, NfsConnection gives up the call
// and the connection.
//
// If a reply is lost, the call fails. NfsConnection never repeats a call, and does not let libnfs reconnect by itself.
// The reason: a server that restarts between a write and its sync may lose the write and still report success.
//
// Only one thread may use a NfsConnection.
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

// A call under way.
struct NfsCall {
  // Called if the call succeeds. `data` is what libnfs passes; it is valid only until `take` returns.
  std::function<void(const NfsCall& call, void* data)> take;
  std::function<void(const NfsCall& call)> end;  // called when the call has ended, successful or not
  std::shared_ptr<const void> owner;             // keeps the call's memory
  std::uint64_t tag = 0;
  bool ended = false;
  bool lost = false;  // true: the connection was given up before the call ended
  int result = 0;     // as libnfs reports it: a negative errno, or the result of a call that succeeded
};

class NfsConnection {
 public:
  // `url` is nfs://server/export/path[?option=value...]. Throws Failure (CKPT_ERR_INVALID). Does not connect yet.
  NfsConnection(std::string url, const FileSystemOptions& options);
  ~NfsConnection();
  NfsConnection(const NfsConnection&) = delete;
  NfsConnection& operator=(const NfsConnection&) = delete;

  const std::string& url() const { return url_; }

  // Starts a call and returns at once. Calls `begin`, which must pass its three arguments to an asynchronous function
  // of libnfs. `doing` is the beginning of an error message, e.g. "cannot open nfs://server/export/file".
  using Callback = void (*)(int, nfs_context*, void*, void*);
  using Begin = std::function<int(nfs_context*, Callback, void*)>;
  std::shared_ptr<NfsCall> start(NfsCall call, const Begin& begin, const std::string& doing);
  // Handles replies of the server until `arrived` returns true. Throws StorageError if that takes longer than the
  // option timeout_ms.
  void await(const std::function<bool()>& arrived, const std::string& doing);
  // Makes one call and waits for it. Returns its result, which may be a negative errno.
  int attempt(const Begin& begin, const std::function<void(void*)>& take, const std::string& doing);

  // Returns a number that grows by one when the connection is lost. A file handle can be used only while the number is
  // the same as when the handle was opened.
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
  std::vector<nfsfh*> unclosed_;  // handles of lost connections, to be released
};

}  // namespace ckpt::persist
