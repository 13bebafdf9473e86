// Segments and control pages in an arena, as an agent or a trainer finds them. What is taken stays within the file, and
// a piece in it agrees with itself.
//
// An input is the beginning of a file; blank pages follow, up to file_bytes.
#include <fcntl.h>
#include <sys/mman.h>

#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "arena/segment.hpp"
#include "base/error.hpp"
#include "base/mapping.hpp"
#include "fuzz/fuzz.hpp"
#include "fuzz/samples.hpp"

namespace ckpt::fuzz {
namespace {

using arena::page_bytes;

// Of a segment with two slots, each with a page of data and one of digests and layout.
constexpr std::size_t file_bytes = (1 + 2 * 3) * page_bytes;

UniqueFd file_of(std::size_t size_bytes) {
  UniqueFd file(::memfd_create("fuzz", MFD_CLOEXEC));
  require(file && ::posix_fallocate(file.get(), 0, static_cast<off_t>(size_bytes)) == 0);
  return file;
}

// Seals and digests that fit, in slots whose lengths do.
void mend(arena::Segment& segment) {
  for (std::uint32_t i = 0; i < segment.spec().slots; ++i) {
    arena::WritableSlot slot = segment.writable_slot(i);
    auto* const header =
        reinterpret_cast<arena::SlotHeader*>(reinterpret_cast<std::byte*>(slot.digests()) - page_bytes);
    const std::uint64_t length = header->length_bytes, layout_bytes = header->layout_bytes;
    if (!slot.fits(length, layout_bytes)) continue;
    const auto* layout = reinterpret_cast<const char*>(slot.digests() + kernels::leaf_count(length));
    const arena::SealedFields fields{
        header->checkpoint, length, 0, layout_bytes, arena::layout_hash({layout, layout_bytes}), header->world_size};
    slot.begin();
    slot.seal(fields);
  }
}

void look_into(const arena::Segment& segment) {
  const auto* const begin = segment.mapping().data();
  const auto* const end = begin + segment.mapping().size_bytes();
  require(segment.mapping().size_bytes() == file_bytes && segment.slots() <= arena::segment_slots_max);
  for (std::uint32_t i = 0; i < segment.slots(); ++i) {
    const arena::Slot slot = segment.slot(i);
    require(slot.data() > begin && slot.data() + slot.data_capacity_bytes() <= end);
    const auto manifest = slot.read();
    if (!manifest) continue;
    require(arena::is_consistent(*manifest) && manifest->length_bytes <= slot.data_capacity_bytes());
    require(manifest->checkpoint == slot.checkpoint() && manifest->shard == segment.spec().shard);
  }
}

void try_segment(Input input) {
  UniqueFd file = file_of(file_bytes);
  require(::pwrite(file.get(), input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  arena::Segment segment = arena::Segment::attach(std::move(file), arena::Segment::Access::write, "x");
  look_into(segment);
  mend(segment);
  look_into(segment);
}

// Read by an agent that was there when the first event was written.
void try_comm_log(const arena::CommWords& words) {
  const auto fresh = std::make_unique<arena::CommWords>();
  arena::CommReader reader(*fresh);
  fresh->written = words.written.load();
  for (std::size_t i = 0; i < arena::comm_events_max; ++i) fresh->events[i] = words.events[i].load();
  for (std::size_t i = 0; i < arena::comm_channels_max; ++i) {
    fresh->channels[i].begun = words.channels[i].begun.load();
    fresh->channels[i].ended = words.channels[i].ended.load();
  }
  for (std::size_t i = 0; i < arena::comm_gpu_max; ++i) {
    fresh->on_gpu[i].begun = words.on_gpu[i].begun.load();
    fresh->on_gpu[i].ended = words.on_gpu[i].ended.load();
  }
  static_cast<void>(reader.is_busy());
  std::vector<arena::CommEvent> events;
  const bool complete = reader.read(events);
  require(events.size() <= arena::comm_events_max && (!complete || events.size() <= words.written));
  for (const arena::CommEvent& event : events) require(event.channel < arena::comm_channels_max);
}

void try_control(Input input) {
  UniqueFd file = file_of(arena::control_file_bytes);
  require(::pwrite(file.get(), input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  const arena::Control control = arena::Control::attach(std::move(file), 3);
  require(arena::Grant::from_word(control.grant().word()).word() == control.grant().word());
  for (const std::uint8_t slot : control.grant().slots) require(slot < arena::segment_slots_max);
  if (core::is_valid(control.share()))
    require(core::parts_of("model", control.share()).size() == control.share().stored);
  try_comm_log(control.comm());
}

template <class Call>
void refuse_or_take(Call call) {
  try {
    call();
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_CORRUPT);
  }
}

void seal(arena::WritableSlot slot, const arena::Manifest& manifest) {
  slot.begin();
  slot.seal(manifest);
}

std::string bytes_of(const std::byte* data, std::size_t size_bytes) { return text_of(Input(data, size_bytes)); }

// An empty file under a name that goes with it.
class Draft {
 public:
  Draft() { require(::mkdtemp(directory_) != nullptr); }
  ~Draft() {
    ::unlink(path("segment").c_str());
    ::unlink(path("rank-3.control").c_str());
    ::rmdir(directory_);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  std::string directory() const { return directory_; }
  std::string path(const std::string& name) const { return directory() + "/" + name; }

 private:
  char directory_[32] = "/dev/shm/ckpt-fuzz-XXXXXX";
};

}  // namespace

void try_input(Input input) {
  refuse_or_take([&] { try_segment(input.first(std::min(input.size(), file_bytes))); });
  refuse_or_take([&] { try_control(input.first(std::min(input.size(), arena::control_file_bytes))); });
}

std::vector<std::string> seeds() {
  const Draft draft;
  const arena::SegmentSpec spec{arena::SegmentKind::held, 0, 2, "rank0", page_bytes, page_bytes};
  std::vector<std::string> texts;
  {
    arena::Segment segment = arena::Segment::create(draft.path("segment"), spec, 1);
    texts.push_back(bytes_of(segment.mapping().data(), page_bytes));
    seal(segment.writable_slot(0), sample_manifest("rank0", 10));
    seal(segment.writable_slot(1), sample_manifest("rank0", 0, false));
    // Up to the second slot's layout.
    texts.push_back(bytes_of(segment.mapping().data(), file_bytes - 2 * page_bytes));
    segment.writable_slot(1).begin();
    segment.writable_slot(0).drop(CheckpointId(1, 123));
    texts.push_back(bytes_of(segment.mapping().data(), 2 * page_bytes + 512));
  }
  {
    arena::Control control = arena::Control::create(draft.directory(), 3);
    control.share({1, 4, 2});
    control.grant({7, {1, 2, 3, 4}});
    arena::CommWriter writer(control.comm());
    writer.begin(2, Clock::now());
    writer.end(2, Clock::now());
    writer.iteration(Clock::now());
    const Mapping file(control.fd(), arena::control_file_bytes, Mapping::Access::read, "x");
    texts.push_back(bytes_of(file.data(), sizeof(arena::RankControl)));
    texts.push_back(bytes_of(file.data(), page_bytes + offsetof(arena::CommWords, events) + 4 * sizeof(std::uint64_t)));
  }
  return texts;
}

}  // namespace ckpt::fuzz
