// Measures how fast a shard goes to storage and comes back, by a CheckpointWriter and a ReadQueue, which check every
// leaf. Compares that with fio in the same directory, with the same block size, queue depth and direct flag. Our time
// to write includes all that makes a checkpoint durable and complete: its records, and every sync of a file or
// directory. fio's time ends with the sync of its file.
//
//   bench_persist [--directory DIR] [--mib N] [--rounds N] [--block-kib N] [--depth N] [--buffered]
//
// With --serve, the program is our side of bench/persist.py. For each line "write" or "read" of standard input, it does
// that and prints how many seconds it took.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <nlohmann/json.hpp>

#include "arena/layout.hpp"
#include "base/clock.hpp"
#include "bench/comparison.hpp"
#include "kernels/digest.hpp"
#include "persist/checkpoint_catalog.hpp"
#include "persist/checkpoint_writer.hpp"
#include "persist/read_queue.hpp"
#include "persist/storage_source.hpp"
#include "persist/transfer.hpp"

using namespace ckpt;
using namespace ckpt::persist;

namespace {

struct Settings {
  std::string directory = std::filesystem::temp_directory_path().string();
  std::size_t mib = 1024;
  int rounds = 5;
  std::size_t block_kib = 1024;
  unsigned depth = 16;
  bool buffered = false;
  std::string tensors_path;  // JSON, [[name, shape], ...], all float32; empty: one tensor
  bool serve = false;

  std::size_t bytes() const { return mib << 20; }
  FileSystemOptions file_system() const {
    return {.queue_depth = depth, .block_bytes = block_kib << 10, .direct = !buffered};
  }
};

// A folder for both sides, which is removed at the end.
class Workplace {
 public:
  explicit Workplace(const std::string& base) : path_(base + "/ckpt-bench-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make a folder in " + base);
  }
  ~Workplace() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

arena::Layout layout_of(const Settings& settings) {
  if (settings.tensors_path.empty()) return arena::pack({{"w", CKPT_U64, {std::int64_t(settings.bytes() / 8)}, 0, 0}});
  std::vector<arena::LayoutEntry> tensors;
  std::ifstream file(settings.tensors_path);
  for (const auto& tensor : nlohmann::json::parse(file))
    tensors.push_back({tensor.at(0), CKPT_F32, tensor.at(1).get<std::vector<std::int64_t>>(), 0, 0});
  return arena::pack(std::move(tensors));
}

template <class Work>
double seconds(Work work) {
  const auto begin = Clock::now();
  work();
  return milliseconds_between(begin, Clock::now()) / 1e3;
}

// A shard in a slot like an arena's. Writes it to storage and reads it back.
class Ours {
 public:
  static constexpr unsigned reading_threads = 2;  // the queue depth is divided between them

  Ours(const Settings& settings, const std::string& folder) : Ours(settings, folder, layout_of(settings)) {}
  Ours(const Settings& settings, const std::string& folder, const arena::Layout& layout)
      : files_(open_file_system(folder, settings.file_system())),
        queue_(
            [=](std::stop_token stop) {
              FileSystemOptions options = settings.file_system();
              options.queue_depth = std::max(1u, settings.depth / reading_threads);
              options.stop = std::move(stop);
              return std::make_unique<StorageSource>(open_file_system(folder, options), "job");
            },
            {.threads = reading_threads}),
        from_(make_aligned_buffer(layout.length_bytes)),
        to_(make_aligned_buffer(layout.length_bytes)) {
    const std::size_t bytes = layout.length_bytes;
    auto* const words = reinterpret_cast<std::uint64_t*>(from_.get());
    for (std::size_t i = 0; i < bytes / 8; ++i) words[i] = i * 0x9e3779b97f4a7c15ull;
    std::fill_n(to_.get(), bytes, std::byte{0});
    manifest_.shard = "rank0";
    manifest_.world_size = 1;
    manifest_.length_bytes = bytes;
    manifest_.layout = arena::layout_text(layout);
    manifest_.layout_hash = arena::layout_hash(manifest_.layout);
    manifest_.leaves.resize(kernels::leaf_count(bytes));
    kernels::digest_leaves(from_.get(), bytes, manifest_.leaves.data());
    manifest_.root_digest = kernels::root_digest(manifest_.leaves, bytes);
  }

