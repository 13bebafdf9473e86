// For every prefix of the stores of trainer and agent, attaching again yields a valid state.
//
// The shipped code of both sides runs through a few rounds of grant, capture, drop and fetch, one machine instruction
// at a time. Whenever a word that attaching depends on has changed, after every system call, and every few instructions
// besides, the arena's files are copied as a crash would leave them, the copy is attached with the shipped code, and
// what is found there is compared with what must be and what may be.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <iostream>
#include <map>

#include "../arena/pieces.hpp"
#include "arena/comm_log.hpp"
#include "arena/node_arena.hpp"
#include "base/error.hpp"
#include "client/capture.hpp"
#include "single_step.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::client {
namespace {

using arena::Control;
using arena::Grant;
using arena::NodeArena;
using arena::Segment;
using test::TemporaryDirectory;

constexpr std::uint64_t main_bytes = 3'000;
constexpr std::uint64_t private_bytes = 200;
constexpr int rounds = 5;

CheckpointId checkpoint_of(int round) { return {1, round}; }

// Sets of rounds, shared with the child: it widens `may` before it begins something and `must` once it is done.
struct Expectation {
  std::uint32_t must = 0;
  std::uint32_t may = 0;
  void begin(int round, int instead_of = -1) {
    may |= 1u << round;
    if (instead_of >= 0) must &= ~(1u << instead_of);
  }
  void done(int round, int instead_of = -1) {
    must |= 1u << round;
    if (instead_of >= 0) may &= ~(1u << instead_of);
  }
  void begin_drop(int round) { must &= ~(1u << round); }
  void dropped(int round) { may &= ~(1u << round); }
};
struct Expectations {
  Expectation main, private_, held, memory;
  bool control_made = false;
};

// Copies on the calling thread: the child has no other.
class InlineDevice : public device::Device {
 public:
  static void copy(const device::Plan& plan, device::Packed to) {
    kernels::gather_leaves(plan.sources(), plan.offsets(), to.data, 0, plan.leaves(), to.digests);
  }
  void reach(ckpt_memory, const void*) override {}
  void attach(const std::vector<device::Range>&, const device::Owner&) override {}
  void attach_also(const device::Range&, const device::Owner&) override {}
  bool broken() const override { return false; }
  std::string failure() const override { return {}; }
  void start(std::span<const Copy> overlapped, const Copy& synchronous, device::Stream) override {
    for (const Copy& piece : overlapped) copy(*piece.plan, piece.to);
    copy(*synchronous.plan, synchronous.to);
  }
  bool release(std::span<const device::Stream>, std::int64_t, Done done) override {
    done(true);
    return true;
  }
  void cancel() override {}
  std::optional<std::size_t> load(const device::Plan&, device::ConstPacked, device::Stream) override {
    return std::nullopt;
  }
};

// State whose bytes are those of piece_bytes() for a checkpoint.
struct Shard {
  std::vector<std::byte> bytes;
  ShardState state;
  explicit Shard(std::uint64_t size) : bytes(size) {
    state.layout = arena::piece_layout(size);
    state.layout_text = arena::layout_text(state.layout);
    state.layout_hash = arena::layout_hash(state.layout_text);
    state.plan = device::Plan({{bytes.data(), bytes.size()}});
  }
};

// How the trainer of a test captures; the shipped order, or one that is broken on purpose.
using CaptureRound = void (*)(Capture&, AgentSession&, const Grant&, CheckpointId, const RankState&);

void shipped(Capture& capture, AgentSession&, const Grant& grant, CheckpointId checkpoint, const RankState& state) {
  capture.begin(grant, checkpoint, state, nullptr);
  capture.release({}, 1000, [](bool) {});
}

void without_unsealing(Capture& capture, AgentSession& session, const Grant& grant, CheckpointId checkpoint,
                       const RankState& state) {
  auto slot = session.slots->front().writable_slot(grant.slots[0]);
  InlineDevice::copy(state.main.plan, {slot.data(), slot.digests()});
  shipped(capture, session, grant, checkpoint, state);
}

void sealed_too_early(Capture& capture, AgentSession& session, const Grant& grant, CheckpointId checkpoint,
                      const RankState& state) {
  auto slot = session.slots->front().writable_slot(grant.slots[0]);
  slot.begin();
  slot.seal(arena::piece_manifest("rank0", checkpoint, main_bytes));
  shipped(capture, session, grant, checkpoint, state);
}

// One agent and one trainer, turn by turn. Slots: three of the rank's shards, two of a held one.
class Cycle {
 public:
  Cycle(std::string directory, Expectations& expected, CaptureRound capture_round)
      : directory_(std::move(directory)),
        expected_(expected),
        capture_round_(capture_round),
        main_state_(main_bytes),
        private_state_(private_bytes) {
    for (int round = 0; round < rounds; ++round) {
      main_bytes_.push_back(arena::piece_bytes(checkpoint_of(round), main_bytes));
      private_bytes_.push_back(arena::piece_bytes(checkpoint_of(round), private_bytes));
      manifests_.push_back(arena::piece_manifest("rank1", checkpoint_of(round), main_bytes));
    }
  }

