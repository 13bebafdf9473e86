#include "agent/trainers/request_codec.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/frame_socket.hpp"
#include "options/options.hpp"

namespace ckpt::agent {
namespace {

using nlohmann::json;

constexpr std::int64_t timeout_max_ms = 24ll * 3600 * 1000;
constexpr std::uint64_t piece_max_bytes = std::uint64_t{1} << 50;
constexpr std::size_t sentence_max_bytes = 1000;
constexpr std::size_t open_engines_max = 4096;

std::uint64_t number(const json& request, const char* key, std::uint64_t most = UINT64_MAX) {
  const auto at = request.find(key);
  if (at == request.end() || !at->is_number_unsigned() || at->get<std::uint64_t>() > most)
    refuse_request(std::string("the request's field \"") + key +
                   (at == request.end() ? "\" is missing" : "\" is not a number in range") +
                   "; run ckptd and libckptengine of one version");
  return at->get<std::uint64_t>();
}

std::string text(const json& request, const char* key) {
  const auto at = request.find(key);
  if (at == request.end() || !at->is_string())
    refuse_request(std::string("the request's field \"") + key +
                   (at == request.end() ? "\" is missing" : "\" is not a text") +
                   "; run ckptd and libckptengine of one version");
  return at->get<std::string>();
}

// A text for people; "" if the field is missing.
std::string sentence(const json& request, const char* key) {
  std::string sentence = request.contains(key) ? text(request, key) : "";
  if (sentence.size() > sentence_max_bytes)
    refuse_request(std::string("the request's field \"") + key + "\" has " + std::to_string(sentence.size()) +
                   " bytes, more than the limit of " + std::to_string(sentence_max_bytes) +
                   "; run ckptd and libckptengine of one version");
  return sentence;
}

std::string shard_name(const json& request, const char* key) {
  std::string name = text(request, key);
  if (!is_plain_name(name) || core::is_reserved(name))
    refuse_request("\"" + name +
                   "\" cannot name a shard; use 1 to 64 characters of A-Z a-z 0-9 . _ -, and neither 'parity' nor a "
                   "name that begins with 'parity.'");
  return name;
}

bool flag(const json& request, const char* key) {
  const auto at = request.find(key);
  return at != request.end() && at->is_boolean() && at->get<bool>();
}

std::vector<std::uint64_t> numbers(const json& request, const char* key, std::size_t most) {
  std::vector<std::uint64_t> values;
  const auto at = request.find(key);
  if (at == request.end()) return values;
  if (at->size() > most)
    refuse_request(std::string("the request's field \"") + key + "\" has more than " + std::to_string(most) +
                   " numbers; run ckptd and libckptengine of one version");
  const bool is_list = at->is_array() && std::all_of(at->begin(), at->end(),
                                                     [](const json& value) { return value.is_number_unsigned(); });
  if (!is_list)
    refuse_request(std::string("the request's field \"") + key +
                   "\" is not a list of numbers; run ckptd and libckptengine of one version");
  for (const json& value : *at) values.push_back(value.get<std::uint64_t>());
  return values;
}

std::int64_t timeout_ms(const json& request) {
  return static_cast<std::int64_t>(number(request, "timeout_ms", timeout_max_ms));
}

}  // namespace

void refuse_request(const std::string& sentence) { throw Failure(CKPT_ERR_INVALID, sentence); }

std::string request_type(const json& request) { return text(request, "type"); }

std::string hello_job(const json& request) {
  if (number(request, "protocol") != request_version)
    refuse_request(
        "the trainer's engine and the agent have different versions; run ckptd and libckptengine of one version");
  return text(request, "job");
}

HelloRequest hello_request(const json& request) {
  HelloRequest wanted;
  core::TrainerHello& hello = wanted.hello;
  hello.rank = static_cast<core::Rank>(number(request, "rank", core::held_rank - 1));
  hello.world_size = static_cast<std::uint32_t>(number(request, "world_size", UINT32_MAX));
  if (hello.rank >= hello.world_size)
    refuse_request("rank " + std::to_string(hello.rank) + " does not fit the world size " +
                   std::to_string(hello.world_size) + "; number the ranks from 0 to " +
                   std::to_string(std::int64_t{hello.world_size} - 1));
  hello.instance = number(request, "instance");
  hello.incarnation = number(request, "incarnation", CheckpointId::incarnation_max);
  hello.main_shard = shard_name(request, "shard");
  hello.private_shard = shard_name(request, "private_shard");
  if (hello.main_shard == hello.private_shard)
    refuse_request("the main shard and the private shard of rank " + std::to_string(hello.rank) +
                   " have the same name \"" + hello.main_shard + "\"; set the option shard to another name");
  wanted.open_engines = numbers(request, "open_engines", open_engines_max);

  const auto options = request.find("options");
  if (options == request.end() || !options->is_object()) return wanted;
  if (options->contains("claim_timeout_ms"))
    wanted.claim_timeout_ms = static_cast<std::int64_t>(number(*options, "claim_timeout_ms", timeout_max_ms));
  if (options->contains("protection")) wanted.protection = sentence(*options, "protection");
  if (options->contains("placement")) wanted.placement = sentence(*options, "placement");
  if (options->contains("capture_every"))
    hello.capture_every = static_cast<std::uint32_t>(number(*options, "capture_every", UINT32_MAX));
  hello.halts = flag(*options, "halts");
  if (options->contains("capture"))
    hello.capture = static_cast<core::CaptureMode>(
        number(*options, "capture", static_cast<std::uint64_t>(core::last_capture_mode)));
  return wanted;
}

Asker bye_request(const json& request) {
  return {static_cast<core::Rank>(number(request, "rank", core::held_rank - 1)), number(request, "instance")};
}

RestoreRequest restore_request(const json& request) {
  return {timeout_ms(request), flag(request, "replication"), flag(request, "takes_shards"),
          flag(request, "follows_arrivals")};
}

std::string restored_request(const json& request) { return sentence(request, "no_replication"); }

std::string trouble_request(const json& request) { return sentence(request, "text"); }

CorruptRequest corrupt_request(const json& request) {
  CorruptRequest corrupt{shard_name(request, "shard"), CheckpointId::from_word(number(request, "checkpoint")), {}};
  if (request.contains("timeout_ms")) corrupt.timeout_ms = timeout_ms(request);
  corrupt.follows_arrivals = flag(request, "follows_arrivals");
  return corrupt;
}

// The segments' names must be the asker's own parts and private shard. Otherwise the agent would never grant them.
ReserveRequest reserve_request(const json& request) {
  const auto slots = request.find("slots");
  if (slots == request.end() || !slots->is_array() || slots->empty() || slots->size() > core::captures_max)
    refuse_request("the request's field \"slots\" is not a list of 1 to " + std::to_string(core::captures_max) +
                   " slots; run ckptd and libckptengine of one version");
  ReserveRequest wanted;
  for (const json& slot : *slots)
    wanted.slots.push_back({shard_name(slot, "shard"), number(slot, "bytes", piece_max_bytes),
                            number(slot, "layout_bytes", piece_max_bytes)});
  wanted.shortage = sentence(request, "shortage");
  return wanted;
}

}  // namespace ckpt::agent