  double write() {
    manifest_.checkpoint = CheckpointId(1, ++iteration_);
    RateLimiter unlimited(0, clock_);
    const double time = seconds([&] {
      CheckpointWriter writer(*files_, "job", "node", unlimited);
      writer.write({std::make_shared<arena::Manifest>(manifest_), from_.get(), from_});
      writer.commit(manifest_.checkpoint, 1, {"rank0"});
    });
    prune_checkpoints(*files_, "job", {.keep_last = 1});
    return time;
  }

  double read() {
    return seconds([&] {
      std::promise<ReadOutcome> outcome;
      queue_.read("rank0", manifest_.checkpoint, {0, manifest_.length_bytes}, to_.get(),
                  [&](const ReadOutcome& found) { outcome.set_value(found); });
      if (const ReadOutcome found = outcome.get_future().get(); !found.ok()) throw std::runtime_error(found.sentence);
    });
  }

 private:
  RateLimiterClock clock_;
  std::unique_ptr<FileSystem> files_;
  ReadQueue queue_;
  std::shared_ptr<std::byte> from_, to_;
  arena::Manifest manifest_;
  std::int64_t iteration_ = 0;
};

double fio_seconds(const Settings& settings, const std::string& folder, const std::string& way) {
  const std::string command = "fio --name=bench --filename=" + folder + "/fio --rw=" + way +
                              " --ioengine=io_uring --direct=" + (settings.buffered ? "0" : "1") +
                              " --bs=" + std::to_string(settings.block_kib) +
                              "k --iodepth=" + std::to_string(settings.depth) +
                              " --size=" + std::to_string(settings.mib) +
                              "m --end_fsync=1 --unlink=0 --overwrite=0 --thread --output-format=json 2>/dev/null";
  if (way == "write") std::filesystem::remove(folder + "/fio");
  FILE* const output = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part{};
  while (output != nullptr && std::fgets(part.data(), part.size(), output) != nullptr) text += part.data();
  if (output == nullptr || ::pclose(output) != 0)
    throw std::runtime_error("fio failed; is the package fio installed? The command was: " + command);
  const auto job = nlohmann::json::parse(text.substr(text.find('{'))).at("jobs").at(0).at(way);
  return double(settings.bytes()) / job.at("bw_bytes").get<double>();
}

void compare(const Settings& settings, const std::string& way, const std::function<double()>& ours,
             const std::function<double()>& theirs) {
  const auto side = [&](const char* name, const std::function<double()>& run) {
    return bench::Side{name, settings.bytes(), [run](benchmark::UserCounters&) { return run(); }};
  };
  const auto found = bench::measure("persist_" + way, {side("ours", ours), side("fio", theirs)}, settings.rounds);
  bench::print_ratio(bench::ratio_of_rates("persist_" + way,
                                           bench::gigabytes_per_second(settings.bytes(), found[0].seconds),
                                           bench::gigabytes_per_second(settings.bytes(), found[1].seconds)));
}

void serve(Ours& ours) {
  for (std::string order; std::getline(std::cin, order);)
    std::printf("%.6f\n", order == "write" ? ours.write() : ours.read());
}

}  // namespace

int main(int argc, char** argv) {
  bench::initialize(&argc, argv);
  Settings settings;
  CLI::App app("Writing a shard to storage and reading it against fio");
  app.add_option("--directory", settings.directory, "where to write, an absolute path");
  app.add_option("--mib", settings.mib, "size of the shard in MiB")->check(CLI::Range(1, 65536));
  app.add_option("--rounds", settings.rounds)->check(CLI::Range(1, 100));
  app.add_option("--block-kib", settings.block_kib, "size of a block, a multiple of 64")->check(CLI::Range(64, 65536));
  app.add_option("--depth", settings.depth)->check(CLI::Range(1, 1024));
  app.add_flag("--buffered", settings.buffered, "go through the page cache");
  app.add_option("--tensors", settings.tensors_path, "JSON file with the tensors' names and shapes, in place of --mib");
  app.add_flag("--serve", settings.serve, "take commands from standard input");
  CLI11_PARSE(app, argc, argv);
  try {
    const Workplace workplace(settings.directory);
    Ours ours(settings, workplace.path());
    if (settings.serve) {
      serve(ours);
      return 0;
    }
    const auto fio = [&](const char* way) { return [&, way] { return fio_seconds(settings, workplace.path(), way); }; };
    compare(
        settings, "write", [&] { return ours.write(); }, fio("write"));
    compare(
        settings, "read", [&] { return ours.read(); }, fio("read"));
  } catch (const std::exception& failure) {
    std::cerr << "bench_persist: " << failure.what() << '\n';
    return 1;
  }
}
