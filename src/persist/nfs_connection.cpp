#include "persist/nfs_connection.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/clock.hpp"

// libnfs.h needs the headers before it.
#include <nfsc/libnfs.h>

namespace ckpt::persist {
namespace {

// The errors that libnfs returns if a reply never came.
bool means_lost(int result) { return result == -EFAULT || result == -EINTR || result == -ETIMEDOUT; }

// If the server refused a transfer, libnfs gives the reason only in its message, as "... NFS3ERR_NOSPC(-28)".
int reason_in(const char* message) {
  const std::string_view text = message == nullptr ? "" : message;
  const auto open = text.find('(', text.find("NFS3ERR_"));
  if (!text.starts_with("NFS: Write failed") && !text.starts_with("NFS: Read failed")) return -EFAULT;
  if (open == std::string_view::npos) return -EFAULT;
  const int reason = std::atoi(text.data() + open + 1);
  return reason < 0 ? reason : -EIO;
}

}  // namespace

// A URL as libnfs parses it.
struct NfsConnection::Url {
  Url(nfs_context* context, const std::string& text) : parsed(nfs_parse_url_dir(context, text.c_str())) {}
  ~Url() {
    if (parsed != nullptr) nfs_destroy_url(parsed);
  }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;
  nfs_url* const parsed;
};

NfsConnection::NfsConnection(std::string url, const FileSystemOptions& options)
    : url_(std::move(url)), options_(options) {
  if (url_.find("version=4") != std::string::npos)
    throw Failure(CKPT_ERR_INVALID,
                  "storage " + url_ +
                      " asks for NFS version 4, with which libnfs writes only 2 KiB at a time; use version 3, "
                      "or mount the export and name the directory");
  nfs_context* const context = nfs_init_context();
  const bool valid = context != nullptr && Url(context, url_).parsed != nullptr;
  if (context != nullptr) nfs_destroy_context(context);
  if (!valid) throw Failure(CKPT_ERR_INVALID, "storage " + url_ + " is not nfs://server/export/path; correct it");
}

// libnfs releases a handle only through a context. So the handles of lost connections are released through a new
// context that never connects.
NfsConnection::~NfsConnection() {
  lose();
  context_ = unclosed_.empty() ? nullptr : nfs_init_context();
  if (context_ == nullptr) return;
  for (nfsfh* handle : std::exchange(unclosed_, {})) close(handle);
  lose();
}

void NfsConnection::on_end(int result, nfs_context* context, void* data, void* call_pointer) {
  auto& call = *static_cast<NfsCall*>(call_pointer);
  call.result = result == -EFAULT && context != nullptr ? reason_in(nfs_get_error(context)) : result;
  call.ended = true;
  if (result >= 0 && call.take) call.take(call, data);
  if (call.end) call.end(call);
}

void NfsConnection::lose() {
  if (context_ == nullptr) return;
  for (auto& [address, call] : calls_) {
    (void)address;
    call->lost = !call->ended;
    call->take = nullptr;
  }
  nfs_destroy_context(context_);  // ends the remaining calls
  for (auto& [address, call] : calls_) {
    (void)address;
    if (!call->ended) on_end(-ECONNRESET, nullptr, nullptr, call.get());
  }
  calls_.clear();
  context_ = nullptr;
  broken_ = false;
  ++generation_;
}

void NfsConnection::connect(const std::string& doing) {
  if (broken_) lose();
  if (context_ != nullptr) return;
  context_ = nfs_init_context();
  if (context_ == nullptr) throw StorageError(ENOMEM, doing);
  const Url url(context_, url_);
  nfs_set_autoreconnect(context_, 0);
  nfs_set_dircache(context_, 0);
  int result = 0;
  const auto begin = [&](nfs_context* context, Callback callback, void* argument) {
    return nfs_mount_async(context, url.parsed->server, url.parsed->path, callback, argument);
  };
  const std::string mounting = "cannot connect to " + url_;
  NfsCall call;
  const auto mounted = std::make_shared<NfsCall>(std::move(call));
  calls_.emplace(mounted.get(), mounted);
  if (begin(context_, on_end, mounted.get()) < 0) {
    calls_.erase(mounted.get());
    lose();
    throw StorageError(EHOSTUNREACH, mounting);
  }
  await([&] { return mounted->ended; }, mounting);
  result = mounted->lost ? -ECONNRESET : mounted->result;
  if (result < 0) {
    lose();
    const bool is_refused = means_lost(result) || result == -EACCES;  // EACCES: the directory is not exported
    throw StorageError(is_refused ? EHOSTUNREACH : result == -ENOENT ? location_is_missing : -result, mounting);
  }
  for (nfsfh* handle : std::exchange(unclosed_, {})) close(handle);
}

std::shared_ptr<NfsCall> NfsConnection::start(NfsCall call, const Begin& begin, const std::string& doing) {
  if (options_.stop.stop_requested()) throw StorageError(ECANCELED, doing);
  connect(doing);
  auto started = std::make_shared<NfsCall>(std::move(call));
  calls_.emplace(started.get(), started);
  if (begin(context_, on_end, started.get()) < 0) {
    calls_.erase(started.get());
    broken_ = true;
    throw StorageError(EIO, doing);
  }
  return started;
}

// Waits until the socket is ready or the time has come, and lets libnfs send and receive.
void NfsConnection::serve(Clock::time_point until) {
  pollfd polled{nfs_get_fd(context_), static_cast<short>(nfs_which_events(context_)), 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  if (::poll(&polled, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) < 0) return;
  if (nfs_service(context_, polled.revents) < 0) broken_ = true;
  std::erase_if(calls_, [](const auto& entry) { return entry.second->ended; });
}

void NfsConnection::await(const std::function<bool()>& arrived, const std::string& doing) {
  const Deadline deadline = Deadline::in_ms(options_.timeout_ms);
  while (!arrived()) {
    const bool stopped = options_.stop.stop_requested();
    if (stopped || deadline.passed()) {
      lose();
      throw StorageError(stopped ? ECANCELED : ETIMEDOUT, doing);
    }
    if (broken_ || context_ == nullptr) {
      lose();
      throw StorageError(ECONNRESET, doing);
    }
    serve(std::min(deadline.at(), Clock::now() + stop_slice));
  }
}

int NfsConnection::attempt(const Begin& begin, const std::function<void(void*)>& take, const std::string& doing) {
  NfsCall call;
  if (take) call.take = [&take](const NfsCall&, void* data) { take(data); };
  const auto started = start(std::move(call), begin, doing);
  await([&] { return started->ended; }, doing);
  if (started->lost || means_lost(started->result)) {
    broken_ = true;
    return -ECONNRESET;
  }
  return started->result;
}

void NfsConnection::close(nfsfh* handle) {
  if (context_ == nullptr || broken_) {
    unclosed_.push_back(handle);
    return;
  }
  const auto closing = std::make_shared<NfsCall>();
  calls_.emplace(closing.get(), closing);
  if (nfs_close_async(context_, handle, on_end, closing.get()) < 0) calls_.erase(closing.get());
}

}  // namespace ckpt::persist
