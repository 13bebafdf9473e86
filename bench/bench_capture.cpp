// Compares capture into the arena and restore out of it, digests included, with memcpy of the same bytes between
// touched memory. Both sides run in one process, with the same number of threads. The medians are compared. The state
// is GPT-2's tensors in float32, with as many layers as fill the size. Each ratio is the worst of all sizes.
//
// Our side is the trainer's own code. Capture::begin() and release(), which snapshot() and before_update() call,
// capture into the slots of a segment in tmpfs in turn. HostDevice::load() restores. Their side is one memcpy for each
// tensor, with the bytes divided equally among the threads.

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arena/node_arena.hpp"
#include "base/error.hpp"
#include "bench/comparison.hpp"
#include "bench/gpt2.hpp"
#include "client/capture.hpp"
#include "device/host_device.hpp"

namespace {

using namespace ckpt;
using Clock = std::chrono::steady_clock;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// A trainer's side of the arena. This class also does what the agent does for it.
class Trainer {
 public:
  Trainer(std::size_t total_bytes, unsigned threads)
      : device_(threads), state_(total_bytes, device_), capture_(device_, 1) {
    std::string name = "/dev/shm/ckptengine-bench-XXXXXX";
    directory_ = ::mkdtemp(name.data());
    arena_ = std::make_unique<arena::NodeArena>(directory_, "bench", "node");
    control_ = std::make_shared<arena::Control>(arena::Control::create(directory_, 0));
    slots_ = std::make_shared<client::Slots>();
    slots_->push_back(segment("rank0", state().main));
    slots_->push_back(segment("rank0.private", state().private_));
    control_->share({});
    capture_.attach({control_, slots_});
  }
  ~Trainer() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  const client::RankState& state() { return state_.rank(); }
  const device::Plan& plan() { return state_.plan(); }

  void capture() {
    const std::uint64_t sequence = ++iteration_;
    const auto slot = static_cast<std::uint8_t>(sequence % slots);
    control_->grant({sequence, {slot, slot}});
    capture_.begin(*capture_.unused_grant(), CheckpointId(1, static_cast<std::int64_t>(sequence)), state(), nullptr);
    if (!capture_.release({}, 60'000, [](bool) {})) std::abort();
    newest_ = slot;
  }
  void restore() {
    const auto slot = slots_->front().slot(newest_);
    const auto manifest = slot.read();
    if (!manifest || device_.load(plan(), {slot.data(), manifest->leaves.data()}, nullptr)) std::abort();
  }

 private:
  static constexpr std::uint32_t slots = 3;

  arena::Segment segment(const char* shard, const client::ShardState& state) {
    return arena_->create_segment({arena::SegmentKind::local, 0, slots, shard, state.length_bytes(),
                                   arena::manifest_bytes(state.length_bytes(), state.layout_text.size())},
                                  2);
  }

  device::HostDevice device_;
  bench::Gpt2State state_;
  client::Capture capture_;
  std::string directory_;
  std::unique_ptr<arena::NodeArena> arena_;
  std::shared_ptr<arena::Control> control_;
  std::shared_ptr<client::Slots> slots_;
  std::uint64_t iteration_ = 0;
  std::uint32_t newest_ = 0;
};

// Copies the same tensors to or from one block by memcpy, on threads that wait for work as ours do.
class PlainCopy {
 public:
  PlainCopy(const device::Plan& plan, unsigned threads)
      : plan_(plan), threads_(threads), pool_(threads), packed_(bench::touched(plan.length_bytes())) {}

  void run(bool to_tensors) {
    pool_.start(threads_, [&](std::size_t first, std::size_t last) {
      share(to_tensors, plan_.length_bytes() * first / threads_, plan_.length_bytes() * last / threads_);
      return true;
    });
    if (!pool_.wait(Deadline::in_ms(60'000))) std::abort();
  }

 private:
  void share(bool to_tensors, std::size_t begin, std::size_t end) {
    for (std::size_t i = 0; i < plan_.targets().size(); ++i) {
      const std::size_t from = std::max(begin, plan_.offsets()[i]), to = std::min(end, plan_.offsets()[i + 1]);
      if (from >= to) continue;
      std::byte* tensor = plan_.targets()[i].data + (from - plan_.offsets()[i]);
      std::memcpy(to_tensors ? tensor : packed_.get() + from, to_tensors ? packed_.get() + from : tensor, to - from);
    }
  }

  const device::Plan& plan_;
  unsigned threads_;
  device::CopyPool pool_;
  bench::Memory packed_;
};

}  // namespace

int main(int argc, char** argv) {
  bench::initialize(&argc, argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 31;
  if (rounds < 1 || argc > 2) {
    std::fprintf(stderr, "usage: bench_capture [ROUNDS]\n");
    return 2;
  }
  std::map<std::string, bench::Ratio> worst;
  for (const std::size_t size_mib : {256, 1024}) {
    for (const unsigned threads : {1u, 2u}) {
      Trainer trainer(size_mib * mebibyte, threads);
      PlainCopy plain(trainer.plan(), threads);
      const std::size_t bytes = trainer.plan().length_bytes();
      const auto begin = Clock::now();
      trainer.capture();
      const double first_ms = milliseconds_between(begin, Clock::now());
      std::printf("%zu MiB in %zu tensors, %u thread%s: first capture %.1f ms\n", bytes / mebibyte,
                  trainer.plan().targets().size(), threads, threads == 1 ? "" : "s", first_ms);
      const std::string suffix = threads == 1 ? "" : "_2";
      for (const bool restoring : {false, true}) {
        const std::string name = (restoring ? "restore_local" : "capture") + suffix;
        const auto ours = [&] { restoring ? trainer.restore() : trainer.capture(); };
        const auto found = bench::measure(
            name, {bench::timed("ours", bytes, ours), bench::timed("memcpy", bytes, [&] { plain.run(restoring); })},
            rounds);
        const bench::Ratio ratio = bench::ratio_of_rates(name, bench::gigabytes_per_second(bytes, found[0].seconds),
                                                         bench::gigabytes_per_second(bytes, found[1].seconds));
        if (!worst.contains(name) || ratio.value < worst[name].value) worst[name] = ratio;
      }
    }
  }
  for (const auto& [name, ratio] : worst) bench::print_ratio(ratio);
  return 0;
}
