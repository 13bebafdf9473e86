#include "persist/transfer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "persist/format.hpp"

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

  // Until a whole block is written.
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

void write_part(FileSystem& files, const std::string& part, std::uint64_t size_bytes,
                const std::function<bool(Block&)>& next) {
  const std::string doing = "cannot write " + files.label(part);
  const auto file = files.create(part, size_bytes);
  Writes writes(files, *file, doing);
  for (Block block; next(block); block = {}) writes.write(block);
  writes.finish();
  file->sync();
}

void remove_quietly(FileSystem& files, const std::string& path) {
  try {
    files.remove(path);
  } catch (const StorageError&) {  // it keeps its place until the step is removed
  }
}

bool hangs(const Failure& failure) {
  return failure.status() == CKPT_ERR_TIMEOUT || failure.status() == CKPT_ERR_DISCARDED;
}

}  // namespace

std::shared_ptr<std::byte> make_aligned_buffer(std::size_t size_bytes) {
  constexpr auto alignment = std::align_val_t{direct_alignment_bytes};
  return {static_cast<std::byte*>(::operator new(std::max<std::size_t>(size_bytes, 1), alignment)),
          [](std::byte* data) { ::operator delete(data, alignment); }};
}

void write_whole(FileSystem& files, const std::string& path, std::uint64_t size_bytes,
                 const std::function<bool(Block&)>& next) {
  const std::string part = part_path(path);
  try {
    write_part(files, part, size_bytes, next);
    files.rename(part, path);
  } catch (const Failure& failure) {
    if (!hangs(failure)) remove_quietly(files, part);
    throw;
  }
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
  struct Slot {
    Extent extent;
    std::size_t filled = 0;
  };
  const std::size_t depth = std::max(files.options().queue_depth, 1u);
  const std::size_t block_bytes = files.options().block_bytes;
  const std::string doing = "cannot read " + files.label(path);
  const auto file = files.open(path);
  std::vector<Slot> slots;
  std::shared_ptr<std::byte> buffers;
  std::size_t in_flight = 0;
  const auto memory = [&](std::size_t tag) { return buffers.get() + tag * block_bytes; };
  const auto start = [&](std::size_t tag) {
    const Slot& slot = slots[tag];
    // Up to a multiple of the alignment: beyond what is wanted, which the block has room for.
    const std::size_t end =
        (slot.extent.size_bytes + direct_alignment_bytes - 1) / direct_alignment_bytes * direct_alignment_bytes;
    file->start_read(tag, slot.extent.offset + slot.filled, memory(tag) + slot.filled, end - slot.filled, buffers);
  };
  bool more = true;
  const auto start_next = [&](std::size_t tag) {
    slots[tag] = {};
    if (more) more = next(slots[tag].extent);
    if (!more) return;
    start(tag);
    ++in_flight;
  };
  // Memory for as many blocks as there are, at most `depth`.
  std::vector<Extent> first;
  for (Extent extent; first.size() < depth && (more = next(extent)); extent = {}) first.push_back(extent);
  slots.resize(first.size());
  buffers = make_aligned_buffer(first.size() * block_bytes);
  for (std::size_t tag = 0; tag < first.size(); ++tag) {
    slots[tag].extent = first[tag];
    start(tag);
    ++in_flight;
  }
  while (in_flight != 0) {
    const Completion completion = file->wait();
    if (completion.error != 0) throw StorageError(completion.error, doing);
    Slot& slot = slots[completion.tag];
    slot.filled += completion.size_bytes;
    if (slot.filled < slot.extent.size_bytes) {
      if (completion.size_bytes == 0)
        throw Failure(CKPT_ERR_CORRUPT,
                      files.label(path) + " ends at byte " + std::to_string(slot.extent.offset + slot.filled));
      start(completion.tag);
      continue;
    }
    take(slot.extent, memory(completion.tag));
    --in_flight;
    start_next(completion.tag);
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
    throw Failure(CKPT_ERR_CORRUPT, files.label(path) + " is " + std::to_string(*size) + " bytes long, too many");
  return read_begin(files, path, *size);
}

}  // namespace ckpt::persist
