#include "persist/file_system.hpp"

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "kernels/digest.hpp"
#include "persist/local_file_system.hpp"
#include "persist/nfs_file_system.hpp"

namespace ckpt::persist {
namespace {

ckpt_status status_of(int error) {
  switch (error) {
    case ETIMEDOUT:
      return CKPT_ERR_TIMEOUT;
    case ENOSPC:
    case EDQUOT:
      return CKPT_ERR_NO_SPACE;
    case ECANCELED:
      return CKPT_DISCARDED;
    default:
      return CKPT_ERR_SYSTEM;
  }
}

const char* advice_for(int error) {
  switch (error) {
    case EACCES:
      return "; give the agent's user access to it";
    case EROFS:
      return "; mount the storage writable";
    case EDQUOT:
      return "; the user's quota is used up: make room, or raise the quota";
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    case EIO:
      return "; check the storage's disk or server";
    default:
      return "";
  }
}

std::string text_of(int error) {
  switch (error) {
    case ETIMEDOUT:
      return "the storage did not answer in time; check whether it hangs";
    case ECANCELED:
      return "the operation was cancelled";
    case ECONNRESET:
      return "the connection to the storage server was lost; check that server and the network";
    case EHOSTUNREACH:
      return "the server does not answer, or does not export this directory; check that the server runs and that the "
             "directory is there";
    case location_is_missing:
      return "it does not exist; create it, or mount it";
    case ENOSPC:
      return "the storage is full; make room, or keep fewer checkpoints";
    default:
      return std::generic_category().message(error) + advice_for(error);
  }
}

}  // namespace

StorageError::StorageError(int error, const std::string& doing)
    : Failure(status_of(error), doing + ": " + text_of(error)), error_(error) {}

bool StorageError::is_about_storage() const {
  return error_ == ETIMEDOUT || error_ == ECANCELED || error_ == ECONNRESET || error_ == EHOSTUNREACH ||
         error_ == location_is_missing;
}

bool StorageError::is_about_path() const { return error_ == ENOENT || error_ == ENOTDIR || error_ == EISDIR; }

std::shared_ptr<std::byte> make_aligned_buffer(std::size_t size_bytes) {
  constexpr auto alignment = std::align_val_t{direct_alignment_bytes};
  return {static_cast<std::byte*>(::operator new(std::max<std::size_t>(size_bytes, 1), alignment)),
          [](std::byte* data) { ::operator delete(data, alignment); }};
}

std::unique_ptr<FileSystem> open_file_system(const std::string& location, const FileSystemOptions& options) {
  if (options.queue_depth == 0) throw Failure(CKPT_ERR_INVALID, "storage_depth is 0, but must be at least 1; raise it");
  if (options.block_bytes == 0 || options.block_bytes % kernels::leaf_size_bytes != 0)
    throw Failure(CKPT_ERR_INVALID, "storage_block_bytes is " + std::to_string(options.block_bytes) +
                                        ", but must be a multiple of 65536 (64 KiB), and at least that; correct it");
  if (location.starts_with('/')) {
    auto root = location;
    while (root.size() > 1 && root.back() == '/') root.pop_back();
    return std::make_unique<LocalFileSystem>(root, options);
  }
  if (location.starts_with("nfs://")) return std::make_unique<NfsFileSystem>(location, options);
  throw Failure(CKPT_ERR_INVALID,
                "storage \"" + location + "\" is neither an absolute path nor nfs://server/export/path; correct it");
}

void require_location(FileSystem& files) {
  if (!files.file_size("")) throw StorageError(location_is_missing, "cannot use the storage " + files.label(""));
}

}  // namespace ckpt::persist
