// How fast a piece comes from another process over the transport, every leaf verified as it lands, against the active
// message bandwidth of ucx_perftest with the same transport and message size. ucx_perftest sends and receives the same
// buffer again and again, without peer-failure mode, and looks at no byte; over shm, where that matters most, theirs is
// its time plus one pass of the xxHash library over as many bytes.
//
//   bench_replicate [--mib N] [--rounds N] [--chunk-mib N] [--chunks-in-flight N] [--transport tcp|shm]
//
// The message size is 16 MiB: two buffers of it outgrow a cache of 32 MiB, as a checkpoint does. With small messages
// ucx_perftest measures the cache (the fetch itself hardly depends on the size).
//
// The two sides take turns; the median round of each counts. Both use loopback and two processes.
#include <sys/prctl.h>
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "kernels/digest.hpp"
#include "net/socket_address.hpp"
#include "net/transport.hpp"
#include "tests/net/child_process.hpp"

namespace {

using ckpt::Clock;
using ckpt::net::testing::ChildProcess;
using Bytes = std::vector<std::byte>;

struct Settings {
  std::size_t mib = 512;
  int rounds = 5;
  std::size_t chunk_mib = 16;
  std::size_t chunks_in_flight = 4;
  std::string transport;
  std::string source_of;  // internal: be the source, over this transport

  std::size_t bytes() const { return mib << 20; }
  std::size_t chunk_bytes() const { return chunk_mib << 20; }
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Bytes filled(std::size_t size_bytes) {
  Bytes bytes(size_bytes);
  std::uint64_t state = 88172645463325252ull;
  for (std::size_t i = 0; i + 8 <= size_bytes; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(&bytes[i], &state, 8);
  }
  return bytes;
}

std::vector<std::uint64_t> leaves_of(const Bytes& data) {
  std::vector<std::uint64_t> leaves(ckpt::kernels::leaf_count(data.size()));
  ckpt::kernels::digest_leaves(data.data(), data.size(), leaves.data());
  return leaves;
}

ckpt::net::TransportOptions options_for(const Settings& settings, const std::string& transport,
                                        ckpt::net::NodeId node) {
  ckpt::net::TransportOptions options;
  options.job = "bench";
  options.node = node;
  options.node_instance = node;
  options.transports = transport;
  options.interface = "lo";
  options.chunk_bytes = settings.chunk_bytes();
  options.chunks_in_flight = settings.chunks_in_flight;
  return options;
}

// The other process: serves one piece with its leaf digests as manifest until its starter ends.
int be_source(const Settings& settings) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Bytes data = filled(settings.bytes());
  const auto leaves = leaves_of(data);
  ckpt::net::Transport::Handlers handlers;
  handlers.serve = [&](ckpt::net::NodeId, const ckpt::net::PieceName&) {
    return ckpt::net::Source{std::as_bytes(std::span(leaves)), data, nullptr};
  };
  const auto transport = ckpt::net::Transport::create(options_for(settings, settings.source_of, 2), handlers);
  std::cout << transport->address() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return 0;
}

// Receives into pre-faulted memory; a thread of its own checks every leaf of what has landed.
class VerifyingSink : public ckpt::net::Sink {
 public:
  explicit VerifyingSink(std::span<std::byte> memory) : memory_(memory), checker_([this] { check(); }) {}
  ~VerifyingSink() override { checker_.join(); }

  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override {
    expected_.resize(manifest.size() / sizeof(std::uint64_t));
    std::memcpy(expected_.data(), manifest.data(), manifest.size());
    return memory_.first(data_bytes);
  }
  void landed(std::size_t offset_bytes, std::size_t size_bytes) override { put({offset_bytes, size_bytes}); }
  void ended(ckpt::net::FetchEnd end) override {
    complete_ = end == ckpt::net::FetchEnd::complete;
    put({0, 0});
  }
  // Whether all came and every leaf was right.
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return checked_; });
    return complete_ && verified_leaves_ == expected_.size();
  }

 private:
  struct Range {
    std::size_t offset, size;
  };
  void put(Range range) {
    const std::lock_guard lock(mutex_);
    landed_.push_back(range);
    changed_.notify_all();
  }
  Range take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !landed_.empty(); });
    const Range range = landed_.front();
    landed_.pop_front();
    return range;
  }
  void check() {
    constexpr std::size_t leaf = ckpt::kernels::leaf_size_bytes;
    for (Range range = take(); range.size != 0; range = take()) {
      for (std::size_t at = range.offset; at < range.offset + range.size; at += leaf) {
        const std::size_t size = std::min(leaf, range.offset + range.size - at);
        verified_leaves_ += ckpt::kernels::leaf_digest(&memory_[at], size) == expected_[at / leaf];
      }
    }
    const std::lock_guard lock(mutex_);
    checked_ = true;
    changed_.notify_all();
  }

  const std::span<std::byte> memory_;
  std::vector<std::uint64_t> expected_;
  std::size_t verified_leaves_ = 0;
  bool complete_ = false;
  bool checked_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Range> landed_;
  std::thread checker_;
};

