#include "bench/peer.hpp"

#include <sys/prctl.h>
#include <unistd.h>
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <future>
#include <iostream>
#include <sstream>
#include <thread>
#include <vector>

#include "agent/transfers/peer_source.hpp"
#include "bench/comparison.hpp"
#include "bench/pieces.hpp"
#include "net/socket_address.hpp"

namespace ckpt::bench {
namespace {

using net::testing::ChildProcess;

constexpr std::size_t message_bytes = 16u << 20;
constexpr char shard[] = "rank0";
const CheckpointId checkpoint(1, 1);

net::TransportOptions options_for(const PeerSettings& settings, const std::string& transport, net::PeerId node) {
  net::TransportOptions options = settings.options;
  options.job = "bench";
  options.token = "bench";
  options.node = node;
  options.node_instance = node;
  options.transports = transport;
  options.interface = "lo";
  return options;
}

// The peer's process: prints its address and the piece's root digest, and serves the piece until its parent ends.
int be_source(const PeerSettings& settings) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto segment = nameless_segment(shard, settings.source_bytes);
  auto slot = segment->writable_slot(0);
  fill(slot.data(), settings.source_bytes);
  const arena::Manifest manifest = manifest_of(shard, checkpoint, slot.data(), settings.source_bytes);
  const auto encoded = arena::encode(manifest);
  net::Transport::Handlers handlers;
  handlers.serve = [&](const net::Asker&, const net::PieceName&) {
    return net::ServedPiece{encoded, {slot.data(), settings.source_bytes}, segment};
  };
  const auto transport = net::Transport::create(options_for(settings, settings.source_of, 2), handlers);
  std::cout << transport->address() << '\n' << manifest.root_digest << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return 0;
}

std::vector<std::string> source_command(const PeerSettings& settings, const std::string& transport,
                                        std::size_t piece_bytes) {
  return {"/proc/self/exe",
          "--source-of",
          transport,
          "--source-bytes",
          std::to_string(piece_bytes),
          "--chunk-kib",
          std::to_string(settings.options.chunk_bytes >> 10),
          "--chunks-in-flight",
          std::to_string(settings.options.chunks_in_flight)};
}

int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto address = *net::parse_socket_address("127.0.0.1:0");
  auto* bound = reinterpret_cast<sockaddr*>(&address.storage);
  if (::bind(fd.get(), bound, address.size_bytes) != 0 || ::getsockname(fd.get(), bound, &address.size_bytes) != 0) {
    throw std::runtime_error("no free port on 127.0.0.1");
  }
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

// Returns how many seconds ucx_perftest needs for so many bytes.
double perftest_seconds(std::size_t bytes, const std::string& transport) {
  const int port = free_port();
  ChildProcess server(perftest_command(transport, port));
  auto command = perftest_command(transport, port);
  command.insert(command.end(),
                 {"127.0.0.1", "-t", "ucp_am_bw", "-s", std::to_string(message_bytes), "-n",
                  std::to_string(std::max<std::size_t>(bytes / message_bytes, 1)), "-w", "8", "-f", "-v"});
  for (int attempt = 0; attempt < 100; ++attempt) {  // until the server listens
    ChildProcess client(command);
    for (std::string line = client.read_line(); !line.empty(); line = client.read_line()) {
      // The fields are: iterations, latency (median, average, overall), bandwidth in 2^20 bytes/s (average, overall),
      // rate (average, overall).
      std::vector<double> fields;
      std::istringstream words(line);
      for (std::string word; std::getline(words, word, ',');) {
        char* end = nullptr;
        fields.push_back(std::strtod(word.c_str(), &end));
        if (end == word.c_str()) fields.clear();
      }
      if (fields.size() >= 6 && fields[5] > 0) return double(bytes) / (fields[5] * 1048576.0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw std::runtime_error("ucx_perftest gave no result; is the package ucx-utils installed?");
}

double xxhash_seconds(const std::vector<std::byte>& bytes) {
  const auto begin = Clock::now();
  [[maybe_unused]] const volatile auto digest = XXH3_64bits(bytes.data(), bytes.size());
  return seconds_since(begin);
}

void compare(const PeerSettings& settings, const std::string& name, const std::string& transport,
             const MakeOurs& make_ours) {
  const auto ours = make_ours(settings, transport);
  const std::vector<std::byte> to_hash(transport == "shm" ? ours->bytes : 0, std::byte{1});
  const Side theirs{"ucx_perftest", ours->bytes, [&](benchmark::UserCounters& counters) {
                      const double transfer_s = perftest_seconds(ours->bytes, transport);
                      const double hashing_s = to_hash.empty() ? 0 : xxhash_seconds(to_hash);
                      counters["transfer_s"] = transfer_s;
                      if (hashing_s > 0) counters["hashing_s"] = hashing_s;
                      return transfer_s + hashing_s;
                    }};
  const std::string label = name + "_" + transport;
  const auto found = measure(label, {timed("ours", ours->bytes, ours->run), theirs}, settings.rounds);
  print_ratio(ratio_of_rates(label, gigabytes_per_second(ours->bytes, found[0].seconds),
                             gigabytes_per_second(ours->bytes, found[1].seconds)));
}

}  // namespace

Fetcher::Fetcher(const PeerSettings& settings, const std::string& transport, std::size_t piece_bytes)
    : source_(source_command(settings, transport, piece_bytes)),
      segment_(nameless_segment(shard, piece_bytes)),
      pool_(digest_threads),
      transport_(net::Transport::create(options_for(settings, transport, 1), {})),
      expected_{shard, checkpoint, piece_bytes, 0, 0, 1} {
  transport_->set_peer(2, 2, source_.read_line());
  expected_.root_digest = std::stoull(source_.read_line());
}

void Fetcher::fetch() {
  std::promise<core::FetchResult> ended;
  const auto sink = std::make_shared<agent::FetchSink>(
      agent::FetchDestination(segment_, 0, expected_), pool_,
      [&ended](core::FetchResult result, const std::optional<arena::Manifest>&) { ended.set_value(result); });
  transport_->fetch(2, {shard, checkpoint.word()}, sink, 60'000);
  if (ended.get_future().get() != core::FetchResult::complete) {
    throw std::runtime_error("the piece did not arrive whole");
  }
}

int compare_with_perftest(int argc, char** argv, const std::string& name, const MakeOurs& make_ours) {
  initialize(&argc, argv);
  PeerSettings settings;
  CLI::App app("The transfer of a piece from a peer against ucx_perftest");
  app.add_option("--mib", settings.mib, "least size of the piece in MiB")->check(CLI::Range(8, 16384));
  app.add_option("--rounds", settings.rounds)->check(CLI::Range(1, 100));
  std::size_t chunk_kib = settings.options.chunk_bytes >> 10;
  app.add_option("--chunk-kib", chunk_kib, "size of a chunk; default: as agents do")->check(CLI::Range(64, 65536));
  app.add_option("--chunks-in-flight", settings.options.chunks_in_flight)->check(CLI::Range(1, 64));
  app.add_option("--transport", settings.transport, "default: both")->check(CLI::IsMember({"tcp", "shm"}));
  app.add_option("--source-of", settings.source_of)->group("");
  app.add_option("--source-bytes", settings.source_bytes)->group("");
  CLI11_PARSE(app, argc, argv);
  settings.options.chunk_bytes = chunk_kib << 10;
  try {
    if (!settings.source_of.empty()) return be_source(settings);
    for (const std::string transport : {"tcp", "shm"}) {
      if (settings.transport.empty() || settings.transport == transport) compare(settings, name, transport, make_ours);
    }
  } catch (const std::exception& failure) {
    std::cerr << "bench_" << name << ": " << failure.what() << '\n';
    return 1;
  }
  return 0;
}

}  // namespace ckpt::bench
