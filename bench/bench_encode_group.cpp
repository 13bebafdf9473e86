// Measures how four nodes encode the parity of a group, xor(4). Each node is a process with a shard in its arena, and
// with the parts of an agent that encode. All make their parity at the same time. There are three sides:
//
//   ours    As agents do it: a member fetches ranges of all shards at once, in chunks. It verifies, combines and
//   digests
//           each leaf in one pass.
//   theirs  As redset does it: a member fetches the segments that it needs one after the other, each as a whole, into
//           memory of its own. Then it adds them up in a plain loop and digests the result. It verifies nothing.
//   fetch   The network alone: every member fetches its neighbour's whole shard and does not look at it.
//
// In all three, each member receives the same number of bytes over the same transport.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <future>
#include <iostream>
#include <sstream>

#include "agent/transfers/coding_job.hpp"
#include "bench/comparison.hpp"
#include "bench/pieces.hpp"
#include "net/transport.hpp"
#include "tests/net/child_process.hpp"

namespace ckpt::bench {
namespace {

using net::testing::ChildProcess;

constexpr std::uint32_t members = 4;
constexpr std::int64_t timeout_ms = 60'000;
const CheckpointId checkpoint(1, 1);
const std::vector<std::string> sides = {"ours", "theirs", "fetch"};

struct Settings {
  std::size_t mib = 256;
  int rounds = 7;
  std::string transport;  // "tcp" or "shm"; "": both
  // Only in a member's process:
  std::string member_of;
  std::uint32_t member = 0;
};

std::string shard_of(std::uint32_t member) { return "rank" + std::to_string(member); }

// Receives a range into given memory, and verifies nothing.
class BlindSink : public net::Sink {
 public:
  explicit BlindSink(std::span<std::byte> into) : into_(into) {}
  std::optional<std::span<std::byte>> begin(std::span<const std::byte>, std::size_t data_bytes) override {
    if (data_bytes != into_.size()) return std::nullopt;
    return into_;
  }
  void received(std::size_t, std::size_t) override {}
  void ended(net::FetchEnd end) override { end_.set_value(end); }
  void wait() {
    if (end_.get_future().get() != net::FetchEnd::complete) throw std::runtime_error("a range did not arrive");
  }

 private:
  const std::span<std::byte> into_;
  std::promise<net::FetchEnd> end_;
};

// The compiler turns this loop into vector code.
void add(const std::byte* __restrict data, std::size_t size_bytes, std::byte* __restrict to) {
  for (std::size_t i = 0; i < size_bytes; ++i) to[i] ^= data[i];
}

// A member's process. From standard input it reads the root digests and addresses of all members, and then commands. It
// answers each command with the root digest of the parity that it made.
class Member {
 public:
  explicit Member(const Settings& settings)
      : self_(settings.member),
        shard_bytes_(settings.mib << 20),
        shard_(nameless_segment(shard_of(self_), shard_bytes_)),
        report_batch_(shard_bytes_ + 4 * placement::parity_unit_bytes, std::byte{1}) {
    auto slot = shard_->writable_slot(0);
    slot.begin();
    fill(slot.data(), shard_bytes_, self_);
    const auto manifest = manifest_of(shard_of(self_), checkpoint, slot.data(), shard_bytes_, members);
    slot.seal(manifest);
    index_.add({0, shard_of(self_), 0}, shard_, manifest);
    net::TransportOptions options;
    options.job = "bench";
    options.token = "bench";
    options.node = self_;
    options.node_instance = self_ + 1;
    options.transports = settings.member_of;
    options.interface = "lo";
    net::Transport::Handlers handlers;
    handlers.serve = [this](const net::Asker&, const net::PieceName& name) -> std::optional<net::ServedPiece> {
      const auto pin = index_.find(name.shard, CheckpointId::from_word(name.checkpoint));
      if (pin == nullptr) return std::nullopt;
      return net::ServedPiece{pin->encoded_manifest(),
                              {pin->data(), pin->manifest().length_bytes},
                              std::const_pointer_cast<agent::HeldPiece>(pin)};
    };
    transport_ = net::Transport::create(options, handlers);
    port_ = std::make_shared<agent::TransportPort>(*transport_);
    std::cout << manifest.root_digest << ' ' << transport_->address() << std::endl;
  }

