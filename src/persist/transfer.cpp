#include "persist/transfer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "persist/storage_format.hpp"

namespace ckpt::persist {
namespace {

std::string part_path(const std::string& path) {
  std::random_device random;
  std::string name = path + ".";
  for (int i = 0; i < 16; ++i) name += "0123456789abcdef"[random() % 16];
  return name + std::string(part_suffix);
}

// Blocks that are being written, by tag.
class Writes {
 public:
  Writes(FileSystem& files, File& file, const std::string& doing)
      : file_(file), doing_(doing), blocks_(std::max(files.options().queue_depth, 1u)) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) free_.push_back(i);
  }

  void write(const Block& block) {
    if (block.size_bytes == 0) return;
    if (free_.empty()) wait_for_one();
    const std::size_t tag = free_.back();
    free_.pop_back();
    blocks_[tag] = block;
    start(tag);
  }

  void finish() {
    while (free_.size() < blocks_.size()) wait_for_one();
  }

 private:
  void start(std::size_t tag) {
    const Block& block = blocks_[tag];
    file_.start_write(tag, block.offset, block.data, block.size_bytes, block.owner);
  }

  // Waits until one of the blocks is written completely.
  void wait_for_one() {
    for (;;) {
      const Completion completion = file_.wait();
      if (completion.error != 0) throw StorageError(completion.error, doing_);
      if (completion.size_bytes == 0) throw StorageError(EIO, doing_);
      Block& block = blocks_[completion.tag];
      block.offset += completion.size_bytes;
      block.data += completion.size_bytes;
      block.size_bytes -= completion.size_bytes;
      if (block.size_bytes == 0) {
        block.owner.reset();
        free_.push_back(completion.tag);
        return;
      }
      start(completion.tag);
    }
  }

  File& file_;
  const std::string& doing_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> free_;
};

// Blocks that are being read, by tag. Each tag has its place in one buffer.
class Reads {
 public:
  Reads(FileSystem& files, File& file, std::string label) : files_(files), file_(file), label_(std::move(label)) {}

  std::size_t depth() const { return std::max(files_.options().queue_depth, 1u); }

  // Starts the first reads. Later ones reuse their tags, so no more than these are ever under way at once.
  void begin(const std::vector<Extent>& extents) {
    slots_.resize(extents.size());
    memory_ = files_.make_buffer(extents.size() * files_.options().block_bytes);
    for (std::size_t tag = 0; tag < extents.size(); ++tag) start(tag, extents[tag]);
  }

  // Starts a read under a tag whose block is not used any more.
  void start(std::size_t tag, const Extent& extent) {
    slots_[tag] = {extent, 0};
    ++in_flight_;
    read_rest(tag);
  }

  bool empty() const { return in_flight_ == 0; }
  const Extent& extent(std::size_t tag) const { return slots_[tag].extent; }
  std::byte* memory(std::size_t tag) const { return memory_.get() + tag * files_.options().block_bytes; }

  // Waits until one of the blocks is read completely, and returns its tag.
  std::size_t wait_for_one() {
    for (;;) {
      const Completion completion = file_.wait();
      if (completion.error != 0) throw StorageError(completion.error, "cannot read " + label_);
      Slot& slot = slots_[completion.tag];
      slot.filled += completion.size_bytes;
      if (slot.filled >= slot.extent.size_bytes) {
        --in_flight_;
        return completion.tag;
      }
      if (completion.size_bytes == 0)
        throw Failure(CKPT_ERR_CORRUPT, label_ + " is shorter than expected: it ends at byte " +
                                            std::to_string(slot.extent.offset + slot.filled));
      read_rest(completion.tag);
    }
  }

 private:
  struct Slot {
    Extent extent;
    std::size_t filled = 0;
  };

  // Reads what is still missing of a block. Rounds its end up to a multiple of the alignment. The buffer has room for
  // the additional bytes.
  void read_rest(std::size_t tag) {
    const Slot& slot = slots_[tag];
    const std::size_t end =
        (slot.extent.size_bytes + direct_alignment_bytes - 1) / direct_alignment_bytes * direct_alignment_bytes;
    file_.start_read(tag, slot.extent.offset + slot.filled, memory(tag) + slot.filled, end - slot.filled, memory_);
  }

