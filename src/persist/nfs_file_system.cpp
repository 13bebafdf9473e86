#include "persist/nfs_file_system.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>
#include <deque>

// libnfs.h needs the headers before it.
#include <nfsc/libnfs.h>

namespace ckpt::persist {
namespace {

std::string absolute(const std::string& path) { return "/" + path; }

class NfsFile : public File {
 public:
  NfsFile(NfsConnection& connection, std::string label, nfsfh* handle)
      : connection_(connection), label_(std::move(label)), handle_(handle), generation_(connection.generation()) {}
  ~NfsFile() override { connection_.close(handle_); }
  NfsFile(const NfsFile&) = delete;
  NfsFile& operator=(const NfsFile&) = delete;

  std::uint64_t size_bytes() override {
    std::uint64_t size = 0;
    call([&](nfs_context* context, auto callback,
             void* argument) { return nfs_fstat64_async(context, handle_, callback, argument); },
         [&](void* data) { size = static_cast<nfs_stat_64*>(data)->nfs_size; }, "cannot stat " + label_);
    return size;
  }

  void start_write(std::uint64_t tag, std::uint64_t offset, const std::byte* data, std::size_t size_bytes,
                   std::shared_ptr<const void> owner) override {
    auto* const bytes = const_cast<std::byte*>(data);  // libnfs only reads it
    start(tag, std::move(owner), nullptr, [=, this](nfs_context* context, auto callback, void* argument) {
      return nfs_pwrite_async(context, handle_, offset, size_bytes, bytes, callback, argument);
    });
  }

  // libnfs receives into its own memory, and `take` copies from there. So nothing writes to `data` once nobody waits
  // for this read any more.
  void start_read(std::uint64_t tag, std::uint64_t offset, std::byte* data, std::size_t size_bytes,
                  std::shared_ptr<void> owner) override {
    const auto take = [=](const NfsCall& call, void* found) {
      std::memcpy(data, found, std::min<std::size_t>(static_cast<std::size_t>(call.result), size_bytes));
    };
    start(tag, std::move(owner), take, [=, this](nfs_context* context, auto callback, void* argument) {
      return nfs_pread_async(context, handle_, offset, size_bytes, callback, argument);
    });
  }

  Completion wait() override {
    const std::string doing = "cannot read or write " + label_;
    check_generation(doing);
    connection_.await([this] { return !ended_->empty(); }, doing);
    const Completion completion = ended_->front();
    ended_->pop_front();
    if (completion.error == ECONNRESET) throw StorageError(ECONNRESET, doing);
    return completion;
  }

  void sync() override {
    call([&](nfs_context* context, auto callback,
             void* argument) { return nfs_fsync_async(context, handle_, callback, argument); },
         nullptr, "cannot sync " + label_);
  }

 private:
  void check_generation(const std::string& doing) const {
    if (generation_ != connection_.generation()) throw StorageError(ECONNRESET, doing);
  }

  void start(std::uint64_t tag, std::shared_ptr<const void> owner, std::function<void(const NfsCall&, void*)> take,
             const NfsConnection::Begin& begin) {
    const std::string doing = "cannot read or write " + label_;
    check_generation(doing);
    NfsCall call;
    call.tag = tag;
    call.owner = std::move(owner);
    call.take = std::move(take);
    call.end = [ended = ended_](const NfsCall& at) {
      const bool lost = at.lost || at.result == -EFAULT || at.result == -EINTR;
      const int error = at.result >= 0 && !at.lost ? 0 : lost ? ECONNRESET : -at.result;
      ended->push_back({at.tag, error, at.result > 0 ? static_cast<std::size_t>(at.result) : 0});
    };
    connection_.start(std::move(call), begin, doing);
  }

  void call(const NfsConnection::Begin& begin, const std::function<void(void*)>& take, const std::string& doing) {
    check_generation(doing);
    const int result = connection_.attempt(begin, take, doing);
    if (result < 0) throw StorageError(-result, doing);
  }