  void join() {
    parity_manifest_ = {1, self_, {}};
    for (std::uint32_t m = 0; m < members; ++m) {
      std::uint64_t root = 0;
      std::string address;
      std::cin >> root;
      std::cin.ignore();
      std::getline(std::cin, address);
      parity_manifest_.sources.push_back({shard_of(m), shard_bytes_, 0, root});
      if (m != self_) transport_->set_peer(m, m + 1, address);
    }
    const auto length_bytes = core::layout_of(parity_manifest_).parity_bytes_of(self_);
    std::vector<std::string> shards;
    for (const auto& each : parity_manifest_.sources) shards.push_back(each.shard);
    piece_ = {core::parity_name(1, shards, self_), checkpoint, length_bytes, 0, 0, members, parity_manifest_};
    parity_ = nameless_segment(piece_.shard, length_bytes, agent::encoded_bytes(parity_manifest_));
    added_.resize(length_bytes);
  }

  // The root digest of the parity; 0 if none was made.
  std::uint64_t run(const std::string& side) {
    if (side == "ours") return ours();
    if (side == "theirs") return theirs();
    fetch((self_ + 1) % members, {0, shard_bytes_}, report_batch_.data());
    return 0;
  }

 private:
  std::uint64_t ours() {
    core::CodingInputs coding_inputs{parity_manifest_, {}};
    for (std::uint32_t m = 0; m < members; ++m)
      coding_inputs.sources.push_back({shard_of(m), m, parity_manifest_.sources[m].root_digest});
    std::promise<agent::CodingJob::Outcome> done;
    const auto made = std::make_shared<agent::CodingJob>(
        agent::CodingJob::Dependencies{self_, index_, pool_, buffers_, port_},
        agent::FetchDestination(parity_, 0, piece_), std::move(coding_inputs),
        [&done](agent::CodingJob::Outcome outcome) { done.set_value(std::move(outcome)); });
    made->start();
    const auto outcome = done.get_future().get();
    if (outcome.result != core::FetchResult::complete) throw std::runtime_error("the parity was not made");
    return outcome.manifest->root_digest;
  }

  std::uint64_t theirs() {
    const auto layout = core::layout_of(parity_manifest_);
    const std::uint32_t stripe = layout.stripe_of_row(self_, 0);
    std::byte* end = report_batch_.data();
    std::vector<std::pair<const std::byte*, std::size_t>> segments;
    for (std::uint32_t column = 0; column < layout.columns(); ++column) {
      const std::uint32_t from = layout.member_at(stripe, column);
      const auto range = layout.segment(from, column);
      fetch(from, range, end);
      segments.emplace_back(end, range.size_bytes);
      end += range.size_bytes;
    }
    std::fill(added_.begin(), added_.end(), std::byte{0});
    for (const auto& [data, size] : segments) add(data, size, added_.data());
    return manifest_of(piece_.shard, checkpoint, added_.data(), added_.size()).root_digest;
  }

  void fetch(net::PeerId from, placement::ByteRange range, std::byte* into) {
    const auto sink = std::make_shared<BlindSink>(std::span(into, range.size_bytes));
    transport_->fetch(from, {shard_of(from), checkpoint.word()}, {range.first_byte, range.size_bytes, false}, sink,
                      timeout_ms);
    sink->wait();
  }