  void run() {
    NodeArena node(directory_, "job", "node");
    Control agent = Control::create(directory_, 0);
    expected_.control_made = true;
    const auto spec = [](arena::SegmentKind kind, std::uint32_t slots, const char* shard, std::uint64_t bytes) {
      return arena::SegmentSpec{kind, 0, slots, shard, bytes, arena::manifest_bytes(bytes, 200)};
    };
    auto main = node.create_segment(spec(arena::SegmentKind::local, 3, "rank0", main_bytes), 1);
    auto private_ = node.create_segment(spec(arena::SegmentKind::local, 3, "rank0.private", private_bytes), 1);
    auto held = node.create_segment(spec(arena::SegmentKind::held, 2, "rank1", main_bytes), 1);

    AgentSession session{std::make_shared<Control>(Control::attach(directory_, 0)), nullptr};
    session.slots = std::make_shared<Slots>();
    session.slots->push_back(Segment::attach(main.path(), Segment::Access::write));
    session.slots->push_back(Segment::attach(private_.path(), Segment::Access::write));
    InlineDevice device;
    Capture capture(device, 4);
    capture.attach(session);
    RankState state{std::move(main_state_.state), std::move(private_state_.state), {}};
    state.captured.push_back({"rank0", &state.main, state.main.plan});
    state.captured.push_back({"rank0.private", &state.private_, state.private_.plan});

    for (int round = 0; round < rounds; ++round) {
      const auto slot = static_cast<std::uint8_t>(round % 3);
      // What a slot held before is dropped first, or just overwritten (as what an earlier incarnation left may be).
      const bool drop_first = round % 2 == 0;
      if (round >= 3 && drop_first) {
        drop(round - 3, expected_.main, main.writable_slot(slot));
        drop(round - 3, expected_.private_, private_.writable_slot(slot));
      }
      agent.share({});
      agent.grant({static_cast<std::uint64_t>(round + 1), {slot, slot}});

      main_state_.bytes.assign(main_bytes_[round].begin(), main_bytes_[round].end());
      private_state_.bytes.assign(private_bytes_[round].begin(), private_bytes_[round].end());
      expected_.main.begin(round, round - 3);
      expected_.private_.begin(round, round - 3);
      capture_round_(capture, session, *capture.unused_grant(), checkpoint_of(round), state);
      expected_.main.done(round, round - 3);
      expected_.private_.done(round, round - 3);
      communicate(session.control->comm());

      expected_.memory.begin(round);
      node.remember({checkpoint_of(round), checkpoint_of(round), 1, {}});
      expected_.memory.done(round);
      if (round >= 2) drop(round - 2, expected_.held, held.writable_slot(round % 2));
      fetch(round, held.writable_slot(round % 2));
    }
  }