  FileSystem& files_;
  File& file_;
  const std::string label_;
  std::vector<Slot> slots_;
  std::shared_ptr<std::byte> memory_;
  std::size_t in_flight_ = 0;
};

void write_blocks(FileSystem& files, File& file, const std::string& path, const std::function<bool(Block&)>& next) {
  const std::string doing = "cannot write " + files.label(path);
  Writes writes(files, file, doing);
  for (Block block; next(block); block = {}) writes.write(block);
  writes.finish();
  file.sync();
}

bool hangs(const Failure& failure) {
  return failure.status() == CKPT_ERR_TIMEOUT || failure.status() == CKPT_DISCARDED;
}

}  // namespace

void remove_quietly(FileSystem& files, const std::string& path) {
  try {
    files.remove(path);
  } catch (const StorageError&) {  // the file stays until prune_checkpoints() removes it
  }
}

void write_whole(FileSystem& files, const std::string& path, std::uint64_t size_bytes,
                 const std::function<bool(Block&)>& next) {
  const std::string part = part_path(path);
  try {
    write_blocks(files, *files.create(part, size_bytes), part, next);
    files.rename(part, path);
  } catch (const Failure& failure) {
    if (!hangs(failure)) remove_quietly(files, part);
    throw;
  }
}

void write_some(FileSystem& files, const std::string& path, std::uint64_t file_bytes,
                const std::function<bool(Block&)>& next) {
  write_blocks(files, *files.open_shared(path, file_bytes), path, next);
}

void write_whole(FileSystem& files, const std::string& path, const std::string& text) {
  const auto owned = std::make_shared<std::string>(text);
  const std::size_t block_bytes = files.options().block_bytes;
  std::size_t begin = 0;
  write_whole(files, path, text.size(), [&](Block& block) {
    if (begin >= owned->size()) return false;
    block = {begin, reinterpret_cast<const std::byte*>(owned->data()) + begin,
             std::min(block_bytes, owned->size() - begin), owned};
    begin += block.size_bytes;
    return true;
  });
}

void read_blocks(FileSystem& files, const std::string& path, const std::function<bool(Extent&)>& next,
                 const std::function<void(const Extent&, const std::byte*)>& take) {
  const auto file = files.open(path);
  Reads reads(files, *file, files.label(path));
  std::vector<Extent> first;
  for (Extent extent; first.size() < reads.depth() && next(extent); extent = {}) first.push_back(extent);
  reads.begin(first);
  while (!reads.empty()) {
    const std::size_t tag = reads.wait_for_one();
    take(reads.extent(tag), reads.memory(tag));
    Extent extent;
    if (next(extent)) reads.start(tag, extent);
  }
}

std::string read_begin(FileSystem& files, const std::string& path, std::size_t size_bytes) {
  std::string text(size_bytes, '\0');
  std::size_t begin = 0;
  read_blocks(
      files, path,
      [&](Extent& extent) {
        if (begin >= size_bytes) return false;
        extent = {begin, std::min(files.options().block_bytes, size_bytes - begin)};
        begin += extent.size_bytes;
        return true;
      },
      [&](const Extent& extent, const std::byte* data) {
        std::memcpy(text.data() + extent.offset, data, extent.size_bytes);
      });
  return text;
}

std::string read_whole(FileSystem& files, const std::string& path, std::size_t max_bytes) {
  const auto size = files.file_size(path);
  if (!size) throw StorageError(ENOENT, "cannot open " + files.label(path));
  if (*size > max_bytes)
    throw Failure(CKPT_ERR_CORRUPT, files.label(path) + " is " + std::to_string(*size) +
                                        " bytes long, but may have at most " + std::to_string(max_bytes));
  return read_begin(files, path, *size);
}

}  // namespace ckpt::persist