  const std::uint32_t self_;
  const std::size_t shard_bytes_;
  const std::shared_ptr<arena::Segment> shard_;
  std::shared_ptr<arena::Segment> parity_;
  std::vector<std::byte> report_batch_;
  std::vector<std::byte> added_;
  core::ParityManifest parity_manifest_;
  core::PieceInfo piece_;
  agent::PieceIndex index_;
  agent::ChunkBuffers buffers_;
  agent::WorkerPool pool_{digest_threads};
  std::unique_ptr<net::Transport> transport_;
  std::shared_ptr<agent::TransportPort> port_;
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return double(time.tv_sec) + double(time.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int be_member(const Settings& settings) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Member member(settings);
  member.join();
  for (std::string command; std::getline(std::cin, command);) {
    if (command == "cpu")
      std::cout << cpu_seconds() << std::endl;
    else
      std::cout << member.run(command) << std::endl;
  }
  return 0;
}

// The processes of all members, as the bench's main process sees them.
class Group {
 public:
  Group(const Settings& settings, const std::string& transport) {
    std::string all;
    for (std::uint32_t m = 0; m < members; ++m) {
      processes_.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{"/proc/self/exe", "--member-of", transport, "--member", std::to_string(m), "--mib",
                                   std::to_string(settings.mib)}));
    }
    for (const auto& process : processes_) all += (all.empty() ? "" : "\n") + process->read_line();
    notify(all);
  }

  struct Measured {
    double seconds = 0;
    double cpu_seconds = 0;
    std::vector<std::string> made;  // what each member answered
  };
  Measured run(const std::string& side) {
    const double cpu_before = cpu();
    const auto begin = Clock::now();
    notify(side);
    Measured measured;
    measured.made = answers();
    measured.seconds = seconds_since(begin);
    measured.cpu_seconds = cpu() - cpu_before;
    return measured;
  }

 private:
  void notify(const std::string& text) {
    for (const auto& process : processes_) process->write_line(text);
  }
  std::vector<std::string> answers() {
    std::vector<std::string> lines;
    for (const auto& process : processes_) {
      lines.push_back(process->read_line());
      if (lines.back().empty()) throw std::runtime_error("a member's process ended");
    }
    return lines;
  }
  double cpu() {
    notify("cpu");
    double seconds = 0;
    for (const std::string& answer : answers()) seconds += std::stod(answer);
    return seconds;
  }

  std::vector<std::unique_ptr<ChildProcess>> processes_;
};

void compare(const Settings& settings, const std::string& transport) {
  Group group(settings, transport);
  const std::string name = "encode_group_" + transport;
  const std::size_t bytes = members * (settings.mib << 20);
  std::vector<std::string> made;  // the members' parity: the same for ours and theirs, in every round
  std::vector<Side> all;
  for (const std::string& side : sides) {
    all.push_back({side, bytes, [&, side](benchmark::UserCounters& counters) {
                     const Group::Measured measured = group.run(side);
                     if (made.empty() && side != "fetch") made = measured.made;
                     if (side != "fetch" && measured.made != made)
                       throw std::runtime_error("the two sides' parity differs");
                     counters["cpu_s"] = measured.cpu_seconds;
                     return measured.seconds;
                   }});
  }
  const auto found = measure(name, all, settings.rounds);
  const double ours_s = found[0].seconds, theirs_s = found[1].seconds;
  print_ratio({.name = name, .value = theirs_s / ours_s, .ours = ours_s, .theirs = theirs_s, .unit = "s"});
  print_ratio(ratio_of_rates(name + "_of_fetch", gigabytes_per_second(bytes, ours_s),
                             gigabytes_per_second(bytes, found[2].seconds)));
}

int run(int argc, char** argv) {
  initialize(&argc, argv);
  Settings settings;
  CLI::App app("Parity of four nodes' shards against gathering them first");
  app.add_option("--mib", settings.mib, "MiB of each shard")->check(CLI::Range(1, 4096));
  app.add_option("--rounds", settings.rounds)->check(CLI::Range(1, 100));
  app.add_option("--transport", settings.transport, "default: both")->check(CLI::IsMember({"tcp", "shm"}));
  app.add_option("--member-of", settings.member_of)->group("");
  app.add_option("--member", settings.member)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!settings.member_of.empty()) return be_member(settings);
    for (const std::string transport : {"tcp", "shm"}) {
      if (settings.transport.empty() || settings.transport == transport) compare(settings, transport);
    }
  } catch (const std::exception& failure) {
    std::cerr << "bench_encode_group: " << failure.what() << '\n';
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace ckpt::bench

int main(int argc, char** argv) { return ckpt::bench::run(argc, argv); }