 private:
  static void communicate(arena::CommWords& words) {
    arena::CommWriter hooks(words);
    hooks.begin(1, Clock::time_point(std::chrono::microseconds(1)));
    hooks.end(1, Clock::time_point(std::chrono::microseconds(2)));
    hooks.iteration(Clock::time_point(std::chrono::microseconds(3)));
  }

  static void drop(int round, Expectation& expectation, arena::WritableSlot slot) {
    expectation.begin_drop(round);
    slot.drop(checkpoint_of(round));
    expectation.dropped(round);
  }

  void fetch(int round, arena::WritableSlot slot) {
    expected_.held.begin(round);
    slot.begin();
    std::memcpy(slot.data(), main_bytes_[round].data(), main_bytes);
    slot.seal(manifests_[round]);
    expected_.held.done(round);
  }

  std::string directory_;
  Expectations& expected_;
  CaptureRound capture_round_;
  Shard main_state_, private_state_;
  std::vector<std::vector<std::byte>> main_bytes_, private_bytes_;
  std::vector<arena::Manifest> manifests_;
};

// Everything that is mapped of the arena's files, as the child sees it.
class LiveFiles {
 public:
  explicit LiveFiles(std::string directory) : directory_(std::move(directory)) {}

  void look() {
    files_.clear();
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      const std::string path = entry.path();
      const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      const auto size = std::filesystem::file_size(path);
      if (fd && size != 0) files_.emplace_back(fd.get(), size, Mapping::Access::read, path);
    }
  }

  // Digest of the first 192 bytes of every page: all words that attaching depends on are there.
  std::uint64_t words() const {
    std::uint64_t digest = files_.size();
    for (const Mapping& file : files_)
      for (std::size_t page = 0; page < file.size_bytes(); page += arena::page_bytes)
        if (page < 2 * arena::page_bytes || is_slot_header(file, page)) digest = mix(digest, file.data() + page);
    return digest;
  }

 private:
  // Slot headers lie behind the segment's header at multiples of the stride.
  static bool is_slot_header(const Mapping& file, std::size_t page) {
    const auto& header = *reinterpret_cast<const arena::SegmentHeader*>(file.data());
    if (file.size_bytes() <= arena::page_bytes || header.magic != arena::segment_magic) return false;
    const std::size_t stride = arena::page_bytes + header.manifest_capacity_bytes + header.data_capacity_bytes;
    return (page - arena::page_bytes) % stride == 0;
  }
  static std::uint64_t mix(std::uint64_t digest, const std::byte* bytes) {
    for (std::size_t i = 0; i < 192; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i, sizeof(word));
      digest = (digest ^ word) * 0x9e3779b97f4a7c15ull;
    }
    return digest;
  }

  std::string directory_;
  std::vector<Mapping> files_;
};

class Checker {
 public:
  Checker(std::string live, const Expectations& expected) : live_(std::move(live)), expected_(expected) {}

  void check() {
    ++images_;
    const TemporaryDirectory image{test::in_memory};
    for (const auto& entry : std::filesystem::directory_iterator(live_)) copy(entry.path(), image.path());
    NodeArena node(image.path(), "job", "node");
    check_set("memory", round_set(node.memory().newest_seen), expected_.memory);
    check_control(image.path());
    std::vector<std::string> removed;
    std::map<std::string, std::uint32_t> found;
    for (const Segment& segment : node.attach_segments(removed))
      for (std::uint32_t i = 0; i < segment.spec().slots; ++i) find(segment, i, found[segment.spec().shard]);
    check_set("main", found["rank0"], expected_.main);
    check_set("private", found["rank0.private"], expected_.private_);
    check_set("held", found["rank1"], expected_.held);
  }

  int images() const { return images_; }
  int violations() const { return violations_; }
  const std::string& first_violation() const { return first_violation_; }