  NfsConnection& connection_;
  const std::string label_;
  nfsfh* const handle_;
  const std::uint64_t generation_;
  std::shared_ptr<std::deque<Completion>> ended_ = std::make_shared<std::deque<Completion>>();
};

}  // namespace

NfsFileSystem::NfsFileSystem(const std::string& url, const FileSystemOptions& options)
    : options_(options), root_(url.substr(0, url.find('?'))), connection_(url, options) {}

std::string NfsFileSystem::label(const std::string& path) const { return path.empty() ? root_ : root_ + "/" + path; }

void NfsFileSystem::run(const NfsConnection::Begin& begin, const std::function<void(void*)>& take,
                        const std::string& doing) {
  const int result = connection_.attempt(begin, take, doing);
  if (result < 0) throw StorageError(-result, doing);
}

// Opens or makes a file through the libnfs call that `begin` starts.
std::unique_ptr<File> NfsFileSystem::take_file(const std::string& path, const NfsConnection::Begin& begin,
                                               const std::string& doing) {
  nfsfh* handle = nullptr;
  run(
      begin, [&](void* data) { handle = static_cast<nfsfh*>(data); }, doing);
  return std::make_unique<NfsFile>(connection_, label(path), handle);
}

std::unique_ptr<File> NfsFileSystem::create(const std::string& path, std::uint64_t) {
  return take_file(
      path,
      [&](nfs_context* context, auto callback, void* argument) {
        return nfs_create_async(context, absolute(path).c_str(), O_EXCL, 0666, callback, argument);
      },
      "cannot create " + label(path));
}

std::unique_ptr<File> NfsFileSystem::open(const std::string& path) {
  return take_file(
      path,
      [&](nfs_context* context, auto callback, void* argument) {
        return nfs_open_async(context, absolute(path).c_str(), O_RDONLY, callback, argument);
      },
      "cannot open " + label(path));
}

// If two nodes make the file at the same time, one of them finds that it exists, and opens it.
std::unique_ptr<File> NfsFileSystem::open_shared(const std::string& path, std::uint64_t expected_bytes) {
  try {
    if (!file_size(path)) return create(path, expected_bytes);
  } catch (const StorageError& error) {
    if (error.error() != EEXIST) throw;
  }
  return take_file(
      path,
      [&](nfs_context* context, auto callback, void* argument) {
        return nfs_open_async(context, absolute(path).c_str(), O_RDWR, callback, argument);
      },
      "cannot open " + label(path));
}

void NfsFileSystem::rename(const std::string& from, const std::string& to) {
  run(
      [&](nfs_context* context, auto callback, void* argument) {
        return nfs_rename_async(context, absolute(from).c_str(), absolute(to).c_str(), callback, argument);
      },
      nullptr, "cannot rename " + label(from) + " to " + label(to));
}

void NfsFileSystem::link(const std::string& from, const std::string& to) {
  run(
      [&](nfs_context* context, auto callback, void* argument) {
        return nfs_link_async(context, absolute(from).c_str(), absolute(to).c_str(), callback, argument);
      },
      nullptr, "cannot link " + label(from) + " to " + label(to));
}

void NfsFileSystem::remove(const std::string& path) {
  run([&](nfs_context* context, auto callback,
          void* argument) { return nfs_unlink_async(context, absolute(path).c_str(), callback, argument); },
      nullptr, "cannot remove " + label(path));
}

void NfsFileSystem::remove_directory(const std::string& path) {
  run([&](nfs_context* context, auto callback,
          void* argument) { return nfs_rmdir_async(context, absolute(path).c_str(), callback, argument); },
      nullptr, "cannot remove the directory " + label(path));
}

void NfsFileSystem::make_directory(const std::string& path) {
  const std::string doing = "cannot make the directory " + label(path);
  const int result = connection_.attempt(
      [&](nfs_context* context, auto callback, void* argument) {
        return nfs_mkdir2_async(context, absolute(path).c_str(), 0777, callback, argument);
      },
      nullptr, doing);
  if (result < 0 && result != -EEXIST) throw StorageError(-result, doing);
}

std::vector<DirectoryEntry> NfsFileSystem::list(const std::string& path) {
  std::vector<DirectoryEntry> entries;
  const auto take = [&](nfs_context* context, nfsdir* directory) {
    while (const nfsdirent* entry = nfs_readdir(context, directory))
      if (std::strcmp(entry->name, ".") != 0 && std::strcmp(entry->name, "..") != 0)
        entries.push_back({entry->name, S_ISDIR(entry->mode)});
    nfs_closedir(context, directory);
  };
  nfs_context* used = nullptr;
  run(
      [&](nfs_context* context, auto callback, void* argument) {
        used = context;
        return nfs_opendir_async(context, absolute(path).c_str(), callback, argument);
      },
      [&](void* data) { take(used, static_cast<nfsdir*>(data)); }, "cannot list " + label(path));
  return entries;
}

bool NfsFileSystem::look_at(const std::string& path, const std::function<void(const nfs_stat_64&)>& take) {
  const std::string doing = "cannot stat " + label(path);
  const int result = connection_.attempt(
      [&](nfs_context* context, auto callback, void* argument) {
        return nfs_stat64_async(context, absolute(path).c_str(), callback, argument);
      },
      [&](void* data) { take(*static_cast<nfs_stat_64*>(data)); }, doing);
  if (result < 0 && result != -ENOENT) throw StorageError(-result, doing);
  return result != -ENOENT;
}

std::optional<std::uint64_t> NfsFileSystem::file_size(const std::string& path) {
  std::uint64_t size = 0;
  const bool is_there = look_at(path, [&](const nfs_stat_64& found) { size = found.nfs_size; });
  return is_there ? std::optional(size) : std::nullopt;
}

std::optional<std::int64_t> NfsFileSystem::modified_s(const std::string& path) {
  std::int64_t time_s = 0;
  const bool is_there =
      look_at(path, [&](const nfs_stat_64& found) { time_s = static_cast<std::int64_t>(found.nfs_mtime); });
  return is_there ? std::optional(time_s) : std::nullopt;
}

std::uint64_t NfsFileSystem::free_bytes() {
  std::uint64_t free = 0;
  run([&](nfs_context* context, auto callback,
          void* argument) { return nfs_statvfs_async(context, "/", callback, argument); },
      [&](void* data) {
        const auto* found = static_cast<struct statvfs*>(data);
        free = std::uint64_t{found->f_bavail} * found->f_frsize;
      },
      "cannot find out the free space of " + root_);
  return free;
}

}  // namespace ckpt::persist