// A source process and a transport that fetches from it.
class Ours {
 public:
  Ours(const Settings& settings, const std::string& transport)
      : source_({"/proc/self/exe", "--source-of", transport, "--mib", std::to_string(settings.mib), "--chunk-mib",
                 std::to_string(settings.chunk_mib), "--chunks-in-flight", std::to_string(settings.chunks_in_flight)}),
        transport_(ckpt::net::Transport::create(options_for(settings, transport, 1), {})),
        memory_(settings.bytes()) {
    transport_->set_peer(2, 2, source_.read_line());
  }
  double fetch_seconds() {
    const auto sink = std::make_shared<VerifyingSink>(memory_);
    const auto begin = Clock::now();
    transport_->fetch(2, {"piece", 1}, sink, 60'000);
    if (!sink->wait()) throw std::runtime_error("the piece did not arrive whole");
    return seconds_since(begin);
  }
  double xxhash_seconds() {
    const auto begin = Clock::now();
    [[maybe_unused]] const volatile auto digest = XXH3_64bits(memory_.data(), memory_.size());
    return seconds_since(begin);
  }

 private:
  ChildProcess source_;
  const std::unique_ptr<ckpt::net::Transport> transport_;
  Bytes memory_;
};

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto address = *ckpt::net::parse_socket_address("127.0.0.1:0");
  auto* bound = reinterpret_cast<sockaddr*>(&address.storage);
  const bool failed =
      ::bind(fd, address.get(), address.size_bytes) != 0 || ::getsockname(fd, bound, &address.size_bytes) != 0;
  ::close(fd);
  if (failed) throw std::runtime_error("no free port on 127.0.0.1");
  const std::string text = to_text(address);
  return std::stoi(text.substr(text.rfind(':') + 1));
}

std::vector<std::string> perftest_command(const std::string& transport, int port) {
  std::vector<std::string> command = {"/usr/bin/env"};
  if (transport == "tcp") {
    command.insert(command.end(), {"UCX_TLS=tcp", "UCX_NET_DEVICES=lo"});
  } else {
    command.insert(command.end(), {"UCX_TLS=shm,self"});
  }
  command.insert(command.end(), {"ucx_perftest", "-p", std::to_string(port)});
  return command;
}

// Seconds that ucx_perftest needs for as many bytes.
double perftest_seconds(const Settings& settings, const std::string& transport) {
  const int port = free_port();
  ChildProcess server(perftest_command(transport, port));
  auto command = perftest_command(transport, port);
  const std::size_t messages = settings.bytes() / settings.chunk_bytes();
  command.insert(command.end(), {"127.0.0.1", "-t", "ucp_am_bw", "-s", std::to_string(settings.chunk_bytes()), "-n",
                                 std::to_string(messages), "-w", "8", "-f", "-v"});
  for (int attempt = 0; attempt < 100; ++attempt) {  // until the server listens
    ChildProcess client(command);
    for (std::string line = client.read_line(); !line.empty(); line = client.read_line()) {
      // iterations, latency (median, average, overall), bandwidth in 2^20 bytes/s (average, overall), rate (...)
      std::vector<double> fields;
      std::istringstream words(line);
      for (std::string word; std::getline(words, word, ',');) {
        char* end = nullptr;
        fields.push_back(std::strtod(word.c_str(), &end));
        if (end == word.c_str()) fields.clear();
      }
      if (fields.size() >= 6 && fields[5] > 0) return double(settings.bytes()) / (fields[5] * 1048576.0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw std::runtime_error("ucx_perftest gave no result (package ucx-utils)");
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void compare(const Settings& settings, const std::string& transport) {
  Ours side(settings, transport);
  side.fetch_seconds();  // connects
  std::vector<double> our_rounds, their_rounds;
  for (int round = 0; round < settings.rounds; ++round) {
    const double our_round = side.fetch_seconds();
    double their_round = perftest_seconds(settings, transport);
    double xxhash_pass = 0;
    if (transport == "shm") xxhash_pass = side.xxhash_seconds();
    const double gigabytes = double(settings.bytes()) / 1e9;
    std::printf("%s round %d: ours %.2f GB/s, ucx_perftest %.2f GB/s", transport.c_str(), round + 1,
                gigabytes / our_round, gigabytes / their_round);
    if (xxhash_pass > 0) std::printf(", XXH3 pass %.2f GB/s", gigabytes / xxhash_pass);
    std::printf("\n");
    our_rounds.push_back(our_round);
    their_rounds.push_back(their_round + xxhash_pass);
  }
  const double ours = median(our_rounds), theirs = median(their_rounds);
  const double gigabytes = double(settings.bytes()) / 1e9;
  std::printf("ratio: replicate_%s = %.2f (ours %.2f, theirs %.2f, GB/s)\n", transport.c_str(), theirs / ours,
              gigabytes / ours, gigabytes / theirs);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Fetching a verified piece against ucx_perftest");
  app.add_option("--mib", settings.mib, "size of the piece")->check(CLI::Range(8, 16384));
  app.add_option("--rounds", settings.rounds)->check(CLI::Range(1, 100));
  app.add_option("--chunk-mib", settings.chunk_mib)->check(CLI::Range(1, 64));
  app.add_option("--chunks-in-flight", settings.chunks_in_flight)->check(CLI::Range(1, 64));
  app.add_option("--transport", settings.transport, "only this one")->check(CLI::IsMember({"tcp", "shm"}));
  app.add_option("--source-of", settings.source_of)->group("");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    if (!settings.source_of.empty()) return be_source(settings);
    for (const std::string transport : {"tcp", "shm"}) {
      if (settings.transport.empty() || settings.transport == transport) compare(settings, transport);
    }
  } catch (const std::exception& failure) {
    std::cerr << "bench_replicate: " << failure.what() << '\n';
    return 1;
  }
}