 private:
  static void copy(const std::filesystem::path& from, const std::string& to) {
    if (from.filename() == "node" || std::filesystem::file_size(from) != 0)
      std::filesystem::copy_file(from, to + "/" + from.filename().string());
  }
  static std::uint32_t round_set(CheckpointId checkpoint) {
    return checkpoint ? (2u << checkpoint.iteration()) - 1 : 0;
  }

  void violation(const std::string& sentence) {
    if (violations_++ == 0) first_violation_ = sentence;
  }

  void check_set(const char* what, std::uint32_t found, const Expectation& expected) {
    if ((expected.must & ~found) != 0 || (found & ~expected.may) != 0)
      violation(std::string(what) + ": found " + std::to_string(found) + ", must " + std::to_string(expected.must) +
                ", may " + std::to_string(expected.may));
  }

  void check_control(const std::string& directory) {
    try {
      const Control control = Control::attach(directory, 0);
      if (control.used_grant() > control.grant().sequence) violation("a grant was used before it was given");
      for (const auto& channel : control.comm().channels)
        if (channel.begun - channel.ended > 1) violation("a communication ended before it began, or never did");
    } catch (const Failure& failure) {
      if (expected_.control_made) violation(failure.what());
    }
  }

  void find(const Segment& segment, std::uint32_t index, std::uint32_t& found) {
    const auto slot = segment.slot(index);
    const auto manifest = slot.read();
    if (!manifest) return;
    if (!arena::piece_is_whole(slot, *manifest)) return violation("a torn piece of " + segment.spec().shard);
    found |= 1u << manifest->checkpoint.iteration();
  }

  std::string live_;
  const Expectations& expected_;
  int images_ = 0;
  int violations_ = 0;
  std::string first_violation_;
};

struct Result {
  bool ended_well = false;
  int steps = 0;
  int images = 0;
  int violations = 0;
  std::string first_violation;
};

Result run_cycle(CaptureRound capture_round) {
  constexpr int look_anyway_steps = 64;
  const TemporaryDirectory directory{test::in_memory};
  void* shared = ::mmap(nullptr, sizeof(Expectations), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& expected = *new (shared) Expectations;
  Cycle cycle(directory.path(), expected, capture_round);
  LiveFiles live(directory.path());
  Checker checker(directory.path(), expected);
  Result result;
  std::uint64_t words = 0;
  result.ended_well = testing_support::single_step([&] { cycle.run(); },
                                                   [&](bool was_system_call) {
                                                     if (was_system_call) live.look();
                                                     const std::uint64_t now = live.words();
                                                     const bool look_anyway = ++result.steps % look_anyway_steps == 0;
                                                     if (was_system_call || look_anyway || now != words)
                                                       checker.check();
                                                     words = now;
                                                   });
  result.images = checker.images();
  result.violations = checker.violations();
  result.first_violation = checker.first_violation();
  ::munmap(shared, sizeof(Expectations));
  return result;
}

TEST(StorePrefix, AttachingAfterAnyInstructionFindsOnlyCompletePieces) {
  const Result result = run_cycle(shipped);
  EXPECT_TRUE(result.ended_well);
  EXPECT_EQ(result.violations, 0) << result.first_violation;
  EXPECT_GT(result.steps, 10'000);
  EXPECT_GT(result.images, 1000);
  RecordProperty("instructions", result.steps);
  RecordProperty("images", result.images);
  std::cout << result.steps << " instructions, " << result.images << " images\n";
}

TEST(StorePrefix, CheckNoticesOverwritingASealedPiece) { EXPECT_GT(run_cycle(without_unsealing).violations, 0); }

TEST(StorePrefix, CheckNoticesSealingBeforeTheBytesAreWritten) { EXPECT_GT(run_cycle(sealed_too_early).violations, 0); }

}  // namespace
}  // namespace ckpt::client
